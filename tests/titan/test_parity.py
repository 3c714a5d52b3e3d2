"""Byte equality with TorchTitan's own text loader: one lane, `wrap`, nothing shuffled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchtitan")

import torch
from torchtitan.components.tokenizer import HuggingFaceTokenizer
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataset

from tests.scenarios import BOS, EOS, text_of, texts_of, write_jsonl
from tests.titan.scenarios import STOCK_RECIPE, build, tokenizer_that_adds
from torchtitan_zephon import Recipe, RunSettings, SourceConfig
from torchtitan_zephon.ops.tokenizer_files import load_tokenizer
from torchtitan_zephon.titan.feed import Feed, tokenizer_spec

SEQ_LEN = 48
PLAIN = {"lanes": 1, "shuffle_chunks": False, "shuffle_records": False, "shuffle_buffer_sequences": 0}
SPECIAL = [
    "ends with a marker " + EOS,
    BOS + "begins with one",
    f"one {EOS}{BOS} in the middle, and {EOS * 3} three",
    EOS,
    " ",
    "a",
    " ".join(texts_of(80)),
]
"""Texts that spell special tokens, the shortest there are, and one of many rows."""
TEXTS = [text for k in range(7) for text in (*texts_of(40, first=100 * k), SPECIAL[k], text_of(k, 1))]

SETUPS: dict[str, tuple[tuple[str, ...], Any]] = {
    "adds none": ((), None),
    "adds bos": ((BOS,), None),
    "adds eos": ((EOS,), None),
    "adds both": ((BOS, EOS), None),
    "names none": ((), {}),
    "names no bos": ((), {"bos_token": None, "eos_token": EOS}),
    "names a new pad": ((), {"bos_token": BOS, "eos_token": EOS, "pad_token": "<|pad|>"}),
    "names objects": (
        (BOS,),
        {"bos_token": {"content": BOS, "normalized": False}, "eos_token": {"content": EOS, "normalized": False}},
    ),
    "says add_bos false": ((), {"bos_token": BOS, "eos_token": EOS, "add_bos_token": False, "add_eos_token": False}),
}
"""What the tokenizer's post-processor adds by itself, and its ``tokenizer_config.json``."""


def recipe(path: Path) -> Recipe:
    tables = {"c4": SourceConfig(path=str(path))}
    settings: dict[str, Any] = {**PLAIN, **STOCK_RECIPE, "chunk_bytes": 4096, "flush_every_sequences": 20}
    return Recipe(sources=tables, special_tokens_in_text="parse", **settings)


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.filterwarnings("ignore")
def test_sequences_are_those_of_the_stock_text_loader(tmp_path: Path, setup: str) -> None:
    write_jsonl(tmp_path / "data" / "c4.jsonl", TEXTS)
    theirs = HuggingFaceTokenizer(tokenizer_path=str(tokenizer_that_adds(tmp_path / "tokenizer", *SETUPS[setup])))
    stock = list(HuggingFaceTextDataset("c4_test", str(tmp_path / "data"), theirs, seq_len=SEQ_LEN))
    assert len(stock) >= 200
    feed = Feed(recipe=recipe(tmp_path / "data"), settings=RunSettings(), global_batch_size=1)
    ours = build(feed, theirs, seq_len=SEQ_LEN, local=1)
    for number, (expected, batch) in enumerate(zip(stock, ours, strict=False)):
        (inputs, labels), (stock_inputs, stock_labels) = batch, expected
        assert inputs.keys() == stock_inputs.keys()
        for name, tensor in stock_inputs.items():
            assert inputs[name].dtype == tensor.dtype
            assert torch.equal(inputs[name][0], tensor), f"{name} of sequence {number}"
        assert labels.dtype == stock_labels.dtype
        assert torch.equal(labels[0], stock_labels), f"labels of sequence {number}"
    assert ours.stream.step == len(stock)
    ours.stream.close()


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("added", [{}, {"add_bos": False}, {"add_eos": False, "special_tokens_in_text": "parse"}])
def test_a_tokenizer_is_the_same_from_its_folder_and_from_the_trainer(
    tmp_path: Path, setup: str, added: dict[str, Any]
) -> None:
    folder = tokenizer_that_adds(tmp_path, *SETUPS[setup])
    from_trainer = tokenizer_spec(HuggingFaceTokenizer(tokenizer_path=str(folder)), Recipe(sources={}, **added))
    assert load_tokenizer(str(folder), **added) == from_trainer


@pytest.mark.parametrize(
    "config",
    [
        {"bos_token": BOS, "eos_token": {"content": EOS, "lstrip": True}},
        {"bos_token": BOS, "eos_token": EOS, "added_tokens_decoder": {"384": {"content": "<|extra|>"}}},
    ],
    ids=["flags", "decoder"],
)
def test_a_tokenizer_with_more_in_its_config_is_the_same_from_both(tmp_path: Path, config: Any) -> None:
    folder = tokenizer_that_adds(tmp_path, (), config)
    from_trainer = tokenizer_spec(HuggingFaceTokenizer(tokenizer_path=str(folder)), Recipe(sources={}))
    assert load_tokenizer(str(folder)) == from_trainer
