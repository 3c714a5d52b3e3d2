"""Streams that stay open: found where they stand, given up in order, and never more than may be held."""

from __future__ import annotations

from hypothesis import given, strategies as st

from torchtitan_zephon.read.open_streams import OpenStreams


def test_the_nearest_stream_before_the_wanted_place_is_taken_and_is_gone() -> None:
    streams = OpenStreams[str, str](8)
    for at in (0, 30, 60):
        streams.put("file", at, f"at {at}")
    assert streams.take("file", 59) == (30, "at 30")
    assert streams.take("file", 59) == (0, "at 0")
    assert streams.take("file", 59) is None
    assert streams.take("other", 99) is None
    assert streams.take("file", 60) == (60, "at 60")


@given(st.integers(1, 4), st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), st.integers(0, 5)), max_size=40))
def test_streams_put_are_taken_or_given_up_or_held(most: int, calls: list[tuple[bool, str, int]]) -> None:
    streams, held = OpenStreams[str, int](most), list[tuple[str, int, int]]()
    for n, (putting, what, at) in enumerate(calls):
        if putting:
            streams.put(what, at, n)
            if (same := next((h for h in held if h[:2] == (what, at)), None)) is not None:
                held[held.index(same)] = (what, at, n)
            else:
                held.append((what, at, n))
            held = held[-most:]
        else:
            standing = [h for h in held if h[0] == what and h[1] <= at]
            best = max(standing, key=lambda h: h[1], default=None)
            assert streams.take(what, at) == (best and best[1:])
            held = [h for h in held if h != best]
        assert len(streams) == len(held) <= most
