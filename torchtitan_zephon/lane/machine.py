"""One lane as a step machine: told what arrived (in order), says what to fetch and run, and emits.

What flows in: the documents of the chunks it planned, in that order. What flows out: sequences in
an order that depends only on the recipe and the lane. No thread, clock, file or torch in it, so
every race of the outside world is a test that calls these methods in another order.

A chunk is one packet all the way, and packets never overtake. The plan marks the chunk that ends a *segment*: with it
every stage empties, and the place behind it (plus the stages' carries) is the start of the next segment. ``state`` says
how far the trainer has read, as a segment start and a count. It does not depend on how far the lane has run ahead.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ..balance import Balance
from ..errors import ReplayError, SourceError
from ..plan.chunking import Chunk
from ..plan.segments import LanePlan, Planned
from ..plan.slices import TapePlace
from ..records import Documents, Packet, Sequence
from ..sealed import NEW_STREAM
from ..state import LaneState, SegmentStart, no_such_place
from .intake import Intake
from .stages import Collect, Hashed, LaneProgram, MakeRows, Passing, no_digests, padding
from .taker import Ready, Taker


class Trip(NamedTuple):
    """A packet that the function of link number ``link`` is to be run on."""

    link: int
    packet: Passing


class Barren(NamedTuple):
    """Packets since the last one with a usable document: chunks, and ends of segments among them."""

    chunks: int
    segments: int


class Planner:
    """What a lane reads next: at most to the end of the segment after the one whose packets pass the packer.

    What a segment's sources are taken for follows from the tokens of the segments up to the last but one.
    """

    def __init__(self, plan: LanePlan, start: SegmentStart) -> None:
        self._plan, self._segment, self._ends = plan, start.segment, ""
        self._place, self._shares = plan.begin(tuple(start.sources.values()))

    def next(self, packing: SegmentStart) -> Planned | None:
        """The next chunk; None at the end of a finite stream, and until ``packing`` is of a later segment."""
        if self._ends == "lane" or (self._ends and packing.segment < self._segment):
            return None
        if self._ends:
            sources = tuple(packing.sources.values())
            if packing.segment == self._segment:  # its tokens come in still, and the next segment does without them
                sources = self._plan.after(sources, self._place, (0,) * len(sources))
            self._place, self._shares = self._plan.begin(sources)
            self._segment, self._ends = self._segment + 1, ""
        if (planned := self._plan.next(self._place, self._shares)) is not None:
            self._place, self._ends = planned.behind, planned.ends
        return planned


class Lane:
    """The machine. Conserved: chunks planned = arrived + pending; sequences packed = taken + ready + held."""

    def __init__(self, program: LaneProgram, state: LaneState | None = None) -> None:
        start = SegmentStart.first(program.source_names) if state is None else state.start
        if not program.plan.holds(tuple(start.sources.values())):
            raise no_such_place(program.lane)
        self.program = program
        self.trips: deque[Trip] = deque()
        self._planner, self._pending = Planner(program.plan, start), deque[Planned]()
        self._intake = Intake(program, start)
        self._links = [Collect(link, start) for link in program.links]
        self._rows = MakeRows(program, start)
        self._ready: deque[Ready] = deque()
        self._taker = Taker(program, start, state)
        self._barren = Barren(0, 0)
        self._finished = False
        if not any(program.plan.runs.alive(program.plan.runs.start)):
            self._leave(self._rows.end(), None)

    @property
    def number(self) -> int:
        """Which lane it is."""
        return self.program.lane

    @property
    def ready(self) -> int:
        """Sequences that can be taken now."""
        return len(self._ready)

    @property
    def pending(self) -> int:
        """Chunks planned that have not arrived."""
        return len(self._pending)

    @property
    def dry(self) -> bool:
        """A finite stream has been taken whole; from here on ``take`` gives padding."""
        return self._finished and not self._ready

    @property
    def source_tokens(self) -> tuple[int, ...]:
        """Tokens packed from each source since the stream began."""
        before = (place.all_tokens for place in self._rows.start.sources.values())
        return tuple(n + own for n, own in zip(before, self._rows.tokens.tolist(), strict=True))

    @property
    def source_bytes(self) -> tuple[int, ...]:
        """Planned bytes of the chunks packed from each source since the stream began."""
        before = (place.all_bytes for place in self._rows.start.sources.values())
        return tuple(n + own for n, own in zip(before, self._rows.num_bytes, strict=True))

    @property
    def balance(self) -> Balance:
        """What went in and what came out since this machine was made."""
        return self._intake.balance

    @property
    def tapes(self) -> dict[str, TapePlace]:
        """By source, the places in files that are read from the front, behind what arrived."""
        return self._intake.tapes

    @property
    def refused(self) -> tuple[int, ...]:
        """Bad records of each source that were left out since the stream began."""
        return self._intake.refused

    @property
    def delivered_tokens(self) -> tuple[int, ...]:
        """Of the tokens packed from each source, those the taker has."""
        return self._taker.delivered_tokens

    @property
    def taken_hash(self) -> bytes:
        """The hash of the sequence taken last."""
        return self._taker.taken_hash

    @property
    def read_digests(self) -> tuple[str, ...]:
        """By source, of what was read of it in the segment, up to the sequence taken last."""
        return self._taker.read_digests

    def plan_chunk(self) -> Chunk | None:
        """The next chunk to fetch. None at the end of a finite stream, or as long as what arrives decides on it."""
        if (planned := self._planner.next(self._rows.start)) is None:
            return None
        self._pending.append(planned)
        return planned.chunk

    def arrived(self, packet: Packet) -> None:
        """Take in the documents of the oldest pending chunk."""
        self._pass(self._intake.arrived(self._pending.popleft(), packet), 0)

    def returned(self, trip: Trip, documents: Documents) -> None:
        """Take in what the function made of the packet of ``trip``; those of a link in the order of ``trips``."""
        self._pass(trip.packet._replace(documents=documents), trip.link + 1)

    def _pass(self, packet: Passing, link: int) -> None:
        """Let a packet pass the stages from ``link`` on, up to a function."""
        if link < len(self._links):
            self.trips.append(Trip(link, self._links[link].passed(packet)))
        else:
            self._check_barren(packet)
            self._leave(self._rows.passed(packet), packet)

    def _leave(self, sequences: list[Hashed], packet: Passing | None) -> None:
        """Sequences that leave with ``packet``, or in a lane that has none, are ready."""
        self.balance.last_tokens = self._rows.packer.last_tokens
        self.balance.unused_tokens = self._rows.packer.unused_tokens
        start, digests = self._rows.start, no_digests(self.program) if packet is None else packet.digests
        self._ready.extend(Ready(s, start, digests, None) for s in sequences)
        if packet is not None and packet.planned.ends:
            self._intake.check(packet)
        if packet is None or packet.planned.ends == "lane":
            self._finished = True
        elif packet.planned.ends:
            next_start = self._rows.next_start(packet)
            if sequences:
                self._ready[-1] = self._ready[-1]._replace(next_start=next_start)

    def _check_barren(self, packet: Passing) -> None:
        """A repeating lane must not spin for ever on packets that reach the packer without a usable document.

        A stage may hold all documents of a segment, and carry them through the next one.
        """
        runs, usable = self.program.plan.runs, self.program.packing.usable(packet.documents) > 0
        chunks, segments = self._barren
        self._barren = Barren(0, 0) if usable else Barren(chunks + 1, segments + bool(packet.planned.ends))
        limit = 64 + 20 * sum(t.num_chunks for t in runs.tables)
        if self._barren.chunks > limit and runs.repeat and (self._barren.segments > 2 or not self._links):
            raise SourceError(
                f"lane {self.number} read {self._barren.chunks} chunks of "
                f"{', '.join(map(repr, self.program.source_names))} and found no usable document ({self.balance})."
            )

    def take(self) -> Sequence:
        """The next sequence; padding if the lane is dry. Call only if ``ready`` or ``dry``."""
        sequence = self._taker.pad(padding(self.program)) if self.dry else self._taker.take(self._ready.popleft())
        filled, balance = sequence.filled, self.balance
        balance.sequences += 1
        balance.tokens_out += filled
        balance.padded += self.program.packing.seq_len - filled
        return sequence

    def state(self) -> LaneState:
        """How far the taker has read."""
        return self._taker.state()

    def check_replay(self, saved: LaneState) -> None:
        """After ``saved.delivered`` sequences were replayed: raise unless they are the same ones."""
        now = self.state()
        if (now.digest, now.sequences, now.delivered) == (saved.digest, saved.sequences, saved.delivered):
            return
        pairs = zip(self.program.source_names, self.read_digests, strict=True)
        changed = [name for name, digest in pairs if digest != saved.source_digests[name]]
        which = (
            f"the data of source {', '.join(map(repr, changed))} changed"
            if changed
            else "their packing or order changed"
        )
        raise ReplayError(
            f"lane {self.number}: the {saved.delivered} sequences replayed since segment {saved.start.segment} began "
            f"are not those the checkpoint was trained on: {which}.\n"
            f"    checkpoint digest {saved.digest[:16]}\n    replayed digest   {now.digest[:16]}\n"
            f"Restore the data as it was. {NEW_STREAM}"
        )
