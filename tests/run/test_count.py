"""The count of a finite stream: what a pass gives, the same on every rank, read once a process."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.scenarios import corpus, global_batches, rank_steps, small_pipeline, write_jsonl
from torchtitan_zephon import ConfigError
from torchtitan_zephon.program import Program
from torchtitan_zephon.run.count import count_sequences


def rates_of(program: Program) -> tuple[int, ...]:
    return tuple(e.tokens_per_mib for e in program.measure())


@pytest.mark.parametrize("workers", [1, 5])
@pytest.mark.parametrize("pack", [{}, {"label_shift": "sequence"}, {"algorithm": "first_fit"}], ids=str)
def test_the_count_of_a_lane_is_what_it_gives_in_a_pass(tmp_path: Path, pack: dict[str, Any], workers: int) -> None:
    pipeline = small_pipeline(
        corpus(tmp_path, 100), lanes=3, global_batch_size=3, local_batch_size=1, repeat=False, **pack
    )
    stream = pipeline.for_rank(0, 1)
    steps = rank_steps(stream, 10**6)
    given = [sum(step[lane].sequences[0].filled > 0 for step in steps) for lane in range(3)]
    program = stream.program
    assert count_sequences(program, rates_of(program), range(3), workers) == dict(enumerate(given))
    assert stream.snapshot().stream.pass_sequences == tuple(given)
    assert len(steps) == max(given)


def test_a_source_is_counted_once_a_process(tmp_path: Path) -> None:
    program = (
        small_pipeline({"a": write_jsonl(tmp_path / "a.jsonl", ["one of its kind"])}, repeat=False)
        .for_rank(0, 1)
        .program
    )
    counts = count_sequences(program, rates_of(program), [1, 3], 1)
    assert counts.keys() == {1, 3}
    with mock.patch("torchtitan_zephon.run.count.Pool", side_effect=AssertionError):
        assert count_sequences(program, rates_of(program), [3], 4) == {3: counts[3]}


def test_a_resume_counts_nothing(tmp_path: Path) -> None:
    pipeline = small_pipeline(corpus(tmp_path, 60), repeat=False)
    whole, _ = global_batches(pipeline, 1, 10**6)
    _, state = global_batches(pipeline, 1, 3)
    with mock.patch("torchtitan_zephon.run.stream.count_sequences", side_effect=AssertionError):
        after, _ = global_batches(pipeline, 2, 10**6, state)
    assert after == whole[3:]


def test_a_repeating_stream_has_no_count(tmp_path: Path) -> None:
    program = small_pipeline(corpus(tmp_path, 30)).for_rank(0, 1).program
    with pytest.raises(ConfigError, match="a repeating stream has no last step"):
        count_sequences(program, rates_of(program), range(4), 1)
