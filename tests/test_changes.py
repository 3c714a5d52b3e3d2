"""What differs between two recipes: the weights that were edited, as shares, and the data that both read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from torchtitan_zephon.changes import recipe_changes, shared_shards
from torchtitan_zephon.plan.mixture import integer_weights


def recipe(weights: dict[str, float], **sources: Any) -> dict[str, Any]:
    """A stored recipe with normalised weights, as a checkpoint has it."""
    normal = {n: w / 2**32 for n, w in zip(weights, integer_weights(weights), strict=True)}
    return {"seed": 1, "sources": {n: {"weight": normal[n], "shards": sources.get(n, {})} for n in weights}}


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ({"web": 0.6, "docs": 0.4}, {"web": 0.5, "docs": 0.5}, {"docs": "40 % -> 50 %", "web": "60 % -> 50 %"}),
        ({"a": 0.6, "b": 0.2, "c": 0.2}, {"a": 0.5, "b": 0.2, "c": 0.2}, {"a": "60 % -> 55.56 %"}),
        ({"a": 3, "b": 1, "c": 1, "d": 2}, {"a": 3, "b": 1, "c": 4, "d": 2}, {"c": "14.29 % -> 40 %"}),
        ({"a": 0.5, "b": 0.3, "c": 0.2}, {"a": 0.4, "b": 0.4, "c": 0.2}, {"a": "50 % -> 40 %", "b": "30 % -> 40 %"}),
        ({"a": 3, "b": 1}, {"a": 0.75, "b": 0.25}, {}),
        ({"a": 2, "b": 1}, {"a": 2, "b": 1, "new": 1}, {"new": "(absent) -> 25 %"}),
        ({"a": 2, "b": 1, "old": 1}, {"a": 2, "b": 1}, {"old": "25 % -> (absent)"}),
        ({"a": 2, "b": 1, "c": 1, "o": 1}, {"a": 2, "b": 1, "c": 5}, {"c": "20 % -> 62.5 %", "o": "20 % -> (absent)"}),
    ],
)  # fmt: skip
def test_a_weight_that_was_edited_is_told_as_a_share_and_those_in_proportion_are_not(
    before: dict[str, float], now: dict[str, float], told: dict[str, str]
) -> None:
    changes = [c for c in recipe_changes(recipe(before), recipe(now)) if ".weight: " in c]
    plain = {c.partition(": ")[0].split(".")[1]: c.partition(": ")[2].replace(" of tokens", "") for c in changes}
    assert plain == told
    assert all(" % of tokens" in change for change in changes)


def test_shares_that_differ_little_are_told_with_the_digits_that_tell_them_apart() -> None:
    changes = recipe_changes(recipe({"a": 1, "b": 1}), recipe({"a": 1, "b": 1.000001}))
    assert changes == [
        "sources.a.weight: 50 % of tokens -> 49.999975 %",
        "sources.b.weight: 50 % of tokens -> 50.000025 %",
    ]


def test_a_difference_of_the_last_digit_is_told_although_all_are_in_proportion() -> None:
    now = recipe({"a": 1, "b": 1})
    now["sources"]["a"]["weight"] += 2.0**-32
    now["sources"]["b"]["weight"] -= 2.0**-32
    assert [c.partition(": ")[0] for c in recipe_changes(recipe({"a": 1, "b": 1}), now)] == [
        *("sources.a.weight", "sources.b.weight"),
    ]


weights = st.dictionaries(st.sampled_from("abcde"), st.floats(0.001, 1000), min_size=1)


@given(weights, weights)
@example({"a": 1.0}, {"b": 1.0})
@example({"a": 1.0, "b": 1e-3}, {"a": 1.0, "b": 1.0000001e-3})
def test_recipes_that_differ_are_never_told_to_be_alike(before: dict[str, float], now: dict[str, float]) -> None:
    old, new = recipe(before), recipe(now)
    assert bool(recipe_changes(old, new)) == (old != new)


@given(st.lists(st.floats(0.001, 1000), min_size=3, max_size=8), st.data())
def test_of_three_sources_or_more_the_one_whose_weight_was_edited_is_named(
    stated: list[float], data: st.DataObject
) -> None:
    before = {f"s{n}": weight for n, weight in enumerate(stated)}
    name = data.draw(st.sampled_from(sorted(before)))
    now = {**before, name: before[name] * data.draw(st.sampled_from([0.25, 0.5, 2.0, 10.0]))}
    [change] = recipe_changes(recipe(before), recipe(now))
    assert change.startswith(f"sources.{name}.weight: ")


@pytest.mark.parametrize("weight", ["0.5", None, True, [0.5], -1, float("inf"), 2, {}])
def test_a_weight_that_is_none_is_a_change_like_any_other(weight: object) -> None:
    odd = {"seed": 1, "sources": {"a": {"weight": weight, "shards": {}}, "b": 3}}
    assert any(change.startswith("sources.a.weight") for change in recipe_changes(odd, recipe({"a": 1, "b": 1})))
    assert recipe_changes({"sources": 3}, recipe({"a": 1}))


def test_data_is_the_same_by_its_content_whatever_the_source_is_called() -> None:
    files = {"0.jsonl": "9 bytes, sample aa", "1.jsonl": "9 bytes, sample bb"}
    many = {"count": 5000, "bytes": 1, "sha256": "cc"}
    saved = recipe({"a": 1, "many": 1}, a=files, many=many)
    now = recipe({"b": 1, "more": 1, "new": 1}, b={**files, "2.jsonl": "9 bytes, sample dd"}, more=many, new={"0": "x"})
    assert shared_shards(saved, now) == {"b": (2, 3), "more": (5000, 5000)}
    assert shared_shards(saved, recipe({"a": 1}, a={"0.jsonl": "9 bytes, sample other"})) == {}
    assert shared_shards({"sources": {"a": {"shards": 3}, "b": 4}}, now) == shared_shards({}, now) == {}
