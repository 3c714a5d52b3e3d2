"""Tokens per byte: near the truth on corpora that are not alike from place to place, the same whatever the lanes."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.scenarios import rank_steps, small_pipeline, write_jsonl, write_parquet
from torchtitan_zephon import Pipeline, SourceError
from torchtitan_zephon.estimate import Estimate, _largest_group
from torchtitan_zephon.plan.chunking import Pieces
from torchtitan_zephon.program import Program

WORDS = ["the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "was", "on", "are", "as", "with", "be", "at"]


def drifting(count: int = 4000) -> list[str]:
    """Texts of log-normal lengths whose tokens per byte double along them: words give way to random letters."""
    rng = random.Random(4)
    texts = []
    for n in range(count):
        words = [rng.choice(WORDS) for _ in range(1 + int(rng.lognormvariate(3.5, 1)))]
        texts.append(" ".join(w if rng.random() > n / count else "".join(rng.choices("qxzjvk", k=4)) for w in words))
    return texts


def program_of(path: Path, lanes: int = 4, **options: Any) -> Program:
    return (
        small_pipeline({"s": path}, lanes=lanes, global_batch_size=lanes, local_batch_size=1, **options)
        .for_rank(0, 1)
        .program
    )


def truth(program: Program) -> float:
    """Tokens of a whole pass over its planned bytes."""
    [table] = program.tables
    tokens = num_bytes = 0
    for run in range(table.num_runs):
        k, last = 0, False
        while not last:
            chunk, last = table.chunk(0, run, k)
            tokens, num_bytes, k = tokens + len(program.work(chunk).documents.ids), num_bytes + chunk.num_bytes, k + 1
    return tokens / num_bytes


def of_one(program: Program) -> Estimate:
    [found] = program.measure()
    return found


def written(folder: Path, kind: str) -> Path:
    texts = drifting()
    if kind == "jsonl":
        return write_jsonl(folder / "s.jsonl", texts)
    if kind == "one row group":
        return write_parquet(folder / "s.parquet", texts, row_group_rows=10**6)
    if kind == "row groups":
        return write_parquet(folder / "s.parquet", texts, row_group_rows=50)
    repeated = [text for text in texts[::20] for _ in range(20)]  # a dictionary holds each text once
    return write_parquet(folder / "s.parquet", repeated, row_group_rows=500)


@pytest.mark.parametrize("kind", ["jsonl", "one row group", "row groups", "repeated texts"])
def test_the_estimate_is_within_three_per_cent_where_tokens_per_byte_double(tmp_path: Path, kind: str) -> None:
    program = program_of(written(tmp_path, kind))
    found = of_one(program)
    assert abs(found.tokens_per_mib / 2**20 / truth(program) - 1) < 0.03
    assert 0 < found.error < 0.1
    assert found.largest_record == 0


@pytest.mark.parametrize("kind", ["jsonl", "row groups"])
def test_the_estimate_is_the_same_whatever_the_lanes_and_the_chunks(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind)
    assert len({of_one(program_of(path, lanes, chunk_bytes=c)) for lanes in (1, 8, 64) for c in (4096, 2**18)}) == 1


def test_the_estimate_of_token_ids_counts_them(tmp_path: Path) -> None:
    ids = pa.array([[5] * (1 + n // 4) for n in range(2000)], pa.list_(pa.int32()))
    pq.write_table(pa.table({"ids": ids}), tmp_path / "s.parquet")
    pipeline = small_pipeline({"s": tmp_path / "s.parquet"})
    program = pipeline.tokenize(tokenizer_id=tokenizer_of(pipeline), field="ids", add_bos=False, add_eos=False)
    assert of_one(program.for_rank(0, 1).program) == Estimate(2**18, 0.0, 0.0)


def tokenizer_of(pipeline: Pipeline) -> str:
    return str(pipeline._tokenizer_id)


def test_one_document_that_is_much_of_a_source_is_pointed_out_once_and_by_the_first_rank(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = ["the of and " * 20] * 1000
    path = write_jsonl(tmp_path / "s.jsonl", [*texts, "water for all of them " * 30_000, *texts])
    program = program_of(path)
    found = of_one(program)
    assert abs(found.tokens_per_mib / 2**20 / truth(program) - 1) < 0.03
    assert 0.5 < found.largest_record < 0.7
    for rank in range(2):
        stream = small_pipeline({"s": path}).for_rank(rank, 2)
        rank_steps(stream, 1)
        stream.close()
    said = [r.message for r in caplog.records if r.levelno == logging.WARNING and "one record is about 5" in r.message]
    assert len(said) == 1


def test_an_estimate_that_may_be_far_off_is_pointed_out() -> None:
    [said] = Estimate(2**18, 0.09, 0.0).warnings("web")
    assert "source 'web'" in said
    assert "off by 9%" in said
    assert Estimate(2**18, 0.04, 0.05).warnings("web") == []


def test_a_row_group_that_is_much_of_a_source_is_pointed_out_if_it_is_large() -> None:
    for largest, told in ((2**28, True), (2**24, False)):
        pieces = Pieces(np.array([largest, largest // 4]), np.array([1000, 1000]), False)
        found = Estimate(2**18, 0.0, 0.0, largest_group=_largest_group(pieces))
        assert bool(found.warnings("web")) is told
    assert "one row group is 80% of it" in Estimate(2**18, 0.0, 0.0, largest_group=0.8).warnings("web")[0]
    lines = Pieces(np.array([2**30]), np.array([2**30]), True)
    assert _largest_group(lines) == 0


def test_a_source_without_a_usable_document_is_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "s.jsonl", [""] * 500)
    with pytest.raises(SourceError, match=r"source 's': no usable document in a sample of \d+ places"):
        program_of(path).measure()
