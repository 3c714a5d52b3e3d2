"""Chunking: every byte of a JSONL source and every row of a Parquet source is in exactly one chunk."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.strategies import chunk_targets, jsonl_pieces, parquet_pieces
from torchtitan_zephon.plan.chunking import CHUNKS_PER_LANE, RUN_CHUNKS, Chunk, ChunkTable, Pieces, cut


def epoch_runs(table: ChunkTable, epoch: int = 0) -> Iterator[list[Chunk]]:
    """The chunks of every run, in shard order."""
    for run in range(table.num_runs):
        chunks, last = [], False
        while not last:
            chunk, last = table.chunk(epoch, run, len(chunks))
            chunks.append(chunk)
        yield chunks


def check_cover(table: ChunkTable) -> None:
    """All units of all pieces, each in one chunk, in order; the planned sizes add up."""
    chunks = [chunk for run in epoch_runs(table) for chunk in run]
    assert len(chunks) == table.num_chunks
    place = dict.fromkeys(range(len(table.pieces.units)), 0)
    for chunk in chunks:
        assert chunk.start == place[chunk.piece]
        assert chunk.stop > chunk.start
        place[chunk.piece] = chunk.stop
    assert list(place.values()) == table.pieces.units.tolist()
    assert [c.piece for c in chunks] == sorted(c.piece for c in chunks)
    numbers = [c.number for c in chunks]
    assert numbers == sorted(set(numbers))
    assert all(c.num_bytes > 0 and c.source == table.source and c.epoch == 0 for c in chunks)


@given(jsonl_pieces(3000), st.sampled_from([7, 100, 4096, 5000]), st.integers(1, 40))
def test_every_byte_of_a_jsonl_source_is_in_one_chunk(pieces: Pieces, target: int, lanes: int) -> None:
    table = cut(2, pieces, target, lanes)
    check_cover(table)
    chunks = [chunk for run in epoch_runs(table) for chunk in run]
    assert all(chunk.num_bytes == chunk.stop - chunk.start <= table.chunk_bytes for chunk in chunks)
    assert sum(chunk.num_bytes for chunk in chunks) == pieces.sizes.sum()
    assert table.num_runs == table.num_chunks


@given(parquet_pieces(), st.sampled_from([4096, 65_536, 2**20]), st.integers(1, 40))
def test_every_row_of_a_parquet_source_is_in_one_chunk(pieces: Pieces, target: int, lanes: int) -> None:
    table = cut(0, pieces, target, lanes)
    check_cover(table)
    for run in epoch_runs(table):
        assert len(run) <= min(table.run_chunks, RUN_CHUNKS)
        assert len({chunk.piece for chunk in run}) == 1
        assert all(a.stop == b.start for a, b in itertools.pairwise(run))


@given(st.one_of(jsonl_pieces(), parquet_pieces()), chunk_targets, st.integers(1, 64))
def test_a_chunk_is_at_most_the_target_and_at_least_4_kib(pieces: Pieces, target: int, lanes: int) -> None:
    table = cut(0, pieces, target, lanes)
    assert min(target, 4096) <= table.chunk_bytes <= target


@given(jsonl_pieces(), st.integers(1, 64))
def test_a_source_has_several_chunks_a_lane_where_4_kib_chunks_allow(pieces: Pieces, lanes: int) -> None:
    table = cut(0, pieces, 2**20, lanes)
    assert table.num_chunks >= min(CHUNKS_PER_LANE * lanes, pieces.sizes.sum() // 4096)


def test_a_lane_gets_four_chunks_of_a_source_below_the_target() -> None:
    sizes = np.array([2**20], np.int64)
    assert cut(0, Pieces(sizes, sizes, True), target_bytes=2**18, lanes=8).chunk_bytes == 2**20 // (8 * 4)


def parquet(*groups: tuple[int, int]) -> Pieces:
    columns = np.array(groups, np.int64)
    return Pieces(sizes=columns[:, 0], units=columns[:, 1], runs_of_one=False)


def test_a_row_group_far_above_the_target_is_runs_of_neighbouring_chunks() -> None:
    table = cut(0, parquet((64 * 2**20, 100_000)), target_bytes=2**18, lanes=2)
    runs = list(epoch_runs(table))
    assert table.num_chunks == 256
    assert [len(run) for run in runs] == [RUN_CHUNKS] * 16


def test_runs_are_shorter_where_long_ones_would_leave_lanes_without() -> None:
    table = cut(0, parquet((8 * 2**20, 10_000)), target_bytes=2**18, lanes=4)
    assert table.run_chunks == 2
    assert table.num_runs == CHUNKS_PER_LANE * 4


def test_the_last_run_of_a_row_group_is_what_is_left() -> None:
    table = cut(0, parquet((10 * 2**20, 1000), (2**20, 50)), target_bytes=2**18, lanes=1)
    runs = list(epoch_runs(table))
    assert [len(run) for run in runs] == [11, 11, 11, 7, 4]


def test_a_row_group_has_no_more_chunks_than_rows() -> None:
    table = cut(0, parquet((50 * 2**20, 3)), target_bytes=2**18, lanes=1)
    assert [c.stop - c.start for run in epoch_runs(table) for c in run] == [1, 1, 1]


def test_an_empty_file_has_no_chunk() -> None:
    sizes = np.array([0, 9000, 0], np.int64)
    table = cut(0, Pieces(sizes=sizes, units=sizes, runs_of_one=True), target_bytes=2**20, lanes=1)
    assert {chunk.piece for run in epoch_runs(table) for chunk in run} == {1}
    assert table.typical_chunk_bytes == 3000


def test_an_appended_file_keeps_the_chunks_it_had() -> None:
    def chunks(size: int) -> list[Chunk]:
        sizes = np.array([size], np.int64)
        return [c for run in epoch_runs(cut(0, Pieces(sizes, sizes, True), 4096, 1)) for c in run]

    before, after = chunks(50_000), chunks(70_000)
    assert after[: len(before) - 1] == before[:-1]


def test_a_typical_chunk_is_the_mean_of_all_files() -> None:
    table = cut(0, parquet((8192, 10), (4096, 10), (1024, 10)), target_bytes=4096, lanes=1)
    assert (table.num_chunks, table.typical_chunk_bytes) == (4, 3328)


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_every_epoch_has_the_same_cuts(epoch: int) -> None:
    table = cut(0, parquet((3 * 2**20, 999), (2**19, 17)), target_bytes=2**17, lanes=2)
    plain = [[c._replace(epoch=0) for c in run] for run in epoch_runs(table, epoch)]
    assert plain == list(epoch_runs(table))
    assert {c.epoch for run in epoch_runs(table, epoch) for c in run} == {epoch}
