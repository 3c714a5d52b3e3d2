"""Planned segments: where they end is known before reading, and shares follow the tokens that were really there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.strategies import weights
from torchtitan_zephon.plan import keyed
from torchtitan_zephon.plan.chunking import Chunk, Pieces, cut
from torchtitan_zephon.plan.cursor import Dealt, Endless, LaneRuns, order_keys
from torchtitan_zephon.plan.mixture import Begin, Mixture, integer_weights
from torchtitan_zephon.plan.segments import LEAST_PART, LanePlan, Planned, SourcePlace

CHUNK = 4096
Tokens = Callable[[Chunk], int]


def plan_of(
    shares: list[float],
    *,
    chunks: int = 40,
    segment_chunks: int = 8,
    repeat: bool = True,
    measured: bool = True,
    rates: list[int] | None = None,
) -> LanePlan:
    """Sources of ``chunks`` chunks each in one lane, estimated at one token a byte."""
    sizes = np.array([CHUNK * chunks], np.int64)
    names = [f"s{i}" for i in range(len(shares))]
    tables = tuple(cut(s, Pieces(sizes, sizes, True), CHUNK, 1) for s in range(len(shares)))
    keys = order_keys(3, names)
    endless = tuple(Endless(0, 1, table.num_runs, key) for table, key in zip(tables, keys, strict=True))
    dealt = tuple(Dealt(np.arange(table.num_runs)) for table in tables)
    return LanePlan(
        runs=LaneRuns(0, tables, endless if repeat else dealt, Begin(0, 1, 2)),
        mixture=Mixture(integer_weights(dict(zip(names, shares, strict=True))), (CHUNK // 3,) * len(shares)),
        tokens_per_mib=tuple(rates or [2**20] * len(shares)),
        segment_tokens=segment_chunks * CHUNK,
        measured=measured,
    )


class Segment(NamedTuple):
    """One segment as it was planned and read. ``tokens``: real, by source."""

    sources: tuple[SourcePlace, ...]
    planned: list[Planned]
    tokens: list[int]


def segments(plan: LanePlan, tokens_of: Tokens) -> Iterator[Segment]:
    """The segments of a lane, each read whole before the next one is planned."""
    sources = (SourcePlace(),) * len(plan.tokens_per_mib)
    while True:
        place, shares = plan.begin(sources)
        segment = Segment(sources, [], [0] * len(sources))
        while not segment.planned or not segment.planned[-1].ends:
            planned = plan.next(place, shares)
            assert planned is not None
            segment.planned.append(planned)
            segment.tokens[planned.chunk.source] += tokens_of(planned.chunk)
            place = planned.behind
        yield segment
        if segment.planned[-1].ends == "lane":
            return
        sources = plan.after(sources, place, segment.tokens)


def first(count: int, plan: LanePlan, tokens_of: Tokens) -> list[Segment]:
    return [segment for segment, _ in zip(segments(plan, tokens_of), range(count), strict=False)]


def random_tokens(seed: int, most: int = 3 * CHUNK) -> Tokens:
    return lambda c: keyed.below(keyed.key(seed, c.source, c.epoch, c.number, c.start), 0, most)


@given(weights, st.integers(0, 99), st.booleans())
@settings(max_examples=40)
def test_a_segment_ends_with_the_first_chunk_at_whose_end_its_scheduled_tokens_are_there(
    given_weights: dict[str, float], seed: int, measured: bool
) -> None:
    plan = plan_of(list(given_weights.values()), measured=measured)
    for segment in first(6, plan, random_tokens(seed)):
        _, shares = plan.begin(segment.sources)
        rates = shares.expected_per_mib
        expected = [
            sum(n * rate >> 20 for n, rate in zip(planned.behind.num_bytes, rates, strict=True))
            for planned in segment.planned
        ]
        assert expected == sorted(expected)
        assert all(n < plan.segment_tokens for n in expected[:-1])
        assert expected[-1] >= plan.segment_tokens


def from_chunk(number: int, tokens: Tokens) -> Tokens:
    """``tokens``, and more of them from the chunk on that is read as ``number``."""
    read = itertools.count()
    return lambda c: tokens(c) + 977 * (next(read) >= number)


@given(st.integers(0, 99), st.booleans())
@settings(max_examples=20)
def test_tokens_of_a_segment_change_nothing_before_the_segment_after_the_next(seed: int, measured: bool) -> None:
    plan, tokens = plan_of([0.6, 0.4], measured=measured), random_tokens(seed)
    whole = first(7, plan, tokens)
    for k in range(5):
        other = first(7, plan, from_chunk(sum(len(segment.planned) for segment in whole[:k]), tokens))
        assert [s.planned for s in other[: k + 2]] == [s.planned for s in whole[: k + 2]]


def test_tokens_of_a_segment_do_change_the_segment_after_the_next() -> None:
    plan, tokens = plan_of([0.6, 0.4]), random_tokens(4)
    whole, other = (first(3, plan, lambda c, n=n: tokens(c) * (1 + n * c.source)) for n in (0, 2))
    assert [s.planned for s in whole[:2]] == [s.planned for s in other[:2]]
    assert whole[2].planned != other[2].planned


@given(weights, st.integers(0, 99))
@settings(max_examples=40)
def test_targets_add_up_to_the_tokens_that_were_counted(given_weights: dict[str, float], seed: int) -> None:
    plan = plan_of(list(given_weights.values()))
    for segment in first(8, plan, random_tokens(seed)):
        floors = [s.num_bytes * rate >> 20 for s, rate in zip(segment.sources, plan.tokens_per_mib, strict=True)]
        counted = [max(s.tokens, n // LEAST_PART) for s, n in zip(segment.sources, floors, strict=True)]
        assert sum(s.target for s in segment.sources) == sum(counted)


@given(st.floats(0.05, 0.95), st.integers(0, 9), st.lists(st.integers(2**19, 3_000_000), min_size=2, max_size=2))
@settings(max_examples=15)
def test_delivered_shares_follow_the_weights_whatever_the_estimate(share: float, seed: int, rates: list[int]) -> None:
    """Estimates of a third to twice of what is there; chunks hold 0 to 3 times what they should."""
    plan, total = plan_of([share, 1 - share], segment_chunks=20, rates=rates), [0, 0]
    largest = 3 * CHUNK
    for number, segment in enumerate(first(70, plan, random_tokens(seed))):
        total = [a + b for a, b in zip(total, segment.tokens, strict=True)]
        if number > 40:
            # The last two segments are not yet accounted for.
            off = abs(total[0] / sum(total) - share)
            assert off < 2 * 2.5 * sum(segment.tokens) / sum(total) + 4 * largest / sum(total)


def test_an_estimate_that_is_wrong_by_ten_makes_two_segments_of_another_length_and_no_more() -> None:
    for rate, factor in ((2**20 // 10, 10), (2**20 * 10, 0.1)):
        plan = plan_of([1.0], rates=[rate])
        lengths = [sum(segment.tokens) for segment in first(6, plan, lambda c: c.num_bytes)]
        assert all(abs(n - factor * plan.segment_tokens) <= CHUNK for n in lengths[:2])
        assert all(abs(n - plan.segment_tokens) <= CHUNK for n in lengths[2:])


def test_with_estimated_shares_real_tokens_change_nothing() -> None:
    plan = plan_of([0.6, 0.4], measured=False)
    a, b = (first(6, plan, random_tokens(seed)) for seed in (1, 2))
    assert [s.planned for s in a] == [s.planned for s in b]


def test_a_source_that_gives_nothing_is_read_twice_as_fast_and_the_others_go_on() -> None:
    plan = plan_of([0.5, 0.5])
    read, tokens = [0, 0], [0, 0]
    for segment in first(40, plan, lambda c: c.num_bytes * c.source):
        for planned in segment.planned:
            read[planned.chunk.source] += 1
        tokens[1] += segment.tokens[1]
    assert 1.8 < read[0] / read[1] <= 2.2
    assert tokens[1] > 0


@given(st.integers(0, 99), st.integers(1, 12))
@settings(max_examples=20)
def test_a_plan_goes_on_from_any_segment_start_as_if_it_had_not_stopped(seed: int, segment_chunks: int) -> None:
    plan, tokens = plan_of([0.7, 0.3], segment_chunks=segment_chunks), random_tokens(seed)
    whole = first(9, plan, tokens)
    for k, segment in enumerate(whole):
        again = replace(plan)
        place, shares = again.begin(segment.sources)
        found = []
        while not found or not found[-1].ends:
            planned = again.next(place, shares)
            assert planned is not None
            found.append(planned)
            place = planned.behind
        assert found == segment.planned, k


@pytest.mark.parametrize("segment_chunks", [1, 8, 10**6])
def test_the_last_chunk_of_a_pass_ends_the_lane_and_is_read_once(segment_chunks: int) -> None:
    plan = plan_of([0.5, 0.5], chunks=11, repeat=False, segment_chunks=segment_chunks)
    found = [planned for segment in segments(plan, random_tokens(5)) for planned in segment.planned]
    assert [planned.ends == "lane" for planned in found] == [False] * (len(found) - 1) + [True]
    parts = [(p.chunk.source, p.chunk.start) for p in found]
    assert len(set(parts)) == len(parts) == 2 * 11 + 1  # the first chunk is taken in two parts


def test_no_segment_begins_at_the_end_of_a_pass() -> None:
    plan = plan_of([0.5, 0.5], chunks=4, repeat=False)
    [*_, last] = segments(plan, lambda chunk: chunk.num_bytes)
    assert plan.holds(last.sources)
    assert not plan.holds(plan.after(last.sources, last.planned[-1].behind, last.tokens))
