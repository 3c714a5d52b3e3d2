"""What arrives in a lane, by source: digests of what was read, how many records, how many bad ones, and from where.

A state may not say what has arrived, as that depends on how far the lane has run ahead. So each packet takes along the
digests, the counts and the places of tapes up to itself.
"""

from __future__ import annotations

import hashlib

from ..bad_records import Counted, check_fraction
from ..balance import Balance, Read
from ..plan.segments import Planned
from ..plan.slices import TapePlace
from ..records import Packet
from ..state import SegmentStart
from .stages import LaneProgram, Passing, no_digests


class Intake:
    """One lane's. ``balance``: of what arrived here and of what the lane made of it. ``tapes``: behind what arrived."""

    def __init__(self, program: LaneProgram, start: SegmentStart) -> None:
        self.balance = Balance.of(program.source_names)
        self._program = program
        self._digests = no_digests(program)
        self._records = start.records if program.counts_bad else {}
        self.tapes = start.tapes

    def arrived(self, planned: Planned, packet: Packet) -> Passing:
        """The packet of the chunk that was ``planned``, on its way through the lane."""
        s, name = planned.chunk.source, self._program.source_names[planned.chunk.source]
        digest = hashlib.blake2b(self._digests[s].encode() + packet.digest, digest_size=8).hexdigest()
        digests = (*self._digests[:s], digest, *self._digests[s + 1 :])
        self._digests = no_digests(self._program) if planned.ends else digests
        self._count(name, packet.documents.read)
        if packet.behind is not None:
            self.tapes = {**self.tapes, name: TapePlace(*packet.behind)}
        return Passing(planned, packet.documents, digests, self._records, self.tapes, {})

    def _count(self, name: str, read: Read) -> None:
        self.balance.sources[name].add(read)
        if self._program.counts_bad:  # in a new table, as packets under way keep theirs
            before = self._records or dict.fromkeys(self._program.source_names, Counted())
            self._records = {**before, name: before[name].plus(read)}

    @property
    def refused(self) -> tuple[int, ...]:
        """Bad records of each source that were left out since the stream began."""
        return tuple(self._records.get(name, Counted()).num_refused for name in self._program.source_names)

    def check(self, packet: Passing) -> None:
        """Raise ``SourceError`` if up to ``packet`` too many records of a source were left out."""
        for name, counted in packet.records.items():
            where, examples = f"lane {self._program.lane}, source {name!r}", self.balance.sources[name].refused
            check_fraction(self._program.bad_records.max_bad_fraction, where, counted, examples)
