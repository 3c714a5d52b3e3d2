"""The mixture: shares of tokens follow the weights, from the first step on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from tests.strategies import weights
from torchtitan_zephon.plan import keyed
from torchtitan_zephon.plan.mixture import Mixture, integer_weights, lane_begin, lane_phases


def scheduled_prefixes(mixture: Mixture, chunk_tokens: Callable[[int, int], int], chunks: int) -> list[list[int]]:
    """Tokens scheduled from each source after 1, 2, ... ``chunks`` chunks."""
    scheduled, prefixes = [0] * len(mixture.weights), []
    for n in range(chunks):
        s = mixture.next_source(scheduled, [True] * len(scheduled))
        scheduled[s] += chunk_tokens(s, n)
        prefixes.append(list(scheduled))
    return prefixes


def test_weights_count_by_their_ratio() -> None:
    assert integer_weights({"a": 3, "b": 1}) == integer_weights({"a": 0.75, "b": 0.25}) == (3 << 30, 1 << 30)
    assert integer_weights({"a": 1e-300, "b": 1e300})[0] == 1


@given(st.data(), weights, st.integers(0, 2**32))
def test_in_every_prefix_a_source_is_within_a_chunk_of_each_source_of_its_share(
    data: st.DataObject, given_weights: dict[str, float], seed: int
) -> None:
    # Worst case: source s has just been served, or all the others have. With two sources that is
    # the share-weighted mean of their chunks, hence under the larger one.
    largest = data.draw(st.lists(st.integers(1, 5000), min_size=len(given_weights), max_size=len(given_weights)))
    integers = integer_weights(given_weights)
    mixture = Mixture(integers, lane_phases(seed, list(given_weights), integers, largest, seed % 8, 8))
    for scheduled in scheduled_prefixes(mixture, lambda s, n: 1 + keyed.below(seed, n, largest[s]), 150):
        total = sum(scheduled)
        for s, weight in enumerate(integers):
            share = weight / sum(integers)
            bound = (1 - share) * largest[s] + share * (sum(largest) - largest[s])
            assert abs(scheduled[s] - share * total) <= bound + 1


@given(st.floats(0.01, 0.99), st.integers(1, 10_000), st.integers(1, 10_000))
def test_of_two_sources_each_is_within_one_chunk_of_its_share(weight: float, first: int, second: int) -> None:
    mixture = Mixture(integer_weights({"a": weight, "b": 1 - weight}), (first // 2, second // 3))
    for scheduled in scheduled_prefixes(mixture, lambda s, n: (first, second)[s], 200):
        assert abs(scheduled[0] - weight * sum(scheduled)) <= max(first, second) + 1


def delivered(weights: dict[str, float], typical: list[int], lanes: int, tokens: int) -> list[float]:
    """The share of each source in the first ``tokens`` tokens of each of ``lanes`` lanes; chunks are as large as is
    typical of their source."""
    integers, sums = integer_weights(weights), [0] * len(weights)
    for lane in range(lanes):
        mixture = Mixture(integers, lane_phases(3, list(weights), integers, typical, lane, lanes))
        begin = lane_begin(3, integers, lane, lanes)
        scheduled, rest = [0] * len(weights), 0
        while sum(scheduled) < tokens:
            if not any(scheduled):
                s = begin.source
                size = max(1, typical[s] * begin.numerator // begin.denominator)
                rest = typical[s] - size
            else:
                s = mixture.next_source(scheduled, [True] * len(scheduled))
                size, rest = (rest, 0) if s == begin.source and rest else (typical[s], rest)
            sums[s] += min(size, tokens - sum(scheduled))
            scheduled[s] += size
    return [n / sum(sums) for n in sums]


@pytest.mark.parametrize("typical", [[1000] * 4, [30, 1000, 300, 60]], ids=str)
@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.9, 0.1), (0.5, 0.3, 0.2), (0.4, 0.3, 0.2, 0.1)])
def test_the_first_tokens_of_the_lanes_show_each_source_in_its_share(
    shares: tuple[float, ...], typical: list[int]
) -> None:
    names = {f"s{i}": share for i, share in enumerate(shares)}
    for tokens, error in ((1, 0.02), (20, 0.05), (200, 0.1), (2000, 0.05)):
        for share, found in zip(shares, delivered(names, typical[: len(shares)], 64, tokens), strict=True):
            assert abs(found - share) < error, (tokens, shares, typical)


def test_the_phases_of_a_source_are_spread_evenly_over_the_lanes() -> None:
    names, weights, typical = ["a", "b", "c"], (1, 1, 2**40), [800, 80, 8]  # all lanes begin with the third
    assert {lane_begin(9, weights, lane, 8).source for lane in range(8)} == {2}
    phases = [lane_phases(9, names, weights, typical, lane, 8) for lane in range(8)]
    assert sorted(p[0] for p in phases) == [50, 150, 250, 350, 450, 550, 650, 750]
    assert sorted(p[1] for p in phases) == [5, 15, 25, 35, 45, 55, 65, 75]
    assert [p[0] // 100 for p in phases] != [p[1] // 10 for p in phases]  # each source in an order of its own


def test_the_lanes_begin_with_sources_by_weight_and_with_parts_of_all_sizes() -> None:
    begins = [lane_begin(4, integer_weights({"a": 0.5, "b": 0.3, "c": 0.2}), lane, 16) for lane in range(16)]
    assert [sum(b.source == s for b in begins) for s in range(3)] == [8, 5, 3]
    assert sorted(b.numerator for b in begins) == list(range(1, 32, 2))
    assert {b.denominator for b in begins} == {32}


def test_ties_go_to_the_first_source_and_a_source_that_ended_is_passed_over() -> None:
    mixture = Mixture((1, 1, 1), (0, 0, 0))
    assert mixture.next_source((5, 5, 5), (True, True, True)) == 0
    assert mixture.next_source((0, 5, 5), (False, True, True)) == 1
    assert mixture.next_source((0, 0, 0), (False, False, False)) == -1


def test_shares_are_exact_on_integers_no_float_can_tell_apart() -> None:
    far = 2**60
    assert Mixture((1, 1), (0, 0)).next_source((far + 1, far), (True, True)) == 1
    assert Mixture((1, 1), (0, 0)).next_source((far, far + 1), (True, True)) == 0
