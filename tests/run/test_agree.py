"""Ranks that would read different data, or of which one cannot begin, all stop with one and the same error."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.run.ranks import Meeting
from tests.scenarios import corpus, global_batches, rank_steps, small_pipeline, texts_of, write_jsonl
from torchtitan_zephon import ConfigError, Pipeline, RecordError, SourceError, StateError, ZephonError
from torchtitan_zephon.read import one_list
from torchtitan_zephon.read.store import LocalStore
from torchtitan_zephon.run import together
from torchtitan_zephon.run.agree import KINDS, LONGEST_ERROR, PARTS, agree, alone, attempt, gather
from torchtitan_zephon.run.statement import LONGEST, Statement, Table, clipped
from torchtitan_zephon.state import decode_lane, encode_lane

HOST = os.uname().nodename
RANKS = 4


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """A copy of the data for each rank."""
    for rank in range(RANKS):
        corpus(tmp_path / f"rank-{rank}", 120)
    return [tmp_path / f"rank-{rank}" for rank in range(RANKS)]


def made(folder: Path, **options: Any) -> Pipeline:
    sources = {"alpha": folder / "alpha", "gamma": folder / "gamma.jsonl"}
    return small_pipeline(sources, **{"global_batch_size": 8, "local_batch_size": 1, **options})


def outcomes(
    make: Callable[[int], Pipeline], ranks: int = RANKS, *, degree: int = RANKS, state: Any = None
) -> tuple[list[Any], Meeting]:
    """Local batches of the first step on each rank, or its error. Of ``ranks`` every ``degree``-th shares a place."""
    meeting = Meeting(ranks)

    def begin(rank: int, exchange: Any) -> int:
        stream = make(rank).for_rank(rank % degree, degree, exchange=exchange)
        try:
            if state is not None:
                stream.load_state_dict(state(rank))
            return sum(map(len, rank_steps(stream, 1)))
        finally:
            stream.close()

    return meeting.run(begin), meeting


def refusal(found: list[Any], kind: type[ZephonError]) -> str:
    """The one error of all ranks."""
    assert {type(error) for error in found} == {kind}, found
    assert len({str(error) for error in found}) == 1, found
    assert all(error.of_all_ranks for error in found)
    return str(found[0])


# ---- the same data


def test_ranks_that_read_the_same_train_after_four_small_exchanges(folders: list[Path]) -> None:
    found, meeting = outcomes(lambda rank: made(folders[rank]))
    assert found == [2] * RANKS
    for rank, sent in enumerate(meeting.sent):
        assert len(sent) == 4, "who is first, its list; then one when the stream is opened, one before its first batch"
        assert max(sent) < 600
        assert (sent[1] > 0) == (rank == 0)


def test_mesh_peers_of_one_place_train(folders: list[Path]) -> None:
    found, _ = outcomes(lambda rank: made(folders[rank]), degree=2)
    assert found == [4] * RANKS


def test_nothing_is_exchanged_between_the_first_batch_and_the_last(folders: list[Path]) -> None:
    meeting = Meeting(2)

    def read(rank: int, exchange: Any) -> int:
        stream = made(folders[rank]).for_rank(rank, 2, exchange=exchange)
        steps = len(rank_steps(stream, 1))
        before = len(meeting.sent[rank])
        steps += len(rank_steps(stream, 30))
        stream.state_dict()
        stream.close()
        assert len(meeting.sent[rank]) == before
        return steps

    assert meeting.run(read) == [31, 31]


def test_the_batches_are_those_of_ranks_that_did_not_compare(folders: list[Path]) -> None:
    expected, _ = global_batches(made(folders[0]), 2, 3)
    meeting = Meeting(2)

    def read(rank: int, exchange: Any) -> list[bytes]:
        stream = made(folders[rank]).for_rank(rank, 2, exchange=exchange)
        taken = [b.input.tobytes() + b.labels.tobytes() for step in rank_steps(stream, 3) for b in step]
        stream.close()
        return taken

    def plain(rank: int) -> list[bytes]:
        stream = made(folders[0]).for_rank(rank, 2)
        taken = [b.input.tobytes() + b.labels.tobytes() for step in rank_steps(stream, 3) for b in step]
        stream.close()
        return taken

    assert meeting.run(read) == [plain(0), plain(1)]
    assert len(expected) == 3


@pytest.mark.usefixtures("nothing_is_left_behind")
def test_a_stream_in_a_process_of_its_own_compares_too(folders: list[Path]) -> None:
    (folders[1] / "alpha" / "part-2.jsonl").unlink()
    found, _ = outcomes(lambda rank: made(folders[rank]).options(runner="process"), 2, degree=2)
    text = refusal(found, SourceError)
    assert "rank 1 of 2" in text
    assert "part-2.jsonl' on rank 1 of 2 is not there" in text


# ---- other data


def test_a_missing_file_is_named_with_the_rank_and_its_host(folders: list[Path]) -> None:
    missing = folders[2] / "alpha" / "part-1.jsonl"
    size = missing.stat().st_size
    missing.unlink()
    found, _ = outcomes(lambda rank: made(folders[rank]))
    text = refusal(found, SourceError)
    assert text.startswith(
        f"rank 2 of 4 (on {HOST}) cannot read its data, so no rank begins: source 'alpha': {str(missing)!r} on rank 2 "
        f"of 4 is not there; rank 0, which lists the files of all ranks, has {size} bytes, sample "
    )
    assert "Give all ranks the same files" in text


def test_changed_content_of_the_same_size_is_named_with_both_samples(folders: list[Path]) -> None:
    file = folders[3] / "gamma.jsonl"
    text = file.read_bytes()
    at = text.index(b"the")
    file.write_bytes(text[:at] + b"THE" + text[at + 3 :])
    found, _ = outcomes(lambda rank: made(folders[rank]))
    said = refusal(found, SourceError)
    assert "rank 3 of 4" in said
    assert said.count(f"{len(text)} bytes, sample ") == 2


def test_files_that_the_first_rank_does_not_have_are_read_by_none(folders: list[Path]) -> None:
    (folders[0] / "alpha" / "part-1.jsonl").unlink()
    write_jsonl(folders[1] / "alpha" / "extra.jsonl", ["one more"])

    def read(rank: int, folder: Path, exchange: Any) -> Any:
        stream = made(folder).for_rank(rank, 2, exchange=exchange)
        batches = [b.input.tolist() for step in rank_steps(stream, 5) for b in step]
        stream.close()
        return stream.program.identity, batches

    found = Meeting(2).run(lambda rank, exchange: read(rank, folders[rank], exchange))
    assert found == [read(rank, folders[0], alone) for rank in range(2)]


def test_several_odd_ranks_are_counted(folders: list[Path]) -> None:
    for rank in (1, 2):
        (folders[rank] / "alpha" / f"part-{rank}.jsonl").unlink()
    found, _ = outcomes(lambda rank: made(folders[rank]))
    text = refusal(found, SourceError)
    assert "rank 1 of 4" in text
    assert "part-1.jsonl' on rank 1 of 4 is not there" in text
    assert text.endswith("1 other ranks failed in other ways.")


def test_a_file_of_a_later_segment_is_proved_where_it_is_read(tmp_path: Path) -> None:
    """Sources so large beside a segment that the sample and the first segments meet few of the files."""
    for rank in range(2):
        for part in range(400):
            write_jsonl(tmp_path / f"rank-{rank}" / f"{part:03d}.jsonl", texts_of(20, 20 * part))
    names = sorted(path.name for path in (tmp_path / "rank-1").iterdir())
    meeting = Meeting(2)

    def pipeline(rank: int) -> Pipeline:
        return small_pipeline({"s": tmp_path / f"rank-{rank}"}, global_batch_size=8, local_batch_size=1)

    def read(rank: int, exchange: Any) -> tuple[int, str]:
        stream = pipeline(rank).for_rank(rank, 2, exchange=exchange)
        steps = len(rank_steps(stream, 1))
        if rank == 1:
            unproved = stream.program.sources[0].reader.manifest.store._unproved  # type: ignore[attr-defined]
            assert 0 < len(unproved) < len(names)
            for name in list(unproved):  # workers are proving more of them
                (tmp_path / "rank-1" / name).unlink()
        try:
            for _ in range(2000):
                steps += len(rank_steps(stream, 1))
                if rank == 0 and steps > 20:
                    break
        except SourceError as error:
            return steps, str(error)
        finally:
            stream.close()
        return steps, ""

    (_, nothing), (steps, text) = meeting.run(read)  # type: ignore[misc]
    assert nothing == ""
    assert steps > 1
    assert "on rank 1 of 2 is not there; rank 0, which lists the files of all ranks, has" in text


def test_the_first_rank_lists_and_no_other_looks_at_more_than_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in range(600):
        write_jsonl(tmp_path / "data" / f"{part:03d}.jsonl", texts_of(8, 8 * part))
    calls: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Any]:
        real = getattr(LocalStore, name)

        def call(self: LocalStore, *args: Any) -> Any:
            calls[name] += 1
            return real(self, *args)

        return call

    for name in ("list", "version", "open", "read", "may_read"):
        monkeypatch.setattr(LocalStore, name, counted(name))
    meeting = Meeting(RANKS)

    def begin(rank: int, exchange: Any) -> None:
        made = small_pipeline({"s": tmp_path / "data"}, global_batch_size=8, local_batch_size=1)
        made.for_rank(rank, RANKS, exchange=exchange)

    assert meeting.run(begin) == [None] * RANKS
    assert calls == {"list": 1, "open": 600}


def test_ranks_wait_for_a_listing_that_takes_longer_than_an_exchange_may(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "STILL_HERE_S", 0.01)
    real = one_list.list_source

    def slow(*args: Any) -> Any:
        time.sleep(0.1)
        return real(*args)

    monkeypatch.setattr(one_list, "list_source", slow)
    found, meeting = outcomes(lambda rank: made(folders[rank]))
    assert found == [2] * RANKS
    assert len(meeting.sent[0]) > 8


@pytest.mark.parametrize("kind", [SourceError, LookupError])
def test_an_error_of_the_rank_that_lists_is_that_of_all(
    kind: type[Exception], folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> Any:
        raise kind("nothing can be listed")

    monkeypatch.setattr(one_list, "list_source", broken)
    found, _ = outcomes(lambda rank: made(folders[rank]))
    assert type(found[0]) is kind
    assert str(found[0]) == "nothing can be listed"
    for error in found[1:]:
        assert type(error) is SourceError
        assert str(error).endswith("nothing can be listed")
        assert error.of_all_ranks


def test_a_source_that_the_first_rank_does_not_have_is_named(folders: list[Path]) -> None:
    def odd(rank: int) -> Pipeline:
        return made(folders[rank]) if rank != 2 else small_pipeline({"beta": folders[2] / "alpha"}, global_batch_size=8)

    text = refusal(outcomes(odd)[0], SourceError)
    assert "rank 2 of 4" in text
    assert "source 'beta' is read by this rank, and rank 0, which lists the files of all ranks, reads no such" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [({"seed": 8}, "seed is 8; the other 3 have 7"), ({"seq_len": 64}, "seq_len is 64; the other 3 have 32"),
     ({"weights": {"alpha": 3.0, "gamma": 1.0}}, "sources.alpha.weight is 0.75; the other 3 have 0.5")],
)  # fmt: skip
def test_another_recipe_is_named_by_its_field(folders: list[Path], options: dict[str, Any], said: str) -> None:
    found, _ = outcomes(lambda rank: made(folders[rank], **options if rank == 2 else {}))
    text = refusal(found, ConfigError)
    assert f"rank 2 of 4 (on {HOST}): {said}" in text


def test_another_layout_is_named(folders: list[Path]) -> None:
    found, _ = outcomes(lambda rank: made(folders[rank], global_batch_size=16 if rank == 1 else 8))
    assert "rank 1 of 4" in (text := refusal(found, ConfigError))
    assert "global_batch_size is 16; the other 3 have 8" in text


def test_another_version_of_a_package_that_decides_tokens_is_named_first(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchtitan_zephon.run import statement

    (folders[1] / "alpha" / "part-1.jsonl").unlink()
    calls = itertools.count()
    monkeypatch.setattr(statement, "_version", lambda name: f"1.{next(calls)}" if name == "tokenizers" else "1.0")
    text = refusal(outcomes(lambda rank: made(folders[rank]), 2, degree=2)[0], ConfigError)
    assert "version of tokenizers is 1." in text
    assert "Install the same versions" in text


def test_an_estimate_that_differs_is_told_as_such(folders: list[Path]) -> None:
    def impure(rank: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return lambda record: {"text": record["text"] * (1 + rank)}

    found, _ = outcomes(lambda rank: made(folders[rank]).map(impure(rank % 2), identity="twice"), 2, degree=2)
    text = refusal(found, SourceError)
    assert "tokens per MiB of source 'alpha'" in text
    assert "not pure" in text


# ---- the place


def saved(folder: Path, steps: int) -> dict[str, Any]:
    return global_batches(made(folder), 1, steps)[1]


def test_ranks_that_resume_from_the_same_place_train(folders: list[Path]) -> None:
    state = saved(folders[0], 3)
    found, _ = outcomes(lambda rank: made(folders[rank]), state=lambda rank: state)
    assert found == [2] * RANKS


def test_a_rank_with_another_checkpoint_is_named_with_both_steps(folders: list[Path]) -> None:
    states = [saved(folders[0], 2 if rank == 3 else 3) for rank in range(RANKS)]
    found, _ = outcomes(lambda rank: made(folders[rank]), state=lambda rank: states[rank])
    text = refusal(found, StateError)
    assert f"rank 3 of 4 (on {HOST}): lane_sequences is 4; the other 3 have 6" in text
    assert "see the same checkpoint folder" in text


def test_mesh_peers_with_other_lane_states_are_found(folders: list[Path]) -> None:
    """Same recipe, same step, another digest: as if from a checkpoint of another run."""
    state = saved(folders[0], 3)
    lane = decode_lane(state["lane"]["00002"], 2, ["alpha", "gamma"])
    changed = encode_lane(dataclasses.replace(lane, digest="f" * 64))
    other = {**state, "lane": {**state["lane"], "00002": changed}}
    found, _ = outcomes(lambda rank: made(folders[rank]), degree=2, state=lambda rank: other if rank == 3 else state)
    text = refusal(found, StateError)
    assert f"rank 3 of 4 (on {HOST}): lane 2 is 6 sequences, digest ffff" in text
    assert f"; rank 1 has 6 sequences, digest {lane.digest}" in text


def test_a_place_that_two_processes_take_is_named(folders: list[Path]) -> None:
    meeting = Meeting(2)

    def begin(rank: int, exchange: Any) -> None:
        made(folders[rank]).for_rank(1, 2, exchange=exchange)

    text = refusal(meeting.run(begin), ConfigError)
    assert "dp rank 0 of 2 is taken by no process, dp rank 1 by ranks 0, 1 of 2" in text


# ---- a rank that fails


def test_a_rank_whose_source_is_missing_tells_the_others(folders: list[Path]) -> None:
    folders[1].rename(folders[1].with_name("elsewhere"))
    found, _ = outcomes(lambda rank: made(folders[rank]))
    text = refusal(found, SourceError)
    assert text.startswith(f"rank 1 of 4 (on {HOST}) cannot read its data, so no rank begins: source 'alpha': there is")


def test_a_rank_that_meets_a_broken_record_while_measuring_tells_the_others(folders: list[Path]) -> None:
    for folder in folders:
        with open(folder / "gamma.jsonl", "a") as file:
            file.write('{"text": "odd"}\n')

    def broken(rank: int) -> Callable[[dict[str, Any]], bool]:
        return lambda record: True if rank != 2 or record["text"] != "odd" else 1 / 0  # type: ignore[return-value]

    found, _ = outcomes(lambda rank: made(folders[rank]).filter(broken(rank), identity="odd"))
    assert "rank 2 of 4" in (text := str(found[0]))
    assert "division by zero" in text
    assert [str(error) for error in found] == [text] * RANKS
    assert isinstance(found[2].__cause__, ZephonError)


def test_ranks_that_all_fail_alike_raise_their_own_error(folders: list[Path]) -> None:
    found, _ = outcomes(lambda rank: made(folders[0].parent / "nowhere"))
    text = refusal(found, SourceError)
    assert text.startswith("source 'alpha': there is no file or folder")


def test_the_failing_rank_keeps_its_own_kind_of_error_and_the_others_hear_of_it() -> None:
    def look(rank: int) -> Callable[[], None]:
        def fail() -> None:
            if rank == 1:
                raise LookupError("a mistake of ours")

        return fail

    found = Meeting(3).run(lambda rank, exchange: agree(exchange, look(rank), lambda _: Statement()))
    assert type(found[1]) is LookupError
    for rank in (0, 2):
        assert type(found[rank]) is SourceError
        assert "cannot read its data, so no rank begins: LookupError: a mistake of ours" in str(found[rank])


def test_other_failures_are_counted_and_a_long_one_is_cut() -> None:
    texts = ["", "x" * 2 * LONGEST_ERROR, "y"]

    def look(rank: int) -> Callable[[], None]:
        def fail() -> None:
            if rank:
                raise RecordError(texts[rank], source="s", shard="f", place="line 1")

        return fail

    found = Meeting(3).run(lambda rank, exchange: agree(exchange, look(rank), lambda _: Statement()))
    text = refusal(found, SourceError)
    assert "rank 1 of 3" in text
    assert text.endswith("1 other ranks failed in other ways.")
    assert len(text) < LONGEST_ERROR + 300


def test_what_is_gathered_comes_in_the_order_of_ranks_and_failures_stop_all() -> None:
    assert (
        Meeting(3).run(lambda rank, exchange: gather(exchange, lambda: [rank, rank * rank]))
        == [[[0, 0], [1, 1], [2, 4]]] * 3
    )
    assert gather(alone, lambda: 7) == [7]

    def look(rank: int) -> Callable[[], int]:
        def fail() -> int:
            if rank:
                raise SourceError("gone")
            return rank

        return fail

    text = refusal(Meeting(2).run(lambda rank, exchange: gather(exchange, look(rank))), SourceError)
    assert text.endswith("cannot read its data, so no rank begins: gone")


def test_an_attempt_tells_later_what_it_found_at_once() -> None:
    calls: Iterator[int] = itertools.count()
    later = attempt(lambda: next(calls))
    assert next(calls) == 1
    assert [later(), later()] == [0, 0]

    def fail() -> int:
        raise SourceError("gone")

    later = attempt(fail)
    for _ in range(2):
        with pytest.raises(SourceError, match="gone"):
            later()


def test_a_rank_alone_compares_nothing_and_its_error_is_its_own() -> None:
    def say(_: object) -> Statement:
        raise AssertionError("a statement costs a hash of every shard")

    assert agree(alone, lambda: 3, say) == 3
    with pytest.raises(ZeroDivisionError):
        agree(alone, lambda: 1 // 0, say)


# ---- many shards


def listing(shards: int, **changed: str | None) -> Table:
    table = {f"sources.s.shards: '{n:06d}.jsonl'": f"{n} bytes, sample {n:016x}" for n in range(shards)}
    for name, value in changed.items():
        key = f"sources.s.shards: '{name.removeprefix('n')}.jsonl'"
        if value is None:
            del table[key]
        else:
            table[key] = value
    return table


@pytest.mark.parametrize("change", [None, "7 bytes, sample ff"])
def test_one_shard_of_a_hundred_thousand_is_found_in_few_bytes(change: str | None) -> None:
    meeting = Meeting(3)
    tables = [listing(100_000), listing(100_000, n054321=change), listing(100_000)]
    found = meeting.run(
        lambda rank, exchange: agree(
            exchange, lambda: None, lambda _: Statement(tables={"shards": tables[rank]}, dp_rank=rank, dp_degree=3)
        )
    )
    assert "'054321.jsonl' is" in (text := refusal(found, SourceError))
    assert "rank 1 of 3" in text
    for sent in meeting.sent:
        assert len(sent) <= 4
        assert max(sent) < 6000


def test_a_listing_that_one_rank_lacks_altogether_is_bounded_too() -> None:
    meeting = Meeting(2)
    tables = [listing(3000), listing(0)]
    found = meeting.run(
        lambda rank, exchange: agree(exchange, lambda: None, lambda _: Statement(tables={"shards": tables[rank]}))
    )
    assert "is missing; rank 0 has" in refusal(found, SourceError)
    assert max(map(max, meeting.sent)) < 6000


@pytest.mark.parametrize("shards", [1, PARTS - 1, PARTS, PARTS + 1, 5 * PARTS])
def test_a_difference_is_found_in_tables_of_any_size(shards: int) -> None:
    tables = [listing(shards), listing(shards, n000000="changed")]
    found = Meeting(2).run(
        lambda rank, exchange: agree(exchange, lambda: None, lambda _: Statement(tables={"shards": tables[rank]}))
    )
    assert "'000000.jsonl' is changed; rank 0 has 0 bytes" in refusal(found, SourceError)


def test_every_kind_of_difference_has_an_error_and_a_way_out() -> None:
    for kind, (error, way_out) in KINDS.items():
        said = [
            Statement(lanes={"a": str(r)}) if kind == "lanes" else Statement(tables={kind: {"a": str(r)}})
            for r in range(2)
        ]
        found = Meeting(2).run(lambda rank, exchange: agree(exchange, lambda: None, lambda _: said[rank]))  # noqa: B023
        assert refusal(found, error).endswith(way_out)


def test_a_value_too_long_to_send_keeps_its_beginning_and_a_hash() -> None:
    assert clipped("short") == "short"
    a, b = clipped("x" * 5000), clipped("x" * 4999 + "y")
    assert len(a) <= LONGEST
    assert a != b
    assert a.startswith("xxx")


def test_names_that_are_not_unicode_travel() -> None:
    tables = [{"sources.s.shards: 'a\udcff.jsonl'": "1 bytes"}, {}]
    found = Meeting(2).run(
        lambda rank, exchange: agree(exchange, lambda: None, lambda _: Statement(tables={"shards": tables[rank]}))
    )
    assert "is missing; rank 0 has 1 bytes" in refusal(found, SourceError)


def test_the_order_in_which_a_rank_states_its_entries_does_not_matter() -> None:
    tables = [{"a": "1", "b": "2"}, {"b": "2", "a": "1"}]
    found = Meeting(2).run(
        lambda rank, exchange: agree(exchange, lambda: rank, lambda _: Statement(tables={"recipe": tables[rank]}))
    )
    assert found == [0, 1]
