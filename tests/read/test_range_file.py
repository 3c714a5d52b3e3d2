"""A file object over ranges: the bytes of the file, in few requests."""

from __future__ import annotations

import io
from io import SEEK_CUR, SEEK_END

import pytest
from hypothesis import given, strategies as st

from torchtitan_zephon.read.range_file import MOST_BYTES, RangeFile

DATA = bytes(range(256)) * 40


class Ranges:
    """Reads ranges of ``data``, and remembers which."""

    def __init__(self, data: bytes = DATA) -> None:
        self.data, self.read = data, list[tuple[int, int]]()

    def __call__(self, start: int, stop: int) -> bytes:
        assert 0 <= start < stop <= len(self.data)
        self.read.append((start, stop))
        return self.data[start:stop]


def opened(data: bytes = DATA) -> tuple[RangeFile, Ranges]:
    ranges = Ranges(data)
    return RangeFile("s3://b/x", len(data), ranges), ranges


@given(st.lists(st.tuples(st.integers(0, 11_000), st.integers(-1, 5000)), max_size=20))
def test_any_reads_are_those_of_a_file_in_memory(places: list[tuple[int, int]]) -> None:
    ours, theirs = opened()[0], io.BytesIO(DATA)
    for at, size in places:
        assert ours.seek(at) == theirs.seek(at)
        assert ours.read(size) == theirs.read(size)
        assert ours.tell() == theirs.tell()


def test_seeks_are_from_the_front_from_here_and_from_the_end() -> None:
    file, _ = opened()
    assert [file.seek(7), file.seek(3, SEEK_CUR), file.seek(-2, SEEK_END)] == [7, 10, len(DATA) - 2]
    assert file.read(10) == DATA[-2:]
    with pytest.raises(ValueError, match=r"seek to -1, before the beginning of 's3://b/x'"):
        file.seek(-1)


def test_a_look_fetches_what_it_asks_and_a_second_one_inside_nothing() -> None:
    file, ranges = opened()
    file.seek(5000)
    file.read(100)
    file.seek(5020)
    assert file.read(50) == DATA[5020:5070]
    assert ranges.read == [(5000, 5100)]


def test_reading_on_fetches_four_times_as_much_up_to_the_most() -> None:
    file, ranges = opened(bytes(100 * 2**20))
    while file.read(2**20):
        pass
    sizes = [stop - start for start, stop in ranges.read]
    assert sizes[:3] == [2**20, 4 * 2**20, MOST_BYTES]
    assert max(sizes) == MOST_BYTES and sum(sizes) == 100 * 2**20


def test_a_read_larger_than_the_most_is_one_request() -> None:
    file, ranges = opened(bytes(20 * 2**20))
    assert len(file.read()) == 20 * 2**20
    assert len(ranges.read) == 1
