"""Our loader under the stock validator: a finite set, every token once, the same number of batches on every rank."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torchtitan")

import torch
from torchtitan.components.tokenizer import HuggingFaceTokenizer

from tests.scenarios import texts_of, tokenizer_folder, write_jsonl
from torchtitan_zephon import Recipe, RunSettings, SourceConfig
from torchtitan_zephon.titan.loader import TorchBatch, ZephonDataLoader

SEQ_LEN = 32


def config(path: Path, *, infinite: bool, lanes: int = 12) -> ZephonDataLoader.Config:
    recipe = Recipe(sources={"held_out": SourceConfig(path=str(path))}, lanes=lanes, shuffle_buffer_sequences=0)
    return ZephonDataLoader.Config(recipe=recipe, settings=RunSettings(), global_batch_size=24, infinite=infinite)


def batches(
    config: ZephonDataLoader.Config, degree: int, rank: int, local: int, count: int | None = None
) -> list[TorchBatch]:
    loader = config.build(
        dp_world_size=degree, dp_rank=rank, seq_len=SEQ_LEN, local_batch_size=local,
        tokenizer=HuggingFaceTokenizer(tokenizer_path=str(tokenizer_folder())),
    )  # fmt: skip
    iterator = iter(loader)
    return list(iterator) if count is None else [next(iterator) for _ in range(count)]


def supervised(found: list[TorchBatch]) -> int:
    return sum(int((labels != -100).sum()) for _, labels in found)


@pytest.mark.parametrize("documents", [1, 3, 7, 50])
@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_every_token_counts_once_and_all_ranks_take_the_same_steps(tmp_path: Path, documents: int, degree: int) -> None:
    path = write_jsonl(tmp_path / "held_out.jsonl", texts_of(documents))
    tokenizer = HuggingFaceTokenizer(tokenizer_path=str(tokenizer_folder()))
    tokens = [len(tokenizer.encode(t, add_bos=True, add_eos=True)) - 1 for t in texts_of(documents)]
    ranks = [batches(config(path, infinite=False), degree, rank, local=2) for rank in range(degree)]
    assert len({len(found) for found in ranks}) == 1
    assert sum(map(supervised, ranks)) == sum(tokens)
    assert all(labels.shape == (2, SEQ_LEN) for found in ranks for _, labels in found)


def test_positive_steps_begin_at_the_same_place_every_time(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "held_out.jsonl", texts_of(40))
    first, again = (batches(config(path, infinite=True), 2, 1, local=2, count=30) for _ in range(2))
    assert all(torch.equal(a["input"], b["input"]) for (a, _), (b, _) in zip(first, again, strict=True))
