"""Byte equality with TorchTitan's own text loader: one lane, `wrap`, nothing shuffled."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torchtitan")

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torchtitan.components.tokenizer import HuggingFaceTokenizer
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataset

from tests.scenarios import BOS, EOS, texts_of, tokenizer_folder, write_jsonl
from torchtitan_zephon import Recipe, RunSettings, SourceConfig
from torchtitan_zephon.ops.tokenize import load_tokenizer
from torchtitan_zephon.plan.layout import Layout
from torchtitan_zephon.program import compile_program
from torchtitan_zephon.run.stream import RankStream
from torchtitan_zephon.titan.loader import tokenizer_spec

SEQ_LEN, SEQUENCES = 48, 250

PLAIN = {"lanes": 1, "shuffle_chunks": False, "shuffle_records": False, "shuffle_buffer_sequences": 0}


def tokenizer_that_adds(folder: Path, tokens: tuple[str, ...]) -> Path:
    """A copy of the small tokenizer whose post-processor adds ``tokens`` by itself."""
    tokenizer = Tokenizer.from_file(str(tokenizer_folder() / "tokenizer.json"))
    if tokens:
        before, after = (BOS + " " if BOS in tokens else ""), (" " + EOS if EOS in tokens else "")
        tokenizer.post_processor = TemplateProcessing(
            single=f"{before}$A{after}", special_tokens=[(t, tokenizer.token_to_id(t)) for t in tokens]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": BOS, "eos_token": EOS}), "utf-8")
    return folder


@pytest.mark.parametrize("tokens", [(), (BOS,), (EOS,), (BOS, EOS)], ids=["none", "bos", "eos", "both"])
@pytest.mark.filterwarnings("ignore")
def test_sequences_are_those_of_the_stock_text_loader(tmp_path: Path, tokens: tuple[str, ...]) -> None:
    texts = [
        *texts_of(300),
        " ".join(texts_of(80)),
        "ends with a marker " + EOS,
        BOS + "begins with one",
        " ",
        *texts_of(40, 900),
    ]
    write_jsonl(tmp_path / "data" / "c4.jsonl", texts)
    (tmp_path / "tokenizer").mkdir()
    theirs = HuggingFaceTokenizer(tokenizer_path=str(tokenizer_that_adds(tmp_path / "tokenizer", tokens)))
    stock = iter(HuggingFaceTextDataset("c4_test", str(tmp_path / "data"), theirs, seq_len=SEQ_LEN))
    recipe = Recipe(
        sources={"c4": SourceConfig(path=str(tmp_path / "data"))},
        special_tokens_in_text="parse",
        chunk_bytes=4096,
        **PLAIN,
    )
    program = compile_program(recipe, SEQ_LEN, tokenizer_spec(theirs, recipe))
    ours = RankStream(program, Layout(lanes=1, global_batch_size=1, local_batch_size=1), RunSettings())
    for _, batch, (inputs, labels) in zip(range(SEQUENCES), ours, stock, strict=False):
        np.testing.assert_array_equal(batch.input[0], inputs["input"].numpy())
        np.testing.assert_array_equal(batch.positions[0], inputs["positions"].numpy())
        np.testing.assert_array_equal(batch.labels[0], labels.numpy())
    assert batch.step == SEQUENCES
    ours.close()


@pytest.mark.parametrize("tokens", [(), (BOS,), (EOS,), (BOS, EOS)], ids=["none", "bos", "eos", "both"])
def test_a_tokenizer_is_the_same_from_its_folder_and_from_the_trainer(tmp_path: Path, tokens: tuple[str, ...]) -> None:
    folder = tokenizer_that_adds(tmp_path, tokens)
    recipe = Recipe(sources={})
    assert load_tokenizer(str(folder)) == tokenizer_spec(HuggingFaceTokenizer(tokenizer_path=str(folder)), recipe)
