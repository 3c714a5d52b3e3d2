"""A lane's plan: over one epoch all lanes together read each chunk of each source exactly once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.strategies import chunk_tables
from torchtitan_zephon.plan.chunking import Chunk, ChunkTable, Pieces, cut
from torchtitan_zephon.plan.cursor import Dealt, Endless, LaneRuns, lane_offsets, order_keys
from torchtitan_zephon.plan.keyed import permutation
from torchtitan_zephon.plan.mixture import Begin, Mixture
from torchtitan_zephon.plan.segments import LanePlan, SourcePlace


def plan_of(
    tables: list[ChunkTable], lane: int, lanes: int, *, repeat: bool, shuffle: bool = True, begin: Begin | None = None
) -> LanePlan:
    """An even mixture of ``tables`` in one endless segment, a token a byte; by default the first chunk is whole."""
    names = [f"s{i}" for i in range(len(tables))]
    keys = order_keys(5, names)
    runs: list[Endless | Dealt] = []
    for s, table in enumerate(tables):
        first = (lane - 3 * s) % lanes
        if repeat:
            runs.append(Endless(first, lanes, table.num_runs, keys[s] if shuffle else None))
        else:
            own = np.arange(first, table.num_runs, lanes)
            runs.append(Dealt(own[permutation(keys[s], len(own))] if shuffle else own))
    return LanePlan(
        runs=LaneRuns(lane, tuple(tables), tuple(runs), begin or Begin(0, 1, 1)),
        mixture=Mixture((1,) * len(tables), (lane,) * len(tables)),
        tokens_per_mib=(2**20,) * len(tables),
        segment_tokens=2**62,
        measured=False,
    )


def chunks_of(plan: LanePlan, most: int = 100_000) -> list[Chunk]:
    """The first ``most`` chunks of ``plan``, or all."""
    (place, shares), chunks = plan.begin((SourcePlace(),) * len(plan.tokens_per_mib)), []
    while len(chunks) < most and (planned := plan.next(place, shares)):
        chunks.append(planned.chunk)
        place = planned.behind
    return chunks


def all_chunks(table: ChunkTable, epoch: int = 0) -> list[Chunk]:
    """Every chunk of one epoch, in shard order."""
    found = []
    for run in range(table.num_runs):
        last = False
        k = 0
        while not last:
            chunk, last = table.chunk(epoch, run, k)
            found.append(chunk)
            k += 1
    return found


def jsonl_table(num_bytes: int, lanes: int, source: int = 0) -> ChunkTable:
    sizes = np.array([num_bytes], np.int64)
    return cut(source, Pieces(sizes, sizes, True), 4096, lanes)


@given(st.data(), st.integers(1, 9), st.booleans())
def test_a_finite_pass_reads_each_chunk_once(data: st.DataObject, lanes: int, shuffle: bool) -> None:
    tables = [data.draw(chunk_tables(s, lanes)) for s in range(data.draw(st.integers(1, 3)))]
    read = [
        chunk
        for lane in range(lanes)
        for chunk in chunks_of(plan_of(tables, lane, lanes, repeat=False, shuffle=shuffle))
    ]
    assert Counter(read) == Counter(chunk for table in tables for chunk in all_chunks(table))


@given(st.data(), st.integers(1, 9), st.booleans())
def test_a_repeating_stream_reads_each_chunk_once_an_epoch(data: st.DataObject, lanes: int, shuffle: bool) -> None:
    table = data.draw(chunk_tables(0, lanes))
    read: Counter[Chunk] = Counter()
    for lane in range(lanes):
        plan = plan_of([table], lane, lanes, repeat=True, shuffle=shuffle)
        # Enough to be through with three epochs in every lane.
        read.update(chunks_of(plan, table.run_chunks * (4 * table.num_runs // lanes + 4)))
    for epoch in range(3):
        assert Counter({c: n for c, n in read.items() if c.epoch == epoch}) == Counter(all_chunks(table, epoch))


@pytest.mark.parametrize("lanes", [2, 5, 64])
def test_a_source_smaller_than_the_lanes_still_feeds_every_lane(lanes: int) -> None:
    table = jsonl_table(5000, lanes)
    assert table.num_runs == 2
    firsts = [chunks_of(plan_of([table], lane, lanes, repeat=True), 1)[0] for lane in range(lanes)]
    assert Counter(c.epoch for c in firsts) == Counter(lane // 2 for lane in range(lanes))


def test_without_shuffling_lanes_take_turns_in_file_order() -> None:
    table = jsonl_table(4096 * 12, 3)
    for lane in range(3):
        numbers = [c.number for c in chunks_of(plan_of([table], lane, 3, repeat=False, shuffle=False))]
        assert numbers == [lane, lane + 3, lane + 6, lane + 9]


def test_many_sources_of_one_chunk_are_spread_over_the_lanes() -> None:
    offsets = lane_offsets(5, [f"s{i}" for i in range(800)], 8)
    counts = np.bincount(offsets, minlength=8)
    assert len(counts) == 8
    assert counts.min() > 70
    assert lane_offsets(5, ["s1"], 8) == offsets[1:2]  # a source's offset does not depend on the others


def test_every_epoch_and_every_source_has_an_order_of_its_own() -> None:
    tables = [jsonl_table(4096 * 20, 1, source) for source in (0, 1)]
    read = chunks_of(plan_of(tables, 0, 1, repeat=True), 80)
    orders = [
        [c.number for c in read if (c.source, c.epoch) == (source, epoch)] for source in (0, 1) for epoch in (0, 1)
    ]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert list(range(20)) not in orders


def test_the_other_sources_go_on_where_one_has_ended() -> None:
    tables = [jsonl_table(4096 * 2, 1, 0), jsonl_table(4096 * 9, 1, 1)]
    sources = [c.source for c in chunks_of(plan_of(tables, 0, 1, repeat=False))]
    assert sources == [0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1]


@given(st.data(), st.integers(1, 9), st.integers(1, 8), st.booleans())
def test_a_first_chunk_in_two_parts_changes_neither_what_is_read_nor_the_order_within_a_source(
    data: st.DataObject, lanes: int, numerator: int, repeat: bool
) -> None:
    tables = [data.draw(chunk_tables(s, lanes)) for s in range(data.draw(st.integers(1, 3)))]
    begin = Begin(data.draw(st.integers(0, len(tables) - 1)), numerator, 8)
    whole = chunks_of(plan_of(tables, 0, lanes, repeat=repeat), 200)
    parts = chunks_of(plan_of(tables, 0, lanes, repeat=repeat, begin=begin), 200)
    for s in range(len(tables)):
        joined: list[Chunk] = []
        for chunk in (c for c in parts if c.source == s):
            if joined and joined[-1].number == chunk.number and joined[-1].stop == chunk.start:
                num_bytes = joined[-1].num_bytes + chunk.num_bytes
                joined[-1] = joined[-1]._replace(stop=chunk.stop, num_bytes=num_bytes)
            else:
                joined.append(chunk)
        expected = [c for c in whole if c.source == s]
        common = min(len(joined), len(expected)) - 1
        assert joined[:common] == expected[:common]
    if parts and any(c.source == begin.source for c in whole):
        assert parts[0].source == begin.source
