"""The shuffle buffer: the same sequences in another order, which the key alone decides."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.strategies import keys
from torchtitan_zephon.ops.render import padding_rows
from torchtitan_zephon.ops.shuffle import FIRST_WINDOW, ShuffleBuffer
from torchtitan_zephon.records import Sequence

ROWS = padding_rows(1, 0, 2)


def sequences(numbers: Iterable[int]) -> list[Sequence]:
    """Stand-ins that are told apart by their row number."""
    return [Sequence(ROWS, n) for n in numbers]


def shuffled(count: int, size: int, key: int) -> list[int]:
    buffer = ShuffleBuffer(size, key)
    out = [s for sequence in sequences(range(count)) for s in buffer.push(sequence)]
    return [s.row for s in out + buffer.flush()]


@given(st.integers(0, 300), st.integers(0, 200), keys)
def test_what_goes_in_comes_out_once(count: int, size: int, key: int) -> None:
    assert sorted(shuffled(count, size, key)) == list(range(count))


@given(st.integers(0, 100), st.integers(0, 100), keys)
def test_the_key_decides_the_order(count: int, size: int, key: int) -> None:
    assert shuffled(count, size, key) == shuffled(count, size, key)


def test_another_key_gives_another_order() -> None:
    assert len({tuple(shuffled(100, 32, key)) for key in range(20)}) == 20


def test_size_zero_passes_through() -> None:
    buffer = ShuffleBuffer(0, 1)
    for sequence in sequences(range(50)):
        assert buffer.push(sequence) == [sequence]
    assert buffer.flush() == []


@given(st.integers(1, 400), st.integers(0, 500), keys)
def test_the_window_grows_by_one_for_every_two_sequences_up_to_the_size(count: int, size: int, key: int) -> None:
    buffer, out = ShuffleBuffer(size, key), 0
    for n, sequence in enumerate(sequences(range(count)), 1):
        out += len(buffer.push(sequence))
        assert n - out == min(n, size, FIRST_WINDOW + n // 2)


@pytest.mark.parametrize("size", [128, 2**20])
def test_the_first_sequence_leaves_while_the_window_is_still_small(size: int) -> None:
    buffer = ShuffleBuffer(size, 5)
    let_go = [n for n, sequence in enumerate(sequences(range(100)), 1) if buffer.push(sequence)]
    assert let_go[0] == 2 * FIRST_WINDOW + 1


def test_a_full_buffer_mixes_well() -> None:
    order = np.array(shuffled(2000, 256, 11))
    moved = np.abs(order - np.arange(2000))
    assert moved.mean() > 100
    assert np.corrcoef(order[:1000:2], order[1:1000:2])[0, 1] < 0.9


def test_every_held_sequence_is_about_equally_likely_to_go_first() -> None:
    firsts = np.bincount([shuffled(8, 8, key * 7919)[0] for key in range(4000)], minlength=8)
    assert np.abs(firsts - 500).max() < 110
