"""The place that a checkpoint names: where a segment ends in a packet that gives no sequence."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.strategies import tokens_of
from tests.test_lane import Driver, Setting, work
from torchtitan_zephon.lane.stages import sequence_hash
from torchtitan_zephon.plan.chunking import Chunk
from torchtitan_zephon.records import Packet
from torchtitan_zephon.state import encode_lane

SETTING = Setting(buffer=0, flush=2)  # `wrap` carries what does not fill a row, so nothing leaves at a flush by itself
Silent = Callable[[int, bool], bool]
SILENT: dict[str, Silent] = {
    "the last packet": lambda segment, last: last,
    "the last packet and two whole segments": lambda segment, last: last or segment in (1, 2),
    "every other segment": lambda segment, last: segment % 2 == 1,
}
"""Which packets hold no document: by the number of their segment, and whether they are its last."""


class Quiet(Driver):
    """A lane of which some packets hold no document."""

    def __init__(self, silent: Silent, setting: Setting = SETTING, state: bytes | None = None) -> None:
        super().__init__(setting, state, work=self._some)
        self._silent = silent

    def _some(self, chunk: Chunk) -> Packet:
        segment, last = self.lane._rows.start.segment, bool(self.lane._pending[0].ends)
        return Packet.of(tokens_of([])) if self._silent(segment, last) else work(chunk)

    def place(self) -> tuple[int, int]:
        """Segment, and sequences delivered of it."""
        state = self.lane.state()
        return state.start.segment, state.delivered


def places(driver: Quiet, count: int) -> list[tuple[int, int]]:
    found = []
    for _ in range(count):
        driver.take()
        found.append(driver.place())
    return found


@pytest.mark.parametrize("silent", ["the last packet", "the last packet and two whole segments"])
def test_the_place_stays_until_a_sequence_of_a_later_segment_is_taken(silent: str) -> None:
    found = places(Quiet(SILENT[silent]), 120)
    assert {n for _, n in found} >= {1, 2, 3}
    assert 0 not in {n for _, n in found}, "no segment begins before it has given a sequence"
    for (before, n), (segment, delivered) in pairwise(found):
        assert (segment, delivered) == (before, n + 1) or (segment > before and delivered == 1)
    segments = {segment for segment, _ in found}
    assert len(segments) > 4
    assert segments.isdisjoint({1, 2}) == (silent == "the last packet and two whole segments")


def test_a_segment_whose_last_packet_gives_a_sequence_is_left_with_it() -> None:
    found = places(Quiet(lambda segment, last: False), 120)
    left = [(a, b) for a, b in pairwise(found) if a[0] != b[0]]
    assert len(left) > 4
    assert any(after == (before[0] + 1, 0) for before, after in left)


@pytest.mark.parametrize("silent", SILENT)
def test_the_place_does_not_depend_on_how_far_the_lane_has_read_ahead(silent: str) -> None:
    ahead, straight = Quiet(SILENT[silent]), Quiet(SILENT[silent])
    for n in range(60):
        for _ in range(n % 7):
            if ahead.plan():
                ahead.arrive()
        assert sequence_hash(ahead.take()) == sequence_hash(straight.take())
        assert encode_lane(ahead.lane.state()) == encode_lane(straight.lane.state())


@pytest.mark.parametrize("silent", SILENT)
def test_a_lane_restored_at_any_place_goes_on_the_same(silent: str) -> None:
    straight = Quiet(SILENT[silent])
    state = encode_lane(straight.lane.state())
    for _ in range(60):
        again = Quiet(SILENT[silent], state=state)
        again.replay()
        assert sequence_hash(again.take()) == sequence_hash(straight.take())
        state = encode_lane(straight.lane.state())
        assert encode_lane(again.lane.state()) == state


def test_padding_behind_the_end_of_a_finite_lane_is_delivered_in_its_last_segment() -> None:
    driver = Quiet(SILENT["the last packet"], SETTING._replace(repeat=False))
    while driver.ready():
        driver.take()
    segment, delivered = driver.place()
    assert delivered > 0
    digests = driver.lane.state().source_digests
    assert places(driver, 3) == [(segment, delivered + n) for n in (1, 2, 3)]
    assert driver.lane.state().source_digests == digests
    again = Quiet(SILENT["the last packet"], SETTING._replace(repeat=False), encode_lane(driver.lane.state()))
    again.replay()
    assert encode_lane(again.lane.state()) == encode_lane(driver.lane.state())
