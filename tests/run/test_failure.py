"""After an error the last whole step can be saved, and a resume from it continues exactly; in mid-step it cannot."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.run.processes import Sources, children, fail_where_told, soon, stall_where_told
from tests.scenarios import global_batches, rank_steps, row_bytes, small_pipeline
from torchtitan_zephon import Batch, Pipeline, RankStream, StateError, ZephonError
from torchtitan_zephon.errors import ReplayError
from torchtitan_zephon.lane.machine import Lane
from torchtitan_zephon.records import Sequence
from torchtitan_zephon.run import pool, waiting
from torchtitan_zephon.run.engine import LaneEngine
from torchtitan_zephon.state import decode_lane, decode_stream, encode_lane

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")
RUNNERS = ["thread", "process"]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that the functions of ``processes`` look for, in either process; gone at the end."""
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    monkeypatch.setattr(waiting, "SAY_AFTER_S", waiting.SAY_AFTER_S)
    yield tmp_path / "told"
    (tmp_path / "told").unlink(missing_ok=True)


def rows(steps: list[list[Batch]]) -> list[list[bytes]]:
    return [[row_bytes(batch, row) for batch in step for row in range(len(batch.input))] for step in steps]


def read_until(stream: RankStream, kind: type[BaseException]) -> list[list[bytes]]:
    """The whole steps before an error of ``kind``."""
    taken: list[Batch] = []
    with pytest.raises(kind):
        taken.extend(stream)
    per_step = stream.layout.local_batches
    assert len(taken) % per_step == 0
    return rows([taken[i : i + per_step] for i in range(0, len(taken), per_step)])


def step_of(state: dict[str, Any]) -> int:
    return decode_stream(state["stream"]).step


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_step_before_an_error_can_be_saved_and_continues_exactly(sources: Sources, told: Path, runner: str) -> None:
    pipeline = small_pipeline(sources).map(fail_where_told).options(runner=runner)
    stream = pipeline.for_rank(0, 1)
    before = rows(rank_steps(stream, 2))
    told.touch()
    before += read_until(stream, ZephonError)
    state = stream.state_dict()
    assert step_of(state) == len(before) == stream.step
    assert state == stream.state_dict()
    told.unlink()
    _, saved = global_batches(small_pipeline(sources).map(fail_where_told), 1, len(before))
    assert state == saved
    again = pipeline.for_rank(0, 1)
    again.load_state_dict(state)
    after = rows(rank_steps(again, 5))
    again.close()
    unbroken = small_pipeline(sources).map(fail_where_told).for_rank(0, 1)
    assert before + after == rows(rank_steps(unbroken, len(before) + 5))
    unbroken.close()


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_stream_that_fails_can_be_loaded_again_with_its_own_state(sources: Sources, told: Path, runner: str) -> None:
    stream = small_pipeline(sources).map(fail_where_told).options(runner=runner).for_rank(0, 1)
    told.touch()
    before = read_until(stream, ZephonError)
    told.unlink()
    stream.load_state_dict(stream.state_dict())
    after = rows(rank_steps(stream, 3))
    stream.close()
    with pytest.raises(StateError, match="was closed"):
        stream.state_dict()
    unbroken = small_pipeline(sources).map(fail_where_told).for_rank(0, 1)
    assert before + after == rows(rank_steps(unbroken, len(before) + 3))
    unbroken.close()


@pytest.mark.parametrize("runner", RUNNERS)
def test_an_error_before_the_first_step_leaves_the_place_that_was_loaded(sources: Sources, runner: str) -> None:
    _, state = global_batches(small_pipeline(sources), 1, 3)
    stream = small_pipeline(sources).options(runner=runner).for_rank(0, 1)
    shutil.rmtree(sources["alpha"])
    stream.load_state_dict(state)
    assert read_until(stream, ZephonError) == []
    assert stream.state_dict() == state


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_replay_of_other_data_leaves_the_place_that_was_loaded(sources: Sources, runner: str) -> None:
    _, state = global_batches(small_pipeline(sources), 1, 3)
    lane = decode_lane(state["lane"]["00001"], 1, sources)
    state["lane"]["00001"] = encode_lane(replace(lane, digest="1" * 64))
    stream = small_pipeline(sources).options(runner=runner).for_rank(0, 1)
    stream.load_state_dict(state)
    assert read_until(stream, ReplayError) == []
    assert stream.state_dict() == state


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("batch", [1, 2])
def test_an_error_in_mid_step_cannot_be_saved_and_one_at_its_start_can(
    sources: Sources, monkeypatch: pytest.MonkeyPatch, batch: int, runner: str
) -> None:
    """Running out of memory cannot be had for real here, so the copy of a batch is made to fail."""
    stream = small_pipeline(sources).options(runner=runner).for_rank(0, 1)
    rank_steps(stream, 2)
    for _ in range(batch - 1):
        next(iter(stream))

    def no_memory(*_: Any) -> Batch:
        raise MemoryError

    monkeypatch.setattr(Batch, {"thread": "of", "process": "of_rows"}[runner], no_memory)
    with pytest.raises(MemoryError):
        next(iter(stream))
    if batch == 1:
        assert step_of(stream.state_dict()) == stream.step == 2
        monkeypatch.undo()
        assert stream.state_dict() == global_batches(small_pipeline(sources), 1, 2)[1]
    else:
        with pytest.raises(StateError, match=r"a stream that has ended in the middle of step 3: "):
            stream.state_dict()


def test_a_ledger_that_cannot_be_written_leaves_the_step_before(sources: Sources, tmp_path: Path) -> None:
    stream = small_pipeline(sources).options(ledger=str(tmp_path / "ledger")).for_rank(0, 1)
    rank_steps(stream, 2)
    shutil.rmtree(tmp_path / "ledger")
    (tmp_path / "ledger").write_text("in the way")
    assert read_until(stream, ZephonError) == []
    assert step_of(stream.state_dict()) == 2


@pytest.mark.parametrize("runner", RUNNERS)
def test_an_interruption_while_a_read_hangs_leaves_the_step_before(
    sources: Sources, told: Path, runner: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool, "GRACE_S", 0.2)
    stream = small_pipeline(sources).map(stall_where_told).options(runner=runner).for_rank(0, 1)
    before = rows(rank_steps(stream, 1))
    told.touch()

    def interrupt() -> None:
        soon(lambda: "held up" in caplog.text)
        os.kill(os.getpid(), signal.SIGINT)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job is born ignoring it
    threading.Thread(target=interrupt).start()
    try:
        before += read_until(stream, KeyboardInterrupt)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert step_of(stream.state_dict()) == len(before)
    assert children() == []
    assert ("workers did not end within 0.2 s" in caplog.text) == (runner == "thread")
    told.unlink()
    _, saved = global_batches(small_pipeline(sources).map(stall_where_told), 1, len(before))
    assert stream.state_dict() == saved


@pytest.mark.parametrize("taken", [0, 1, 7])
def test_an_interruption_between_two_lanes_leaves_the_step_before(
    sources: Sources, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    """A step takes two sequences of each of four lanes. Those that were taken from have left the place."""
    stream, take, calls = small_pipeline(sources).for_rank(0, 1), LaneEngine._take, itertools.count()
    rank_steps(stream, 2)

    def interrupted(engine: LaneEngine, lane: Lane) -> Sequence:
        if next(calls) == taken:
            raise KeyboardInterrupt
        return take(engine, lane)

    monkeypatch.setattr(LaneEngine, "_take", interrupted)
    assert read_until(stream, KeyboardInterrupt) == []
    monkeypatch.undo()
    assert stream.step == 2
    assert stream.state_dict() == global_batches(small_pipeline(sources), 1, 2)[1]


@pytest.mark.parametrize(("runner", "rounds"), [("thread", 40), ("process", 8)])
def test_an_interruption_at_any_moment_leaves_the_state_of_the_streams_step_or_none(
    sources: Sources, runner: str, rounds: int
) -> None:
    expected = [global_batches(small_pipeline(sources), 1, 0)[1]]
    straight = small_pipeline(sources).for_rank(0, 1)
    for _ in range(400):
        rank_steps(straight, 1)
        expected.append(straight.state_dict())
    straight.close()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before, saved = signal.signal(signal.SIGALRM, interrupt), 0
    try:
        for n in range(rounds):
            stream = small_pipeline(sources).options(runner=runner).for_rank(0, 1)
            rank_steps(stream, 1)
            signal.setitimer(signal.ITIMER_REAL, 0.0003 * (n + 1))
            with pytest.raises(KeyboardInterrupt):
                rank_steps(stream, len(expected))
            with contextlib.suppress(StateError):  # in mid-step, or as its place could not be asked for
                assert stream.state_dict() == expected[stream.step]
                saved += 1
            stream.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert saved or runner == "process", "reading a step takes longest, and it is at the end of one"


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_stream_that_failed_or_was_closed_still_says_its_step(sources: Sources, told: Path, runner: str) -> None:
    stream = small_pipeline(sources).map(fail_where_told).options(runner=runner).for_rank(0, 1)
    rank_steps(stream, 3)
    stream.close()
    assert (stream.step, stream.waiting, stream.begun, stream.figures) == (3, 0, False, None)
    stream.load_state_dict(global_batches(small_pipeline(sources).map(fail_where_told), 1, 1)[1])
    assert stream.step == 1
    next(iter(stream))
    told.touch()
    with pytest.raises(ZephonError):
        list(stream)
    assert stream.step > 1
    assert not stream.begun


@pytest.mark.parametrize(("runner", "loads"), [("thread", 30), ("process", 3)])
def test_loading_again_and_again_keeps_one_finalizer(sources: Sources, runner: str, loads: int) -> None:
    pipeline: Pipeline = small_pipeline(sources).options(runner=runner)
    stream = pipeline.for_rank(0, 1)
    rank_steps(stream, 1)
    state, before = stream.state_dict(), len(weakref.finalize._registry)  # type: ignore[attr-defined]
    for _ in range(loads):
        stream.load_state_dict(state)
        next(iter(stream))
    assert len(weakref.finalize._registry) == before  # type: ignore[attr-defined]
    stream.close()
    assert len(weakref.finalize._registry) == before - 1  # type: ignore[attr-defined]
