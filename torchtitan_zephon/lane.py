"""One lane as a step machine: told what arrived (in order), says what to fetch and emits.

What flows in: the tokens of the chunks it planned, in that order. What flows out: sequences in
an order that depends only on the recipe and the lane. No thread, clock, file or torch in it, so
every race of the outside world is a test that calls these methods in another order.

A *segment* ends at the first chunk end after ``flush_every_sequences`` packed sequences: the
shuffle buffer empties, and the place behind that chunk (plus the packer's carry) is the start
of the next segment. ``state`` is the place the *taker* reached, not the packer: a segment start
and a count. It does not depend on how far the lane ran ahead.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from .errors import ReplayError, SourceError
from .ops.pack import Pack
from .ops.render import padding_rows
from .ops.shuffle import ShuffleBuffer
from .plan import keyed
from .plan.chunking import Chunk
from .plan.cursor import Cursor, LanePlan
from .records import Balance, Documents, Packet, Rows, Sequence
from .state import NEW_STREAM, LaneState, SegmentStart, no_such_place

HASHED = ("input", "labels", "positions")
"""The columns that a checkpoint proves. A column that follows from these is left out: turning it on changes no hash."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneProgram:
    """Everything a lane's machine depends on, besides its data."""

    plan: LanePlan
    source_names: tuple[str, ...]
    shuffle_seed: int
    seq_len: int
    pack: Literal["wrap", "first_fit"]
    label_shift: Literal["document", "sequence"]
    padding_id: int
    shuffle_buffer_sequences: int
    flush_every_sequences: int


class _Hashed(NamedTuple):
    """A sequence and its hash, taken while it is warm from packing; ``tokens``: float64 [sources], from each source."""

    sequence: Sequence
    sha256: bytes
    tokens: np.ndarray


class _Ready(NamedTuple):
    """A sequence to be taken; ``next_start`` if it is the last of its segment."""

    hashed: _Hashed
    source_digests: tuple[str, ...]
    next_start: SegmentStart | None


class Lane:
    """The machine. Conserved: chunks planned = arrived + pending; sequences packed = taken + ready + held."""

    def __init__(self, program: LaneProgram, state: LaneState | None = None) -> None:
        self.program, self.number = program, program.plan.lane
        sources = len(program.source_names)
        start = SegmentStart.first(sources) if state is None else state.start
        if not program.plan.holds(start.cursor):
            raise no_such_place(self.number)
        self.balance = Balance()
        self.taken_hash = b""
        self._planned = start.cursor
        self._pending: deque[tuple[Chunk, Cursor]] = deque()
        self._ready: deque[_Ready] = deque()
        self._barren_chunks = 0
        self._finished = False
        # The taker's place.
        self._start, self._delivered, self._digest = start, 0, start.digest
        self._sequences = 0 if state is None else state.sequences - state.delivered
        self._source_digests = self._no_digests = self.read_digests = ("",) * sources
        self._delivered_tokens = _behind(start)
        # The packer's place: at the start of the taker's segment, then running ahead of it.
        self._tokens, self._packing_digests = list(start.tokens), list(self._no_digests)
        self._scheduled = start.cursor.scheduled_tokens
        self._packer = Pack(program.pack, program.label_shift, program.padding_id, program.seq_len, start.carry)
        self._begin_segment(start.segment)
        if program.plan.next(start.cursor) is None:
            self._emit(self._packer.finish(), last=True)

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
        return tuple(self._tokens)

    @property
    def scheduled_tokens(self) -> tuple[int, ...]:
        """What the plan took the tokens of the chunks that arrived for, by source, since the stream began."""
        return self._scheduled

    @property
    def delivered_tokens(self) -> tuple[int, ...]:
        """Of the tokens packed from each source, those the taker has.

        All tokens of the segments behind it, without the carry, and the inputs taken of the segment at hand. So the
        number depends on the taker's place alone, and is the same after a restore.
        """
        return tuple(map(int, self._delivered_tokens.tolist()))

    def plan_chunk(self) -> Chunk | None:
        """The next chunk to fetch, or None at the end of a finite stream."""
        step = self.program.plan.next(self._planned)
        if step is None:
            return None
        chunk, self._planned = step
        self._pending.append((chunk, self._planned))
        return chunk

    def arrived(self, packet: Packet) -> None:
        """Take in the documents of the oldest pending chunk."""
        chunk, behind = self._pending.popleft()
        self._scheduled = behind.scheduled_tokens
        documents = packet.documents
        self.balance.add(documents.balance)
        self._check_barren(documents)
        s = chunk.source
        self._tokens[s] += len(documents.ids)
        self._packing_digests[s] = _hash16(self._packing_digests[s], packet.digest)
        rows = self._packer.add(documents)
        self._packed += len(rows)
        self._emit(rows)
        if not self.program.plan.repeat and self.program.plan.next(behind) is None:
            self._emit(self._packer.finish(), last=True)
        elif self._packed >= self.program.flush_every_sequences:
            self._flush(behind)

    def _emit(self, rows: Rows, last: bool = False) -> None:
        """Send packed rows through the shuffle buffer; ``last`` empties it and ends the lane."""
        self.balance.last_tokens, self.balance.unused_tokens = self._packer.last_tokens, self._packer.unused_tokens
        tokens = rows.source_tokens(len(self._tokens))
        out = [s for r in range(len(rows)) for s in self._buffer.push(_hashed(rows, r, tokens[r]))]
        if last:
            out += self._buffer.flush()
            self._finished = True
        digests = tuple(self._packing_digests)
        self._ready.extend(_Ready(s, digests, None) for s in out)

    def _flush(self, behind: Cursor) -> None:
        self._emit(self._packer.flush())
        digests = tuple(self._packing_digests)
        self._ready.extend(_Ready(s, digests, None) for s in self._buffer.flush())
        # Its chunk packed a row, and a buffer lets one go for every one it takes once full, so
        # the last sequence of the segment is still here to carry the mark.
        start = SegmentStart(self._segment + 1, behind, tuple(self._tokens), self._packer.carry, "")
        self._ready[-1] = self._ready[-1]._replace(next_start=start)
        self._packing_digests = list(self._no_digests)
        self._begin_segment(self._segment + 1)

    def _begin_segment(self, segment: int) -> None:
        self._segment, self._packed = segment, 0
        self._buffer: ShuffleBuffer[_Hashed] = ShuffleBuffer(
            self.program.shuffle_buffer_sequences, keyed.key(self.program.shuffle_seed, "shuffle", self.number, segment)
        )

    def _check_barren(self, documents: Documents) -> None:
        """A repeating lane must not spin for ever on sources without a usable document."""
        if usable(documents, self.program.label_shift):
            self._barren_chunks = 0
            return
        self._barren_chunks += 1
        limit = 64 + 20 * sum(t.num_chunks for t in self.program.plan.tables)
        if self._barren_chunks > limit and self.program.plan.repeat:
            raise SourceError(
                f"lane {self.number} read {limit} chunks of {', '.join(map(repr, self.program.source_names))} "
                f"and found no usable document ({self.balance})."
            )

    def take(self) -> Sequence:
        """The next sequence; padding if the lane is dry. Call only if ``ready`` or ``dry``."""
        if self.dry:
            padding = padding_rows(1, self.program.padding_id, self.program.seq_len)
            entry = _Ready(_hashed(padding, 0, np.zeros(len(self._tokens))), self._source_digests, None)
        else:
            entry = self._ready.popleft()
        sequence, self.taken_hash, tokens = entry.hashed
        self._delivered_tokens += tokens
        self._digest = hashlib.sha256(bytes.fromhex(self._digest) + self.taken_hash).hexdigest()
        self._sequences += 1
        self._delivered += 1
        self._source_digests = self.read_digests = entry.source_digests
        if entry.next_start is not None:
            self._start, self._delivered = replace(entry.next_start, digest=self._digest), 0
            self._delivered_tokens = _behind(entry.next_start)
            self._source_digests = self._no_digests
        self.balance.sequences += 1
        self.balance.tokens_out += sequence.filled
        self.balance.padded += self.program.seq_len - sequence.filled
        return sequence

    def state(self) -> LaneState:
        """Where the taker is."""
        return LaneState(self.number, *self.place)

    @property
    def place(self) -> tuple[SegmentStart, int, int, str, tuple[str, ...]]:
        """The fields of ``state`` but the lane's number; cheap enough to take at every step."""
        return self._start, self._delivered, self._sequences, self._digest, self._source_digests

    def check_replay(self, saved: LaneState) -> None:
        """After ``saved.delivered`` sequences were replayed: raise unless they are the same ones."""
        now = self.state()
        if (now.digest, now.sequences, now.delivered) == (saved.digest, saved.sequences, saved.delivered):
            return
        pairs = zip(self.program.source_names, saved.source_digests, self.read_digests, strict=True)
        changed = [name for name, a, b in pairs if a != b]
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


def usable(documents: Documents, label_shift: str) -> int:
    """Tokens that can be an input: within documents, all of a document but its last."""
    return len(documents.ids) if label_shift == "sequence" else documents.num_inputs


def _hashed(rows: Rows, row: int, tokens: np.ndarray) -> _Hashed:
    sequence = Sequence(rows, row)
    return _Hashed(sequence, sequence_hash(sequence), tokens)


def _behind(start: SegmentStart) -> np.ndarray:
    """Tokens of each source in the segments behind ``start``, float64 [sources]: all that were packed but the carry."""
    carry, sources = start.carry, len(start.tokens)
    return np.array(start.tokens, float) - np.bincount(carry.origin[:, 0], np.diff(carry.offsets), sources)


def sequence_hash(sequence: Sequence) -> bytes:
    """SHA-256 of a sequence: the columns ``HASHED`` as little-endian int32."""
    h = hashlib.sha256()
    for name in HASHED:
        h.update(sequence.rows.columns[name][sequence.row].data)
    return h.digest()


def _hash16(before: str, digest: bytes) -> str:
    return hashlib.blake2b(before.encode() + digest, digest_size=8).hexdigest()
