"""Layouts: what is accepted obeys the rules of the stream; what is refused comes with a way out."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, strategies as st

from tests.strategies import LayoutValues, layout_values
from torchtitan_zephon import ConfigError
from torchtitan_zephon.plan.layout import Layout


def layout(values: LayoutValues, rank: int = 0) -> Layout:
    return Layout(
        lanes=values.lanes,
        global_batch_size=values.global_batch_size,
        dp_degree=values.dp_degree,
        dp_rank=rank,
        local_batch_size=values.local_batch_size,
    )


def broken_rules(v: LayoutValues) -> set[str]:
    """The start-up rules of the design that ``v`` breaks; the third assumes the second."""
    rules = {
        "lanes % dp_degree": v.lanes % v.dp_degree == 0,
        "global_batch_size % lanes": v.global_batch_size % v.lanes == 0,
        "share % local_batch_size": v.global_batch_size % (v.dp_degree * v.local_batch_size) == 0,
    }
    return {rule for rule, holds in rules.items() if not holds}


@given(layout_values)
def test_exactly_the_layouts_that_obey_the_rules_are_accepted(values: LayoutValues) -> None:
    broken = broken_rules(values)
    try:
        layout(values)
    except ConfigError:
        assert broken
    else:
        assert not broken


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


def suggestions(values: LayoutValues) -> tuple[str, list[LayoutValues]]:
    """The rule that the refusal of ``values`` names, and the settings it suggests, parsed from its text."""
    with pytest.raises(ConfigError) as refusal:
        layout(values)
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


RULES = ("lanes % dp_degree", "global_batch_size % lanes", "share % local_batch_size")
SIGNS = ("lanes % dp_degree", "% lanes", "does not divide")
REFUSED = [
    values
    for values in map(LayoutValues._make, itertools.product(range(1, 11), range(1, 7), range(1, 25), (1, 2, 3)))
    if broken_rules(values)
]


def test_every_suggestion_of_a_refusal_mends_the_rule_it_names() -> None:
    for values in REFUSED:
        text, found = suggestions(values)
        assert found, text
        named = next(rule for rule, sign in zip(RULES, SIGNS, strict=True) if sign in text)
        for suggested in found:
            assert named not in broken_rules(suggested), f"{text}\n{suggested}"


def test_no_suggestion_breaks_a_rule_that_held() -> None:
    for values in REFUSED:
        text, found = suggestions(values)
        for suggested in found:
            # The local batch is free: it changes memory and speed, never the stream.
            newly = broken_rules(suggested) - broken_rules(values) - {"share % local_batch_size"}
            assert not newly, f"{text}\n{suggested}"


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
        ConfigError, match=r"local_batch_size = 3 .* 16 / 2 = 8 sequences\. Use a local batch of 2 or 4"
    ):
        layout(LayoutValues(8, 2, 16, 3))
