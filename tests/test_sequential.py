"""Sources whose files can only be read from the front: the same promise, whatever they are packed with."""

from __future__ import annotations

import errno
import gzip
import io
import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.scenarios import global_batches, small_pipeline, texts_of, write_jsonl
from tests.sequential import PACKS, in_members, records_of, table_of, tape_of
from torchtitan_zephon import Pipeline, SourceConfig
from torchtitan_zephon.plan.chunking import ChunkTable
from torchtitan_zephon.plan.cursor import Endless
from torchtitan_zephon.plan.slices import TapePlace
from torchtitan_zephon.read.sequential import SequentialReader
from torchtitan_zephon.read.source import open_source
from torchtitan_zephon.read.store import LocalStore
from torchtitan_zephon.records import RECORD, Record
from torchtitan_zephon.state import decode_lane

STEPS = 10


def write_packed(path: Path, texts: list[str], seed: int = 0, members: bool = True) -> Path:
    """``path`` names a packed JSONL file; its plain twin is not kept."""
    plain = write_jsonl(path.with_suffix(""), texts)
    pack = PACKS[path.suffix]
    path.write_bytes(in_members(plain.read_bytes(), pack, seed) if members else pack(plain.read_bytes()))
    plain.unlink()
    return path


@pytest.fixture(params=PACKS)
def packed(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Five files, one of them empty when unpacked, one with a record longer than several slices."""
    suffix = request.param
    for part, count in enumerate((150, 1, 0, 80, 33)):
        texts = texts_of(count, first=1000 * part)
        if part == 3:
            texts[40] = f"{3040}: " + "long " * 3000
        write_packed(tmp_path / "packed" / f"{part}.jsonl{suffix}", texts, seed=part)
    return tmp_path / "packed"


def mixed(packed: Path, **options: Any) -> Pipeline:
    """The packed source beside one that is read anywhere."""
    plain = packed.parent / "plain.jsonl"
    if not plain.exists():
        write_jsonl(plain, texts_of(200, first=9000))
    given = {"lanes": 8, "global_batch_size": 16, "flush_every_sequences": 5, "local_batch_size": 1, **options}
    return small_pipeline({"packed": packed, "plain": plain}, **given)


def test_packed_files_keep_the_promise_at_every_step_and_on_every_number_of_ranks(packed: Path) -> None:
    expected, last = global_batches(mixed(packed), 1, STEPS)
    in_tapes = 0
    for k in range(STEPS + 1):
        degree, other, workers = 2 ** (k % 4), 2 ** (3 - k % 4), (1, 2, 5)[k % 3]
        before, state = global_batches(mixed(packed, workers=workers), degree, k)
        after, end = global_batches(mixed(packed), other, STEPS - k, state)
        assert (before + after, end) == (expected, last), k
        for n, data in enumerate(state["lane"].values()):
            in_tapes += decode_lane(data, n, ["packed", "plain"]).start.tapes.get("packed", TapePlace()).border > 0
    assert in_tapes > 8, "hardly a segment began inside a packed file"


def test_one_pass_over_packed_files_has_each_record_once_and_ends_alike_everywhere(packed: Path) -> None:
    def make() -> Pipeline:
        return mixed(packed, repeat=False, lanes=4)

    expected, last = global_batches(make(), 1, 10**6)
    assert len(expected) > 10
    for degree in (2, 4):
        assert global_batches(make(), degree, 10**6) == (expected, last)
    for k in (1, 5, len(expected) - 1):
        before, state = global_batches(make(), 2, k)
        after, end = global_batches(make(), 4, 10**6, state)
        assert (before + after, end) == (expected, last)
    seen = Counter[tuple[int, ...]]()
    stream = make().for_rank(0, 1)
    for batch in stream:
        for sequence in batch.sequences:
            seen.update({tuple(piece[1:4]) for piece in sequence.pieces.tolist() if piece[1] == 0})
    assert stream.balance.read.records == 150 + 1 + 80 + 33 + 200
    assert len(seen) == 150 + 1 + 80 + 33


@pytest.mark.parametrize("lanes", [1, 3, 8])
def test_every_record_is_in_one_lanes_tape_once_an_epoch(packed: Path, lanes: int) -> None:
    source = open_source("s", SourceConfig(path=str(packed)))
    table = table_of(source, lanes, 4096)
    seen = Counter[tuple[int, int]]()
    for lane in range(lanes):
        tape, plan = tape_of(source, lane, lanes, 4096), Endless(lane, lanes, table.num_runs, None)
        number = 0
        while True:
            planned, _ = table.chunk(0, 0, number)
            number += 1
            found = tape.turn().take(planned)
            if plan.run(found.behind.runs)[0]:
                break
            documents, bad = source.read(found.chunk, None, found.cut)
            assert not bad
            seen.update(map(tuple, documents.origin[:, 1:3].tolist()))
    assert set(seen.values()) == {1}
    assert len(seen) == 150 + 1 + 80 + 33


def plain_slices(path: Path, slice_bytes: int) -> list[list[Record]]:
    """The records of a plain file, chunk by chunk."""
    source = open_source("s", SourceConfig(path=str(path)))
    pieces = source.reader.pieces()
    count = -(-int(pieces.sizes[0]) // slice_bytes)
    table = ChunkTable(0, slice_bytes, 1, pieces, np.array([count]), np.array([0, count]))
    return [source.read(table.chunk(0, k, 0)[0], None)[0].values[RECORD] for k in range(count)]


@pytest.mark.parametrize("suffix", PACKS)
@pytest.mark.parametrize("slice_bytes", [4096, 5000])
def test_a_packed_file_and_its_plain_twin_have_the_same_records_in_the_same_slices(
    tmp_path: Path, suffix: str, slice_bytes: int
) -> None:
    texts = texts_of(300)
    texts[100] = "long " * 4000
    texts[101] = "exact"
    plain = write_jsonl(tmp_path / "plain.jsonl", texts)
    data = plain.read_bytes()
    for seed, ending in enumerate((b"", b"\n", b'{"id": 300, "text": "no line end"}')):
        plain.write_bytes(data + ending)
        twin = tmp_path / f"twin.jsonl{suffix}"
        twin.write_bytes(in_members(data + ending, PACKS[suffix], seed))
        assert records_of(twin, slice_bytes) == (plain_slices(plain, slice_bytes), [])


@pytest.mark.parametrize("suffix", PACKS)
def test_a_tape_goes_on_from_any_place_as_if_it_had_never_stopped(tmp_path: Path, suffix: str) -> None:
    for part in range(2):
        write_packed(tmp_path / f"{part}.jsonl{suffix}", texts_of(200, first=1000 * part), seed=part)
    source = open_source("s", SourceConfig(path=str(tmp_path)))
    assert isinstance(source.reader, SequentialReader)
    table = table_of(source, 3, 4096)
    tape = tape_of(source, 1, 3, 4096)
    taken = [tape.turn().take(table.chunk(0, 0, k)[0]) for k in range(25)]
    assert max(found.behind.runs for found in taken) > 2
    assert any(found.behind.unpacked for found in taken), "no place inside a file was entered"
    for k in range(24):
        later = tape_of(source, 1, 3, 4096, taken[k].behind)
        assert later.turn().take(table.chunk(0, 0, k + 1)[0]) == taken[k + 1]


def test_a_slice_in_two_parts_is_the_slice(tmp_path: Path) -> None:
    source = open_source("s", SourceConfig(path=str(write_packed(tmp_path / "a.jsonl.gz", texts_of(200)))))
    assert isinstance(source.reader, SequentialReader)
    whole, _ = table_of(source, 1, 4096).chunk(0, 0, 0)
    tape, halves = tape_of(source, 0, 1, 4096), tape_of(source, 0, 1, 4096)
    for parts in ((1, 2), (1, 5000), (4999, 5000)):
        found = tape.turn().take(whole)
        first, second = (halves.turn().take(part) for part in whole.parts(*parts))
        assert first.cut.data + second.cut.data == found.cut.data
        assert second.behind == found.behind


def test_a_fault_that_passes_loses_and_repeats_nothing(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, last = global_batches(mixed(packed), 1, 4)
    rng, faults = random.Random(5), [0]

    class Faulty(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            if rng.random() < 0.1:
                faults[0] += 1
                raise OSError(errno.ESTALE, "Stale file handle")
            return super().read(size) or b""

    monkeypatch.setattr(LocalStore, "open", lambda store, name: Faulty(store.path(name)))
    monkeypatch.setattr("torchtitan_zephon.read.retry.WAITS_S", (0.0,) * 50)
    assert global_batches(mixed(packed), 1, 4) == (expected, last)
    assert faults[0] > 3


def test_the_loaders_own_process_reads_packed_files_alike_and_goes_on_from_their_middle(tmp_path: Path) -> None:
    path = write_packed(tmp_path / "packed" / "0.jsonl.zst", texts_of(300))
    expected, last = global_batches(mixed(path, lanes=2), 1, 9)
    before, state = global_batches(mixed(path, lanes=2).options(runner="process"), 2, 6)
    starts = [decode_lane(data, n, ["packed", "plain"]).start for n, data in enumerate(state["lane"].values())]
    assert any(start.tapes["packed"].border for start in starts)
    after, end = global_batches(mixed(path, lanes=2).options(runner="process"), 1, 3, state)
    assert (before + after, end) == (expected, last)


def test_a_turn_waits_for_those_before_it(tmp_path: Path) -> None:
    source = open_source("s", SourceConfig(path=str(write_packed(tmp_path / "a.jsonl.gz", texts_of(200)))))
    table, alone, shared = table_of(source, 1, 4096), tape_of(source, 0, 1, 4096), tape_of(source, 0, 1, 4096)
    chunks = [table.chunk(0, 0, k)[0] for k in range(2)]
    in_order = [alone.turn().take(chunk) for chunk in chunks]
    first, second = shared.turn(), shared.turn()
    with ThreadPoolExecutor(1) as threads:
        later = threads.submit(second.take, chunks[1])
        with pytest.raises(TimeoutError):
            later.result(0.1)
        assert [first.take(chunks[0]), later.result(10)] == in_order


def test_what_the_sample_held_open_is_closed_once_tapes_read(packed: Path) -> None:
    stream = mixed(packed).for_rank(0, 1)
    reader = next(source.reader for source in stream.program.sources if source.name == "packed")
    assert isinstance(reader, SequentialReader)
    stream.program.measure()
    assert len(reader._streams) > 0
    next(iter(stream))
    assert len(reader._streams) == 0
    stream.close()


def test_each_record_of_a_line_is_placed_in_words(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(json.dumps({"text": t}).encode() + b"\n" for t in texts_of(50)) + b"{no\n"))
    stream = small_pipeline({"s": path}, lanes=1, global_batch_size=1, local_batch_size=1).for_rank(0, 1)
    with pytest.raises(Exception, match=r"source 's', shard 'a\.jsonl\.gz', line at unpacked byte \d+"):
        for _, _ in zip(stream, range(300), strict=False):
            pass
