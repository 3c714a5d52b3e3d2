"""What a packet passes in a lane: stages that accumulate documents, then the packer and the shuffle buffer.

What flows in: a packet, which is all documents of one chunk. What flows out: the sequences that leave because of it.
A packet that ends a segment takes along what the stages still hold, so that each is as at its beginning, but for a
bounded *carry*. What a state may say is said by the packet: its stages' carries as it passed them, and its digests. A
state that read a stage's present would depend on how many packets are under way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..bad_records import DEFAULTS, BadRecordSettings, Counted
from ..ops.pack import Pack, Packing
from ..ops.render import padding_rows
from ..ops.shuffle import ShuffleBuffer
from ..plan import keyed
from ..plan.segments import Ends, LanePlan, Planned
from ..plan.slices import TapePlace
from ..records import Documents, Rows, Sequence
from ..sealed import damaged
from ..state import SegmentStart

HASHED = ("input", "labels", "positions")
"""The columns that a checkpoint proves. A column that follows from these is left out: turning it on changes no hash."""
PACK = "pack"


class Accumulator(Protocol):
    """A stage that decides: one a lane, told of documents in order.

    ``flush`` gives what it still holds where a segment ends, except its carry; ``finish`` gives that too. ``carry``: as
    plain values, None for nothing; the state keeps them, so the stage changes them no more.
    """

    def add(self, documents: Documents) -> Documents: ...
    def flush(self) -> Documents: ...
    def finish(self) -> Documents: ...
    def carry(self) -> Any: ...


class Link(NamedTuple):
    """A stage that accumulates, made from its carry, and the function behind it, which is one more trip to the pool."""

    name: str
    make: Callable[[Any], Accumulator]
    function: Callable[[Documents], Documents]


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneProgram:
    """Everything a lane's machine depends on, besides its data. ``links``: the stages before the packer."""

    plan: LanePlan
    source_names: tuple[str, ...]
    packing: Packing
    shuffle_buffer_sequences: int
    shuffle_seed: int
    links: tuple[Link, ...] = ()
    bad_records: BadRecordSettings = DEFAULTS

    @property
    def counts_bad(self) -> bool:
        """Whether bad records are left out and counted; else none gets here."""
        return self.bad_records.on_bad_record == "skip"

    @property
    def lane(self) -> int:
        """The lane's number."""
        return self.plan.runs.lane


def no_digests(program: LaneProgram) -> tuple[str, ...]:
    """Digests by source where a segment begins."""
    return ("",) * len(program.source_names)


class Passing(NamedTuple):
    """A packet under way. ``digests``: by source, of the segment up to it, as documents left the first trip.

    ``records``: by source, of the lane up to it, if bad records are counted. ``tapes``: by source, the places behind
    it. ``carries``: of the stages that it has passed, if it ends a segment.
    """

    planned: Planned
    documents: Documents
    digests: tuple[str, ...]
    records: dict[str, Counted]
    tapes: dict[str, TapePlace]
    carries: dict[str, Any]


class Hashed(NamedTuple):
    """A sequence and its hash, taken while it is warm from packing; ``tokens``: float64 [sources], from each source."""

    sequence: Sequence
    sha256: bytes
    tokens: np.ndarray


class Collect:
    """One link's stage in a lane."""

    def __init__(self, link: Link, start: SegmentStart) -> None:
        self._name, self._stage = link.name, link.make(start.carries.get(link.name))

    def passed(self, packet: Passing) -> Passing:
        """The packet as it leaves the stage."""
        found, carries = self._stage.add(packet.documents), packet.carries
        if ends := packet.planned.ends:
            rest = self._stage.flush() if ends == "segment" else self._stage.finish()
            found, carries = Documents.join(found, rest), _with_carry(carries, self._name, self._stage.carry())
        return packet._replace(documents=found, carries=carries)


class MakeRows:
    """The last stages of a lane: rows are packed, hashed and shuffled.

    ``start``: of the segment whose packets pass now. By source, of those that passed: ``tokens``, int64 [sources];
    ``num_bytes``, planned.
    """

    def __init__(self, program: LaneProgram, start: SegmentStart) -> None:
        self._program, self.start = program, start
        try:
            self.packer = Pack.carried(program.packing, start.carries.get(PACK), program.source_names)
        except ValueError:
            raise damaged(f"the state of lane {program.lane}", "its carry cannot be read") from None
        self._begin_segment()

    def _begin_segment(self) -> None:
        self.tokens = np.zeros(len(self._program.source_names), np.int64)
        self.num_bytes = (0,) * len(self.tokens)
        key = keyed.key(self._program.shuffle_seed, "shuffle", self._program.lane, self.start.segment)
        self._buffer: ShuffleBuffer[Hashed] = ShuffleBuffer(self._program.shuffle_buffer_sequences, key)

    def passed(self, packet: Passing) -> list[Hashed]:
        """The sequences that leave with ``packet``."""
        documents, ends = packet.documents, packet.planned.ends
        self.num_bytes = packet.planned.behind.num_bytes
        self.tokens += np.bincount(documents.origin[:, 0], np.diff(documents.offsets), len(self.tokens)).astype(int)
        return self._shuffled(self.packer.add(documents)) + self._ended(ends)

    def end(self) -> list[Hashed]:
        """The same of a lane that has no packet at all."""
        return self._ended("lane")

    def _ended(self, ends: Ends) -> list[Hashed]:
        if not ends:
            return []
        rows = self.packer.flush() if ends == "segment" else self.packer.finish()
        return self._shuffled(rows) + self._buffer.flush()

    def next_start(self, packet: Passing) -> SegmentStart:
        """Where the segment begins that follows ``packet``, which ended one. Its digest is the taker's to say."""
        program, names = self._program, self._program.source_names
        before = [self.start.sources[name] for name in names]
        sources = program.plan.after(before, packet.planned.behind, self.tokens.tolist())
        carries = _with_carry(packet.carries, PACK, self.packer.carry(names))
        places = dict(zip(names, sources, strict=True))
        self.start = SegmentStart(self.start.segment + 1, places, carries, "", packet.records, packet.tapes)
        self._begin_segment()
        return self.start

    def _shuffled(self, rows: Rows) -> list[Hashed]:
        tokens = rows.source_tokens(len(self.tokens))
        return [s for r in range(len(rows)) for s in self._buffer.push(hashed(rows, r, tokens[r]))]


def _with_carry(carries: dict[str, Any], name: str, carry: Any) -> dict[str, Any]:
    return carries if carry is None else {**carries, name: carry}


def hashed(rows: Rows, row: int, tokens: np.ndarray) -> Hashed:
    """Sequence ``row`` of ``rows`` with its hash."""
    sequence = Sequence(rows, row)
    return Hashed(sequence, sequence_hash(sequence), tokens)


def padding(program: LaneProgram) -> Hashed:
    """A sequence of padding only, for a lane that ran dry before the others."""
    rows = padding_rows(1, program.packing.padding_id, program.packing.seq_len)
    return hashed(rows, 0, np.zeros(len(program.source_names)))


def sequence_hash(sequence: Sequence) -> bytes:
    """SHA-256 of a sequence: the columns ``HASHED`` as little-endian int32."""
    h = hashlib.sha256()
    for name in HASHED:
        h.update(sequence.rows.columns[name][sequence.row].data)
    return h.digest()
