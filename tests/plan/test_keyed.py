"""The keyed generator: fixed values, and orders that are orders."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.strategies import keys
from torchtitan_zephon.plan import keyed

# Recorded values. They are part of the stream format: if they change, every stream changes.
KEYS = {
    (): 13020603013274838756,
    (0,): 9549033805879814570,
    ("order",): 1979631964396258074,
    (42, "order", "wiki", 3): 17283425795062106476,
    (-1, "naïve"): 7737596680994167699,
}
DRAWS = [13793469034382623169, 6961769133934170037, 13614216107666757266]
BELOW = [74, 37, 37, 72, 27, 21, 57, 37]
PERMUTED_10 = [5, 2, 8, 3, 6, 9, 0, 4, 7, 1]
PERMUTED_LARGE = [547812842588, 865460538632, 232787354738, 497138312152]
PERMUTATION_10 = [2, 6, 0, 3, 1, 5, 7, 8, 4, 9]


def test_a_key_has_the_recorded_value() -> None:
    for parts, value in KEYS.items():
        assert keyed.key(*parts) == value


@pytest.mark.parametrize(
    ("a", "b"),
    [((1,), ("1",)), (("ab", "c"), ("a", "bc")), ((1, 23), (12, 3)), ((1,), (1, 0)), (("",), ()), (("i1:1",), (1,))],
)
def test_different_parts_give_different_keys(a: tuple[int | str, ...], b: tuple[int | str, ...]) -> None:
    assert keyed.key(*a) != keyed.key(*b)


def test_draws_are_those_of_splitmix64() -> None:
    # The first outputs for seed 1234567, as published with the reference implementation.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [keyed.draw(1234567, c) for c in range(4)] == published


def test_a_draw_has_the_recorded_value() -> None:
    assert [keyed.draw(keyed.key(42, "shuffle", 3, 0), c) for c in (0, 1, 2**40)] == DRAWS
    assert [keyed.below(keyed.key(42, "shuffle", 3, 0), c, 100) for c in range(8)] == BELOW


@given(keys, st.integers(0, 2**40), st.integers(1, 2**50))
def test_a_number_below_n_is_below_n(k: int, counter: int, n: int) -> None:
    assert 0 <= keyed.below(k, counter, n) < n


def test_numbers_below_n_are_equally_frequent() -> None:
    counts = np.bincount([keyed.below(99, c, 10) for c in range(20_000)], minlength=10)
    assert np.abs(counts - 2000).max() < 200  # 4.7 standard deviations


@given(keys, st.integers(0, 300))
def test_a_permutation_is_the_stable_order_of_the_draws(k: int, n: int) -> None:
    draws = [keyed.draw(k, c) for c in range(n)]
    assert keyed.permutation(k, n).tolist() == sorted(range(n), key=draws.__getitem__)


@pytest.mark.parametrize("k", [0, 1, 2**64 - 1])
def test_permute_is_a_bijection_for_every_small_n(k: int) -> None:
    for n in range(1, 201):
        assert sorted(keyed.permute(k, i, n) for i in range(n)) == list(range(n))


@given(keys, st.data())
def test_permute_is_a_bijection_for_large_n(k: int, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 2**62))
    i = data.draw(st.integers(0, n - 1))
    image = keyed.permute(k, i, n)
    assert 0 <= image < n
    assert inverse(k, image, n) == i


def inverse(k: int, image: int, n: int) -> int:
    """The input that ``permute`` sends to ``image``: the same network, run backwards."""
    half = 1
    while 4**half < n:
        half += 1
    mask = 2**half - 1
    while True:
        left, right = image >> half, image & mask
        for r in (3, 2, 1, 0):
            left, right = right ^ (keyed.draw(k, (r << 32) | left) & mask), left
        image = (left << half) | right
        if image < n:
            return image


def test_permute_has_the_recorded_values() -> None:
    assert [keyed.permute(12345, i, 10) for i in range(10)] == PERMUTED_10
    assert [keyed.permute(12345, i, 10**12) for i in range(4)] == PERMUTED_LARGE


def test_permutation_has_the_recorded_values() -> None:
    assert keyed.permutation(12345, 10).tolist() == PERMUTATION_10


def test_every_place_is_about_equally_likely() -> None:
    first = np.bincount([keyed.permute(keyed.key("order", k), 0, 8) for k in range(4000)], minlength=8)
    assert np.abs(first - 500).max() < 100
