"""Byte equality with TorchTitan's own text loader: one lane, `wrap`, nothing shuffled."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchtitan")

import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torchtitan.components.tokenizer import HuggingFaceTokenizer
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataset

from tests.scenarios import BOS, EOS, text_of, texts_of, write_jsonl
from tests.titan.scenarios import STOCK_RECIPE, VERSION, build, tokenizer_that_adds
from torchtitan_zephon import Recipe, RunSettings, SourceConfig, TokenizerError
from torchtitan_zephon.ledger import read_ledger
from torchtitan_zephon.ops.tokenize import Tokenize
from torchtitan_zephon.ops.tokenizer_files import load_tokenizer
from torchtitan_zephon.titan.feed import Feed, tokenizer_spec
from torchtitan_zephon.titan.reading import loaded

SEQ_LEN = 48
GOLDEN = Path(__file__).parents[1] / "golden"
LEDGER = Path(__file__).parent / "ledger.json"
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
        {"eos_token": EOS, "added_tokens_decoder": {"384": {"content": "<think>", "special": False}}},
        {"bos_token": EOS, "eos_token": EOS},
        {"model_max_length": 1024},
    ],
    ids=["flags", "decoder", "not special", "one token for both", "names none"],
)
def test_a_tokenizer_with_more_in_its_config_is_the_same_from_both(tmp_path: Path, config: Any) -> None:
    folder = tokenizer_that_adds(tmp_path, (), config)
    from_trainer = tokenizer_spec(HuggingFaceTokenizer(tokenizer_path=str(folder)), Recipe(sources={}))
    assert load_tokenizer(str(folder)) == from_trainer


# ---- where TorchTitan's releases read a folder differently, or not to the end


def gpt2(folder: Path) -> Path:
    """A folder laid out as GPT-2's, whose one special token is named by ``config.json`` alone."""
    folder.mkdir()
    shutil.copy(GOLDEN / "tokenizer.json", folder)
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 1024}', "utf-8")
    (folder / "config.json").write_text('{"bos_token_id": 1, "eos_token_id": 1}', "utf-8")
    return folder


@pytest.mark.parametrize("named", [True, False], ids=["named by tokenizer_config.json", "named by config.json"])
@pytest.mark.parametrize("label_shift", ["document", "sequence"])
def test_a_job_with_one_token_for_both_ends_has_the_recorded_ledger_on_every_release(
    tmp_path: Path, label_shift: Any, named: bool
) -> None:
    folder = gpt2(tmp_path / "tokenizer")
    if named:
        (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": EOS, "eos_token": EOS}), "utf-8")
    write_jsonl(tmp_path / "data" / "c4.jsonl", texts_of(60))
    feed = Feed(
        recipe=dataclasses.replace(recipe(tmp_path / "data"), label_shift=label_shift),
        settings=RunSettings(ledger=str(tmp_path / "ledger")),
        global_batch_size=1,
    )
    ours = build(feed, HuggingFaceTokenizer(tokenizer_path=str(folder)), seq_len=SEQ_LEN, local=1)
    for _ in zip(range(8), ours, strict=False):
        pass
    ours.stream.close()
    hashes = [record.sha256 for record in read_ledger(tmp_path / "ledger").values()]
    assert hashes == json.loads(LEDGER.read_text("utf-8"))[f"one token for both, {label_shift}"]


@pytest.mark.parametrize("own", [(), (EOS,)], ids=["no template", "a template that begins with it"])
@pytest.mark.filterwarnings("ignore")
def test_where_the_stock_loader_ends_no_document_ours_does(tmp_path: Path, own: tuple[str, ...]) -> None:
    one = {"bos_token": EOS, "eos_token": EOS}
    folder = tokenizer_that_adds(tmp_path / "tokenizer", (), one)
    if own:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.post_processor = TemplateProcessing(single=f"{EOS} $A", special_tokens=[(EOS, 1)])
        tokenizer.save(str(folder / "tokenizer.json"))
    theirs = HuggingFaceTokenizer(tokenizer_path=str(folder))
    stock = theirs.encode("a", add_bos=True, add_eos=True)
    assert stock[0] == 1
    assert (stock[-1] == 1) == (not own and VERSION != "0.2.2")
    assert Tokenize(tokenizer_spec(theirs, Recipe(sources={}))).document == f"{EOS} text {EOS}"


def test_a_tokenizer_that_was_changed_after_it_was_read_is_taken_as_it_is_and_said(tmp_path: Path) -> None:
    folder = tokenizer_that_adds(tmp_path / "tokenizer", ())
    theirs = HuggingFaceTokenizer(tokenizer_path=str(folder))
    theirs.tokenizer.post_processor = TemplateProcessing(single=f"{BOS} {BOS} $A", special_tokens=[(BOS, 0)])
    spec = tokenizer_spec(theirs, Recipe(sources={}))
    assert Tokenize(spec).document == f"{BOS} {BOS} text {EOS}"
    assert spec.roles == (
        f"BOS 0 and EOS 1 by the trainer's HuggingFaceTokenizer, whose post_processor is not that of {str(folder)!r}"
    )
    theirs = HuggingFaceTokenizer(tokenizer_path=str(folder))
    theirs.tokenizer.add_tokens(["<new>"])
    assert "whose vocabulary is not that of" in tokenizer_spec(theirs, Recipe(sources={})).roles
    del theirs.tokenizer_path
    assert "which knows no folder" in tokenizer_spec(theirs, Recipe(sources={}, add_bos=False)).roles


@pytest.mark.parametrize("rank", [0, 1])
def test_a_tokenizer_that_ends_no_document_is_warned_of_at_the_start_on_rank_0(
    tmp_path: Path, rank: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtitan_zephon.program._said", set())
    write_jsonl(tmp_path / "data" / "c4.jsonl", texts_of(60))
    theirs = HuggingFaceTokenizer(tokenizer_path=str(tokenizer_that_adds(tmp_path / "tokenizer", (), {})))
    feed = Feed(
        recipe=Recipe(sources={"c4": SourceConfig(path=str(tmp_path / "data"))}, lanes=2),
        settings=RunSettings(),
        global_batch_size=2,
    )
    build(feed, theirs, seq_len=SEQ_LEN, local=1, degree=2, rank=rank).stream.close()
    said = [r.message for r in caplog.records if r.levelname == "WARNING" and "zephon" in r.message]
    assert len(said) == (rank == 0)
    assert all("nothing ends a document (no BOS named, no EOS named): one is read as  text, " in text for text in said)


def test_a_start_with_a_sentencepiece_model_alone_says_how_to_write_tokenizer_json(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e")
    with pytest.raises(
        TokenizerError, match=r"hf_assets_path = .*'tokenizer\.model', a SentencePiece.*save_pretrained"
    ):
        loaded(str(tmp_path), lambda: HuggingFaceTokenizer(tokenizer_path=str(tmp_path)))
