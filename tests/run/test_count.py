"""The count of a finite stream: what a pass gives, the same on every rank, read once a process."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.run.ranks import Meeting
from tests.scenarios import corpus, global_batches, rank_steps, small_pipeline, text_of, texts_of, write_jsonl
from torchtitan_zephon import ConfigError, RunSettings, TokenEstimation
from torchtitan_zephon.program import Program
from torchtitan_zephon.run import count
from torchtitan_zephon.run.agree import Exchange
from torchtitan_zephon.run.count import count_sequences, unlike
from torchtitan_zephon.state import decode_stream


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
    assert count_sequences(program, rates_of(program), range(3), RunSettings(workers=workers)) == dict(enumerate(given))
    assert decode_stream(stream.state_dict()["stream"]).pass_sequences == tuple(given)
    assert len(steps) == max(given)


def test_a_source_is_counted_once_a_process(tmp_path: Path) -> None:
    program = (
        small_pipeline({"a": write_jsonl(tmp_path / "a.jsonl", ["one of its kind"])}, repeat=False)
        .for_rank(0, 1)
        .program
    )
    counts = count_sequences(program, rates_of(program), [1, 3], RunSettings(workers=1))
    assert counts.keys() == {1, 3}
    with mock.patch("torchtitan_zephon.run.count.Fetch", side_effect=AssertionError):
        assert count_sequences(program, rates_of(program), [3], RunSettings(workers=4)) == {3: counts[3]}


def test_lanes_so_unlike_that_a_pass_is_mostly_padding_are_said_once_by_the_first_rank(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = [text_of(n, 12_000 if n == 77 else 6) for n in range(300)]
    path = write_jsonl(tmp_path / "one-is-long.jsonl", texts)
    pipeline = small_pipeline({"s": path}, lanes=4, global_batch_size=8, local_batch_size=2, repeat=False)
    for rank in (1, 0, 0):
        stream = pipeline.for_rank(rank, 2)
        rank_steps(stream, 1)
        counts = decode_stream(stream.state_dict()["stream"]).pass_sequences
        stream.close()
        if rank == 1:
            assert not caplog.records
            count._counted.clear()
    assert counts is not None
    said = [record.message for record in caplog.records if "one pass takes" in record.message]
    assert len(said) == 1
    would_do = -(-sum(counts) // 8)
    steps = -(-max(counts) // 2)
    assert f"one pass takes {steps:,} steps where {would_do:,} would do" in said[0]
    assert f"lane {counts.index(max(counts))} has {max(counts):,} sequences" in said[0]


@pytest.mark.parametrize(
    ("counts", "lane_sequences"),
    [([100, 100, 101, 102], 1), ([0, 1, 2, 0], 1), ([0, 0, 0, 0], 4), ([90, 100, 100, 110], 16), ([1000, 1018], 1)],
)
def test_lanes_that_are_alike_within_a_step_or_two_per_cent_are_not_mentioned(
    counts: list[int], lane_sequences: int
) -> None:
    assert unlike(counts, lane_sequences) is None


def test_lanes_of_which_some_are_empty_are_mentioned() -> None:
    text = unlike([0, 0, 40, 0], 2)
    assert text is not None
    assert "20 steps where 5 would do: lane 2 has 40 sequences, most lanes about 0" in text
    assert "75% of what is read is padding" in text


def test_a_resume_counts_nothing(tmp_path: Path) -> None:
    pipeline = small_pipeline(corpus(tmp_path, 60), repeat=False)
    whole, _ = global_batches(pipeline, 1, 10**6)
    _, state = global_batches(pipeline, 1, 3)
    with mock.patch("torchtitan_zephon.run.stream.count_pass", side_effect=AssertionError):
        after, _ = global_batches(pipeline, 2, 10**6, state)
    assert after == whole[3:]


def test_ranks_count_their_own_lanes_and_exchange_the_counts_once(tmp_path: Path) -> None:
    sources = corpus(tmp_path, 67)
    whole, _ = global_batches(small_pipeline(sources, repeat=False), 1, 10**6)
    count._counted.clear()

    def steps(rank: int, exchange: Exchange) -> int:
        return len(rank_steps(small_pipeline(sources, repeat=False).for_rank(rank, 2, exchange=exchange), 10**6))

    with mock.patch.object(count, "_count_lane", side_effect=count._count_lane) as spied:
        meeting = Meeting(2)
        assert meeting.run(steps) == [len(whole)] * 2
        exchanges = [len(sent) for sent in meeting.sent]
        assert sorted(call.args[0].number for call in spied.call_args_list) == [0, 1, 2, 3]
        meeting = Meeting(2)
        assert meeting.run(steps) == [len(whole)] * 2
        assert len(spied.call_args_list) == 4
    assert [len(sent) + 1 for sent in meeting.sent] == exchanges  # only what they read; the counts are known by now


def test_a_rank_that_cannot_count_is_named_by_all(tmp_path: Path) -> None:
    texts = texts_of(2000)
    path = write_jsonl(tmp_path / "s.jsonl", texts)
    whole = path.read_bytes()
    at = whole.index(b"\n", len(whole) // 2) + 1  # between two of the eight places where it is sampled
    path.write_bytes(whole[:at] + whole[at:].replace(b'"text"', b'"tuxt"', 1))

    def steps(rank: int, exchange: Exchange) -> Any:
        pipeline = small_pipeline({"s": path}, repeat=False, token_estimation=TokenEstimation(sample_bytes=1))
        return rank_steps(pipeline.for_rank(rank, 2, exchange=exchange), 10**6)

    first, second = (str(error) for error in Meeting(2).run(steps))
    assert first == second
    assert "cannot read its data" in first and "there is no field 'text'" in first


def test_a_repeating_stream_has_no_count(tmp_path: Path) -> None:
    program = small_pipeline(corpus(tmp_path, 30)).for_rank(0, 1).program
    with pytest.raises(ConfigError, match="a repeating stream has no last step"):
        count_sequences(program, rates_of(program), range(4), RunSettings(workers=1))
