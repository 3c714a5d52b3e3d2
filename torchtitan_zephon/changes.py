"""What differs between two recipes as checkpoints store them, in words, and which of their data is the same.

The stored weights are normalised, so that one edited weight moves them all. What can be known is their proportions:
the sources that kept theirs to one another are taken for those that nobody edited, and only the others are told, as
shares. With two sources it cannot be known which was edited, so both are told.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

ABSENT = "(absent)"
_ROUNDING = 2.0**-32
"""A stored weight, a multiple of 2**-32, is off by half of this at most."""


def recipe_changes(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """``field: saved -> current`` for each field in which the recipes differ."""
    current = json.loads(json.dumps(current))  # tuples are lists, as in a checkpoint
    old, new = _flat(saved), _flat(current)
    changed = {name for name in old.keys() | new.keys() if old.get(name, ABSENT) != new.get(name, ABSENT)}
    before, now = _weights(saved), _weights(current)
    untold = {_field(name) for name in before.keys() & now.keys()} - {_field(name) for name in edited(before, now)}
    changed -= untold
    shares = {_field(name): shares_of(before.get(name), now.get(name)) for name in before.keys() | now.keys()}
    pairs = {name: shares.get(name) or (old.get(name, ABSENT), new.get(name, ABSENT)) for name in changed}
    return [f"{name}: {a} -> {b}" for name, (a, b) in sorted(pairs.items())]


def edited(before: Mapping[str, float], now: Mapping[str, float]) -> set[str]:
    """The sources of both whose weight is another beside those of the rest."""
    common = sorted(before.keys() & now.keys())
    differing = {name for name in common if before[name] != now[name]}
    groups = [[other for other in common if _in_proportion(name, other, before, now)] for name in common]
    sizes = sorted({tuple(group) for group in groups}, key=len, reverse=True)
    clear = len(sizes) == 1 or (len(sizes) > 1 and len(sizes[0]) > len(sizes[1]))
    found = differing - set(sizes[0]) if clear else differing
    # All in proportion, and yet not the same: the last digits of a weight.
    return differing if not found and before.keys() == now.keys() else found


def _in_proportion(a: str, b: str, before: Mapping[str, float], now: Mapping[str, float]) -> bool:
    """Whether the weights of ``a`` and ``b`` are to one another as they were."""
    slack = _ROUNDING * (before[a] + before[b] + now[a] + now[b])
    return abs(now[a] * before[b] - now[b] * before[a]) <= slack


def shares_of(before: float | None, now: float | None) -> tuple[str, str]:
    """Two weights as shares, with as many digits as tell them apart."""
    for digits in (4, 6, 8, 12):
        old, new = (ABSENT if weight is None else f"{100 * weight:.{digits}g} %" for weight in (before, now))
        if old != new:
            break
    return (old, f"{new} of tokens") if before is None else (f"{old} of tokens", new)


def shared_shards(saved: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Sources of ``current`` with shards that ``saved`` has too, under whatever name: how many, and of how many."""
    known = {shard for source in _sources(saved).values() for shard in _shards(source)}
    found = {}
    for name, source in _sources(current).items():
        shards = _shards(source)
        if same := shards & known:
            count = source["shards"].get("count")
            found[name] = (count, count) if isinstance(count, int) else (len(same), len(shards))
    return found


def _shards(source: Mapping[str, Any]) -> set[str]:
    """The contents of a source's shards; the hash of their list where that is all the recipe has."""
    shards = source.get("shards")
    if not isinstance(shards, Mapping):
        return set()
    return {str(shards["sha256"])} if "sha256" in shards and "count" in shards else set(map(str, shards.values()))


def _sources(recipe: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    sources = recipe.get("sources")
    return {n: s for n, s in sources.items() if isinstance(s, Mapping)} if isinstance(sources, Mapping) else {}


def _weights(recipe: Mapping[str, Any]) -> dict[str, float]:
    """The normalised weights of a recipe's sources; only numbers, as a checkpoint may hold anything."""
    weights: dict[str, Any] = {name: source.get("weight") for name, source in _sources(recipe).items()}
    return {n: float(w) for n, w in weights.items() if type(w) in (int, float) and math.isfinite(w) and 0 < w <= 1}


def _field(name: str) -> str:
    return f"sources.{name}.weight"


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(value, Mapping) and value:
        return {
            k: v
            for name, inner in value.items()
            for k, v in _flat(inner, f"{prefix}.{name}" if prefix else str(name)).items()
        }
    return {prefix: json.dumps(value)}
