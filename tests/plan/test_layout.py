"""Layouts: what is accepted obeys the rules of the stream; what is refused comes with a way out."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, strategies as st

from tests.strategies import LayoutValues, layout_values
from torchtitan_zephon import ConfigError
from torchtitan_zephon.plan.layout import Layout


def layout(values: LayoutValues, rank: int = 0, *, shared: bool = False) -> Layout:
    return Layout(
        lanes=values.lanes,
        global_batch_size=values.global_batch_size,
        dp_degree=values.dp_degree,
        dp_rank=rank,
        local_batch_size=values.local_batch_size,
        shared_lanes=shared,
    )


def broken_rules(v: LayoutValues, *, shared: bool = False) -> set[str]:
    """The start-up rules of the design that ``v`` breaks; the last assumes the one before."""
    degree = "global_batch_size % dp_degree" if shared else "lanes % dp_degree"
    rules = {
        degree: (v.global_batch_size if shared else v.lanes) % v.dp_degree == 0,
        "global_batch_size % lanes": v.global_batch_size % v.lanes == 0,
        "share % local_batch_size": v.global_batch_size % (v.dp_degree * v.local_batch_size) == 0,
    }
    return {rule for rule, holds in rules.items() if not holds}


both_rules = pytest.mark.parametrize("shared", [False, True], ids=["own lanes", "shared lanes"])


@both_rules
@given(values=layout_values)
def test_exactly_the_layouts_that_obey_the_rules_are_accepted(values: LayoutValues, shared: bool) -> None:
    broken = broken_rules(values, shared=shared)
    try:
        layout(values, shared=shared)
    except ConfigError:
        assert broken
    else:
        assert not broken


@both_rules
def test_of_all_small_layouts_exactly_those_that_obey_the_rules_are_accepted(shared: bool) -> None:
    accepted = 0
    for values in SMALL:
        if broken_rules(values, shared=shared):
            with pytest.raises(ConfigError):
                layout(values, shared=shared)
        else:
            layout(values, shared=shared)
            accepted += 1
    assert accepted > 100


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6), st.data())
def test_the_ranks_of_a_layout_share_out_every_lane_and_sequence(
    degree: int, lanes_a_rank: int, lane_sequences: int, data: st.DataObject
) -> None:
    lanes = degree * lanes_a_rank
    share = lanes_a_rank * lane_sequences
    local = data.draw(st.sampled_from([b for b in range(1, share + 1) if share % b == 0]))
    values = LayoutValues(lanes, degree, lanes * lane_sequences, local)
    ranks = [layout(values, rank) for rank in range(degree)]
    assert [lane for rank in ranks for lane in rank.own_lanes] == list(range(lanes))
    for rank in ranks:
        assert len(rank.own_lanes) * rank.lane_sequences == rank.local_batches * local == share


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 24))
def test_ranks_that_share_lanes_tile_the_global_batch_and_run_few_lanes(
    lanes: int, lane_sequences: int, degree: int
) -> None:
    batch = lanes * lane_sequences
    degree = max(d for d in range(1, degree + 1) if batch % d == 0)
    ranks = [layout(LayoutValues(lanes, degree, batch, 1), rank, shared=True) for rank in range(degree)]
    assert [i for rank in ranks for i in rank.part] == list(range(batch))
    for rank in ranks:
        assert list(rank.own_lanes) == sorted({i // lane_sequences for i in rank.part})
        assert len(rank.own_lanes) <= -(-lanes // degree) + 1
        assert rank.local_batches == len(rank.part)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))
def test_where_every_rank_has_whole_lanes_sharing_changes_nothing(
    degree: int, lanes_a_rank: int, lane_sequences: int
) -> None:
    lanes = degree * lanes_a_rank
    values = LayoutValues(lanes, degree, lanes * lane_sequences, 1)
    for rank in range(degree):
        alone, shared = layout(values, rank), layout(values, rank, shared=True)
        assert alone.own_lanes == shared.own_lanes == range(rank * lanes_a_rank, (rank + 1) * lanes_a_rank)
        assert alone.part == shared.part


def suggestions(values: LayoutValues, *, shared: bool = False) -> tuple[str, list[LayoutValues]]:
    """The rule that the refusal of ``values`` names, and the settings it suggests, parsed from its text."""
    with pytest.raises(ConfigError) as refusal:
        layout(values, shared=shared)
    text = str(refusal.value)
    found = [
        values._replace(**{field: int(number)})
        for pattern, field in (
            (r"use ([\d or]+) ranks", "dp_degree"),
            (r"use ([\d or]+) lanes", "lanes"),
            (r"global batch of ([\d or]+)", "global_batch_size"),
            (r"local batch of ([\d or]+)", "local_batch_size"),
        )
        for numbers in re.findall(pattern, text)
        for number in re.findall(r"\d+", numbers)
    ]
    return text, found


SIGNS = {
    "lanes % dp_degree": "lanes % dp_degree",
    "global_batch_size % dp_degree": "global_batch_size % dp_degree",
    "global_batch_size % lanes": "% lanes",
    "share % local_batch_size": "does not divide",
}
"""Each rule, and the part of a refusal's text that names it."""
SMALL = [*map(LayoutValues._make, itertools.product(range(1, 11), range(1, 7), range(1, 25), (1, 2, 3)))]


def refused(shared: bool) -> list[LayoutValues]:
    return [values for values in SMALL if broken_rules(values, shared=shared)]


@both_rules
def test_every_suggestion_of_a_refusal_mends_the_rule_it_names(shared: bool) -> None:
    for values in refused(shared):
        text, found = suggestions(values, shared=shared)
        assert found, text
        named = next(rule for rule, sign in SIGNS.items() if sign in text)
        for suggested in found:
            assert named not in broken_rules(suggested, shared=shared), f"{text}\n{suggested}"


@both_rules
def test_no_suggestion_breaks_a_rule_that_held(shared: bool) -> None:
    for values in refused(shared):
        text, found = suggestions(values, shared=shared)
        for suggested in found:
            # The local batch is free: it changes memory and speed, never the stream.
            newly = broken_rules(suggested, shared=shared) - broken_rules(values, shared=shared)
            assert not newly - {"share % local_batch_size"}, f"{text}\n{suggested}"


def test_sharing_lanes_is_suggested_exactly_where_it_is_a_way_out() -> None:
    hinted = 0
    for values in refused(shared=False):
        text, _ = suggestions(values)
        # The local batch is free here too.
        fits = "lanes % dp_degree" in text and not broken_rules(values._replace(local_batch_size=1), shared=True)
        assert ("set shared_lanes = true" in text) == fits, text
        hinted += fits
    assert hinted > 50


@pytest.mark.parametrize("name", ["lanes", "global_batch_size", "dp_degree", "local_batch_size"])
@pytest.mark.parametrize("value", [0, -1, -(10**9)])
def test_a_number_below_one_is_refused_by_name_and_value(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} = {value} must be 1 or more\."):
        layout(LayoutValues(8, 2, 16, 4)._replace(**{name: value}))


def test_torchtitans_minus_one_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="grows with the number of GPUs"):
        layout(LayoutValues(8, 2, -1, 4))


@pytest.mark.parametrize("rank", [-1, 2, 7])
def test_a_rank_outside_the_degree_is_refused(rank: int) -> None:
    with pytest.raises(ConfigError, match=rf"dp_rank = {rank} is not below dp_degree = 2"):
        layout(LayoutValues(8, 2, 16, 4), rank)


def test_a_refusal_reads_as_the_design_says() -> None:
    with pytest.raises(
        ConfigError, match=r"lanes = 8 .* 3 data-parallel ranks .*use 2 or 4 ranks; .* the global batch a multiple of 3"
    ):
        layout(LayoutValues(8, 3, 16, 1))
    with pytest.raises(
        ConfigError,
        match=r"lanes = 16 .* use 4 or 8 ranks; to go on with 7 ranks all the same, set shared_lanes = true;",
    ):
        layout(LayoutValues(16, 7, 112, 1))
    with pytest.raises(
        ConfigError, match=r"global_batch_size = 112 .* over 9 .*with shared_lanes too.* use 8 or 14 ranks\."
    ):
        layout(LayoutValues(16, 9, 112, 1), shared=True)
    with pytest.raises(
        ConfigError, match=r"local_batch_size = 3 .* 16 / 2 = 8 sequences\. Use a local batch of 2 or 4"
    ):
        layout(LayoutValues(8, 2, 16, 3))
