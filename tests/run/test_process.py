"""``runner = "process"``: the same batches, states and errors as in threads."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.run.processes import (
    SOON_S,
    Sources,
    child_of,
    children,
    exit_late,
    fail_late,
    fail_strangely,
    failure,
    let_run_ahead,
    made,
    most,
    note_elsewhere,
    strip,
)
from tests.scenarios import global_batches, rank_steps, says, small_pipeline, texts_of, write_jsonl, write_parquet
from torchtitan_zephon import (
    Batch,
    ConfigError,
    FunctionError,
    RankStream,
    RecipeChangedError,
    RecordError,
    RunnerError,
    RunSettings,
    SourceError,
    StateError,
    TokenEstimation,
    ZephonError,
)
from torchtitan_zephon.errors import ReplayError
from torchtitan_zephon.ledger import read_ledger
from torchtitan_zephon.run.ring import SLOTS
from torchtitan_zephon.state import decode_lane, encode_lane

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")


def same(a: Batch, b: Batch) -> bool:
    columns = [(getattr(a, n), getattr(b, n)) for n in ("input", "labels", "positions")]
    rows = list(zip(a.sequences, b.sequences, strict=True))
    columns += [(x.pieces, y.pieces) for x, y in rows]
    columns += [(x.rows.columns[n][x.row], y.rows.columns[n][y.row]) for n in a.columns for x, y in rows]
    return (
        a.step == b.step
        and all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in columns)
        and all(x.filled == y.filled for x, y in rows)
    )


# ---- the same stream

FEATURES: dict[str, dict[str, Any]] = {
    "wrap": {},
    "across": {"label_shift": "sequence"},
    "first_fit": {"algorithm": "first_fit"},
    "odd": {"seq_len": 5, "local_batch_size": 1, "lanes": 3, "global_batch_size": 3},
}


@pytest.mark.parametrize("feature", FEATURES)
def test_batches_provenance_figures_and_states_are_those_of_the_threads(sources: Sources, feature: str) -> None:
    def stream(runner: Any) -> RankStream:
        return (
            small_pipeline(sources, **FEATURES[feature]).map(strip).filter(most).options(runner=runner).for_rank(0, 1)
        )

    threads, ours = stream("thread"), stream("process")
    assert ours.state_dict() == threads.state_dict()
    assert (ours.step, ours.begun, ours.figures) == (0, False, None)
    for expected, batch in itertools.islice(zip(threads, ours, strict=True), 60):
        assert same(batch, expected)
        assert (ours.step, ours.waiting, ours.figures) == (threads.step, threads.waiting, threads.figures)
        assert ours.balance == threads.balance
        if not threads.waiting:
            assert ours.state_dict() == threads.state_dict()
    assert ours.step > 10
    threads.close()
    ours.close()


def test_a_run_goes_on_exactly_on_other_ranks_and_the_other_runner(sources: Sources) -> None:
    pipelines = {runner: small_pipeline(sources).options(runner=runner) for runner in ("thread", "process")}
    expected, last = global_batches(pipelines["thread"], 1, 16)
    state, seen = None, []
    for runner, degree, steps in (
        ("thread", 2, 3),
        ("process", 4, 4),
        ("process", 1, 1),
        ("thread", 1, 3),
        ("process", 2, 5),
    ):
        hashes, state = global_batches(pipelines[runner], degree, steps, state, local_batch_size=1)
        seen += hashes
    assert (seen, state) == (expected, last)


def test_ranks_that_share_lanes_get_the_same_global_batches(sources: Sources) -> None:
    options: dict[str, Any] = {"lanes": 4, "global_batch_size": 12, "local_batch_size": 2}
    expected = global_batches(small_pipeline(sources, **options), 1, 5)
    assert global_batches(made(sources, **options).options(shared_lanes=True), 3, 5) == expected


def test_a_finite_stream_ends_alike_can_be_passed_twice_and_resumed(sources: Sources) -> None:
    options: dict[str, Any] = {"repeat": False, "lanes": 2, "global_batch_size": 4}
    threads, ours = (small_pipeline(sources, **options).options(runner=r).for_rank(0, 1) for r in ("thread", "process"))
    expected = list(threads)
    end, balance = threads.state_dict(), threads.balance
    for stream in (threads, ours, ours):
        taken = list(stream)
        assert children() == []  # ended with the pass
        assert len(taken) == len(expected)
        assert all(map(same, taken, expected))
        assert stream.balance == balance
        assert stream.state_dict() == end
    half, state = global_batches(small_pipeline(sources, **options), 1, 7)
    rest, end = global_batches(made(sources, **options), 1, 10**6, state)
    assert half + rest == global_batches(small_pipeline(sources, **options), 1, 10**6)[0]
    for stream in (threads, ours):
        stream.load_state_dict(end)
        assert list(stream) == []
        assert stream.state_dict() == end
        assert len(list(stream)) == len(expected), "a stream that was loaded at its end begins again, too"


def test_a_finite_pass_reads_each_record_once_as_the_trainer_has_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = texts_of(100)
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    one = {"one": write_jsonl(tmp_path / "one.jsonl", texts)}
    assert list(made(one, repeat=False).map(note_elsewhere))
    assert sorted((tmp_path / "notes").read_text("utf-8").splitlines()) == sorted(texts)


def test_a_second_iterator_of_a_stream_that_ended_begins_nothing(sources: Sources) -> None:
    stream = made(sources, repeat=False, lanes=1, global_batch_size=2).for_rank(0, 1)
    first, second = iter(stream), iter(stream)
    next(first)
    next(second)
    assert list(first)
    assert list(second) == []
    assert children() == []


def test_the_ledger_has_the_steps_the_trainer_took_and_no_others(sources: Sources, tmp_path: Path) -> None:
    ledgers = {}
    for runner in ("thread", "process"):
        folder = tmp_path / runner
        stream = small_pipeline(sources).options(runner=runner, ledger=str(folder)).for_rank(0, 1)
        rank_steps(stream, 3)
        if runner == "process":
            let_run_ahead(stream)
        stream.close()
        ledgers[runner] = read_ledger(folder)
    assert list(ledgers["process"]) == [1, 2, 3]
    assert ledgers["process"] == ledgers["thread"]


def test_a_ledger_that_cannot_be_written_ends_the_run_within_the_slots(sources: Sources, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    stream = made(sources).options(ledger=str(tmp_path / "file")).for_rank(0, 1)
    with pytest.raises(ZephonError, match=r"the ledger at .* cannot be written") as error:
        list(itertools.islice(stream, SLOTS + 1))
    assert type(error.value) is ZephonError
    assert children() == []


def test_the_step_at_which_a_stream_begins_is_in_its_state(sources: Sources) -> None:
    alike = small_pipeline(sources).for_rank(0, 1)
    settings = RunSettings(runner="process")
    stream = RankStream(alike.program, alike.layout, settings, first_step=7)
    rank_steps(stream, 1)
    resumed = RankStream(alike.program, alike.layout, settings)
    resumed.load_state_dict(stream.state_dict())
    stream.close()
    assert resumed.first_step == 7
    rank_steps(resumed, 1)
    assert b'"first_step":7' in resumed.state_dict()["stream"]
    resumed.close()


# ---- state


def test_the_state_is_the_trainers_place_however_far_the_process_is_ahead(sources: Sources) -> None:
    options: dict[str, Any] = {"lanes": 2, "global_batch_size": 2, "local_batch_size": 2}  # a step in every slot
    _, expected = global_batches(small_pipeline(sources, **options), 1, 3)
    stream = made(sources, **options).for_rank(0, 1)
    rank_steps(stream, 3)
    assert child_of(stream)._socket.poll(SOON_S)  # a later batch waits, unread
    assert stream.state_dict() == expected
    let_run_ahead(stream)
    assert stream.state_dict() == expected
    assert [b.step for [b] in rank_steps(stream, 5)] == [4, 5, 6, 7, 8]
    assert stream.state_dict() == global_batches(small_pipeline(sources, **options), 1, 8)[1]
    stream.close()


def test_a_state_in_the_middle_of_a_step_is_refused_in_the_same_words(sources: Sources) -> None:
    texts = []
    for runner in ("thread", "process"):
        stream = small_pipeline(sources).options(runner=runner).for_rank(0, 1)  # type: ignore[arg-type]
        next(iter(stream))
        with pytest.raises(StateError, match="in the middle of step 1: 1 of its 4 local batches") as error:
            stream.state_dict()
        texts.append(str(error.value))
        rank = iter(stream)
        for _ in range(3):
            next(rank)
        assert stream.state_dict()["lane"]
        stream.close()
    assert texts[0] == texts[1]


def test_loading_while_running_goes_there_and_a_bad_state_disturbs_nothing(sources: Sources) -> None:
    expected, state = global_batches(small_pipeline(sources), 1, 5)
    stream = made(sources).for_rank(0, 1)
    running = iter(stream)
    first = [next(running) for _ in range(4)]
    [before] = children()
    with pytest.raises(RecipeChangedError, match="seed: 8 -> 7"):
        stream.load_state_dict(global_batches(small_pipeline(sources, seed=8), 1, 1)[1])
    with pytest.raises(StateError, match="has no stream and lanes"):
        stream.load_state_dict({})
    assert children() == [before]
    assert stream.step == 1
    assert next(running).step == 2
    stream.load_state_dict(state)
    assert children() == []  # begins when a batch is asked for
    assert stream.state_dict() == state
    assert next(running).step == 6
    stream.load_state_dict(global_batches(small_pipeline(sources), 1, 0)[1])
    again = [next(running) for _ in range(4)]
    assert all(map(same, first, again))
    assert len(expected) == 5
    stream.close()


# ---- errors


def in_order(folder: Path, runner: Any, *functions: Any, bad: bool = False) -> RankStream:
    """A stream that reads 300 records in their order; number 150 is bad, if asked for, and not in the sample."""
    path = write_jsonl(folder / "one.jsonl", texts_of(300))
    if bad:
        lines = path.read_text("utf-8").splitlines()
        lines[150] = '{"text": 7}'
        path.write_text("\n".join(lines), "utf-8")
    plain: dict[str, Any] = {"lanes": 1, "global_batch_size": 2, "buffer_size": 0}
    plain |= {"shuffle_chunks": False, "shuffle_records": False, "token_estimation": TokenEstimation(sample_bytes=1)}
    pipeline = small_pipeline({"one": path}, **plain).options(runner=runner)
    for function in functions:
        pipeline = pipeline.map(function)
    return pipeline.for_rank(0, 1)


def test_a_bad_record_is_the_same_error_behind_the_same_batches(tmp_path: Path) -> None:
    before, expected = failure(in_order(tmp_path, "thread", bad=True))
    taken, error = failure(in_order(tmp_path, "process", bad=True))
    assert isinstance(error, RecordError) and isinstance(expected, RecordError)
    assert str(error) == str(expected)
    assert (error.source, error.shard, error.place) == (expected.source, expected.shard, expected.place)
    assert error.shard == "one.jsonl"
    assert taken == before > SLOTS


@pytest.mark.parametrize(("function", "kind"), [(fail_late, FunctionError), (exit_late, RunnerError)])
def test_a_failing_function_arrives_with_the_traceback_of_the_other_process(
    tmp_path: Path, function: Any, kind: type[ZephonError]
) -> None:
    taken, error = failure(in_order(tmp_path, "process", function))
    assert type(error) is kind
    assert taken > SLOTS
    assert "too late" in str(error)
    assert f"in {function.__name__}" in "".join([str(error), *getattr(error, "__notes__", [])])


def test_an_error_that_cannot_travel_arrives_as_text(sources: Sources) -> None:
    _, error = failure(made(sources).map(fail_strangely).for_rank(0, 1))
    assert type(error) is RunnerError
    assert "UnlikeAnyOther: cannot be pickled" in str(error)


def test_replayed_data_that_differs_is_an_error_here_too(sources: Sources) -> None:
    _, state = global_batches(small_pipeline(sources), 1, 3)
    saved = decode_lane(state["lane"]["00001"], 1, sources)
    state["lane"]["00001"] = encode_lane(replace(saved, digest="1" * 64))
    stream = made(sources).for_rank(0, 1)
    stream.load_state_dict(state)
    taken, error = failure(stream)
    assert (taken, type(error)) == (0, ReplayError)
    assert str(error).startswith("lane 1: the 6 sequences replayed")


def test_row_groups_that_change_before_the_process_begins_are_named(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", texts_of(200))
    stream = made({"alpha": path}).for_rank(0, 1)
    write_parquet(path, texts_of(280))
    taken, error = failure(stream)
    assert (taken, type(error)) == (0, SourceError)
    assert "files changed between the start of the job and that of its loader's process" in str(error)
    assert "source 'alpha': 4 pieces" in str(error)


def test_a_file_that_is_cut_before_the_process_begins_is_named_where_it_is_read(sources: Sources) -> None:
    stream = made(sources).for_rank(0, 1)
    os.truncate(sources["gamma"], 10)
    _, error = failure(stream)
    assert type(error) is SourceError
    assert "ends at byte 10" in str(error)


def nested() -> Any:
    def inner(record: dict[str, Any]) -> dict[str, Any]:
        return record

    return inner


@pytest.mark.parametrize("function", [lambda record: record, nested()], ids=["lambda", "nested"])
def test_a_function_that_no_other_process_can_import_is_refused_before_anything_starts(
    sources: Sources, function: Any
) -> None:
    pipeline = made(sources).map(function, identity="mine-v1")
    with pytest.raises(ConfigError) as error:
        pipeline.for_rank(0, 1)
    says(error, "the map function mine-v1", "Move it to a module", 'runner = "thread"')
    next(iter(pipeline.options(runner="thread")))


def test_elsewhere_than_on_linux_the_runner_is_refused(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(ConfigError, match="needs Linux"):
        made(sources).for_rank(0, 1)
