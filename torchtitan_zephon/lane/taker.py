"""How far the trainer has read one lane: the place that a checkpoint names.

What flows in: sequences, one at a time, as they are taken. What flows out: a ``LaneState`` behind the last one. A
sequence knows its segment. Only one that leaves with the packet that ends its segment can be the segment's last; where
that packet gave none, the place stays behind the last sequence taken until one of a later segment is. So the state
does not depend on what has been packed ahead.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..ops.carried import from_plain
from ..records import Sequence
from ..state import LaneState, SegmentStart
from .stages import PACK, Hashed, LaneProgram, no_digests


class Ready(NamedTuple):
    """A sequence to be taken, of the segment that ``start`` begins; ``next_start`` if it is the segment's last."""

    hashed: Hashed
    start: SegmentStart
    source_digests: tuple[str, ...]
    next_start: SegmentStart | None


class Taker:
    """Of the sequence taken last, ``taken_hash`` is the hash, and ``read_digests`` are those of what was read up to it.

    They are by source, of its segment. A state has them too, but none where a segment begins.
    """

    def __init__(self, program: LaneProgram, start: SegmentStart, state: LaneState | None) -> None:
        self._program = program
        self._digest, self._sequences = start.digest, 0 if state is None else state.sequences - state.delivered
        self.taken_hash, self.read_digests = b"", no_digests(program)
        self._begin(start)

    def _begin(self, start: SegmentStart) -> None:
        self._start = replace(start, digest=self._digest)
        self._delivered, self._state_digests = 0, no_digests(self._program)
        self._tokens = _tokens_behind(start, self._program)

    def take(self, ready: Ready) -> Sequence:
        """The next sequence of the lane."""
        if ready.start.segment != self._start.segment:  # the packet that ended the segment before gave no sequence
            self._begin(ready.start)
        self._count(ready.hashed)
        self._state_digests = self.read_digests = ready.source_digests
        if ready.next_start is not None:
            self._begin(ready.next_start)
        return ready.hashed.sequence

    def pad(self, padding: Hashed) -> Sequence:
        """A sequence of padding behind the lane's last."""
        self._count(padding)
        self.read_digests = self._state_digests
        return padding.sequence

    def _count(self, hashed: Hashed) -> None:
        self.taken_hash = hashed.sha256
        self._digest = hashlib.sha256(bytes.fromhex(self._digest) + hashed.sha256).hexdigest()
        self._sequences += 1
        self._delivered += 1
        self._tokens += hashed.tokens

    def state(self) -> LaneState:
        """The place behind the sequence taken last."""
        digests = dict(zip(self._program.source_names, self._state_digests, strict=True))
        return LaneState(self._program.lane, self._start, self._delivered, self._sequences, self._digest, digests)

    @property
    def delivered_tokens(self) -> tuple[int, ...]:
        """Tokens of each source that were taken.

        All tokens of the segments before, without what was carried, and the inputs taken of the segment at hand. So the
        number depends on the taker's place alone, and is the same after a restore.
        """
        return tuple(map(int, self._tokens.tolist()))


def _tokens_behind(start: SegmentStart, program: LaneProgram) -> np.ndarray:
    """Tokens of each source in the segments behind ``start``, float64 [sources]: all that were packed but the carry."""
    packed = np.array([place.all_tokens for place in start.sources.values()], float)
    if (carry := start.carries.get(PACK)) is not None:
        held = from_plain(carry, program.source_names)
        packed -= np.bincount(held.origin[:, 0], np.diff(held.offsets), len(packed))
    return packed
