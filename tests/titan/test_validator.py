"""Our loader under the stock validator: a finite set, every token once, the same number of batches on every rank."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torchtitan")

import torch
from torchtitan.components.tokenizer import HuggingFaceTokenizer

from tests.scenarios import texts_of, tokenizer_folder, write_jsonl
from tests.titan.scenarios import build, supervised
from torchtitan_zephon import Recipe, RunSettings, SourceConfig
from torchtitan_zephon.titan.feed import Feed
from torchtitan_zephon.titan.loader import TorchBatch

SEQ_LEN, LANES, LOCAL = 32, 12, 2


@pytest.fixture(scope="module")
def tokenizer() -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(tokenizer_path=str(tokenizer_folder()))


def tokens_of(tokenizer: HuggingFaceTokenizer, text: str) -> int:
    """What a text gives to train on: all its tokens but the last, which is a label only."""
    return len(tokenizer.encode(text, add_bos=True, add_eos=True)) - 1


def set_of(path: Path, tokenizer: HuggingFaceTokenizer, sequences: int) -> int:
    """Write a set of one document a sequence, whole or nearly; returns its tokens."""
    texts = [t for t in texts_of(1200) if SEQ_LEN - 4 < tokens_of(tokenizer, t) <= SEQ_LEN][:sequences]
    assert len(texts) == sequences
    write_jsonl(path, texts)
    return sum(tokens_of(tokenizer, t) for t in texts)


def feed(path: Path, *, infinite: bool) -> Feed:
    sources = {"held_out": SourceConfig(path=str(path))}
    recipe = Recipe(sources=sources, lanes=LANES, pack="first_fit", shuffle_buffer_sequences=0)
    return Feed(recipe=recipe, settings=RunSettings(), global_batch_size=24, infinite=infinite)


def pass_over(path: Path, tokenizer: HuggingFaceTokenizer, degree: int, local: int = LOCAL) -> list[list[TorchBatch]]:
    """All batches of every rank, each from a loader of its own, as the validator builds one every time."""
    return [
        list(build(feed(path, infinite=False), tokenizer, seq_len=SEQ_LEN, local=local, degree=degree, rank=rank))
        for rank in range(degree)
    ]


@pytest.mark.parametrize("sequences", [1, 3, 7, 50])
@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_every_token_counts_once_and_all_ranks_take_the_same_steps(
    tmp_path: Path, tokenizer: HuggingFaceTokenizer, sequences: int, degree: int
) -> None:
    tokens = set_of(tmp_path / "held_out.jsonl", tokenizer, sequences)
    ranks = pass_over(tmp_path / "held_out.jsonl", tokenizer, degree)
    assert len({len(batches) for batches in ranks}) == 1
    assert sum(map(supervised, ranks)) == tokens
    rows = [labels for batches in ranks for _, labels in batches]
    assert all(labels.shape == (LOCAL, SEQ_LEN) for labels in rows)
    assert sum(int((labels != -100).any(1).sum()) for labels in rows) == sequences
    again = pass_over(tmp_path / "held_out.jsonl", tokenizer, degree)
    assert all(
        torch.equal(a, b) for r, s in zip(ranks, again, strict=True) for (_, a), (_, b) in zip(r, s, strict=True)
    )


@pytest.mark.parametrize("local", [1, 3, 5])
def test_any_local_batch_size_will_do_for_a_validation_pass(
    tmp_path: Path, tokenizer: HuggingFaceTokenizer, local: int
) -> None:
    tokens = set_of(tmp_path / "held_out.jsonl", tokenizer, 7)
    ranks = pass_over(tmp_path / "held_out.jsonl", tokenizer, 4, local)
    assert len({len(batches) for batches in ranks}) == 1
    assert sum(map(supervised, ranks)) == tokens


def test_the_set_is_the_same_sequences_on_every_number_of_ranks(
    tmp_path: Path, tokenizer: HuggingFaceTokenizer
) -> None:
    set_of(tmp_path / "held_out.jsonl", tokenizer, 50)

    def rows(degree: int) -> list[bytes]:
        ranks = pass_over(tmp_path / "held_out.jsonl", tokenizer, degree)
        found = [labels[i] for batches in ranks for _, labels in batches for i in range(LOCAL)]
        return sorted(row.numpy().tobytes() for row in found if (row != -100).any())

    assert rows(1) == rows(2) == rows(3) == rows(4)


def test_positive_steps_begin_at_the_same_place_every_time(tmp_path: Path, tokenizer: HuggingFaceTokenizer) -> None:
    path = write_jsonl(tmp_path / "held_out.jsonl", texts_of(40))

    def first_30() -> list[TorchBatch]:
        loader = build(feed(path, infinite=True), tokenizer, seq_len=SEQ_LEN, local=LOCAL, degree=2, rank=1)
        batches = [batch for _, batch in zip(range(30), loader, strict=False)]
        loader.stream.close()
        return batches

    first, again = first_30(), first_30()
    assert len(first) == 30
    for (a, a_labels), (b, b_labels) in zip(first, again, strict=True):
        assert torch.equal(a["input"], b["input"]) and torch.equal(a_labels, b_labels)
    assert not torch.equal(first[0][0]["input"], first[1][0]["input"])
