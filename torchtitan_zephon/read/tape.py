"""A lane's tape of one source: its next slice, whatever file that is in.

What flows in: planned chunks that say only "the next slice", in their order. What flows out: the slice, the chunk that
it is, and the place behind it. Workers take turns: a turn is handed out where the chunk is planned and waits for those
before it, so a stream is read in order by whichever worker comes; parsing is not part of a turn.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from ..errors import SourceError
from ..plan.chunking import Chunk
from ..plan.cursor import Endless
from ..plan.slices import SliceTable, TapePlace
from .packings import Entry, Unpacked
from .sequential import Cut, SequentialReader
from .source import Source


class Slice(NamedTuple):
    """A slice as it was cut; ``behind``: the tape's place behind it."""

    chunk: Chunk
    cut: Cut
    behind: TapePlace


class Tape:
    """Owner of one stream. Conserved: turns handed out = taken + waiting + the one that reads."""

    def __init__(self, source: Source, table: SliceTable, runs: Endless, place: TapePlace) -> None:
        assert isinstance(source.reader, SequentialReader)
        self._source, self._reader, self._table, self._runs = source, source.reader, table, runs
        self._reader.let_go()
        self._place = place
        self._stream: Unpacked | None = None
        self._turns = 0
        self._taken = 0
        self._failure: BaseException | None = None
        self._changed = threading.Condition()

    @property
    def piece(self) -> int:
        """The one at hand."""
        return self._table.part(self._runs.run(self._place.runs)[1])[0]

    def turn(self) -> Turn:
        """The next turn; whoever gets it has to take it."""
        self._turns += 1
        return Turn(self, self._turns - 1)

    def take(self, number: int, chunk: Chunk) -> Slice:
        """The slice that is ``chunk``, or the part of one. Raises ``SourceError``, also if a turn before did."""
        with self._changed:
            self._changed.wait_for(lambda: self._taken == number or self._failure is not None)
            if self._failure is not None:
                raise self._failure
        try:
            found = self._next(chunk)
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()
            raise
        with self._changed:
            self._taken += 1
            self._changed.notify_all()
        return found

    def _next(self, planned: Chunk) -> Slice:
        """Go through runs that are over, up to a slice. ``planned``: which bytes of it."""
        for _ in range(self._table.num_runs + 1):
            epoch, run = self._runs.run(self._place.runs)
            whole = self._table.slice_at(epoch, run, self._place.slices)
            start, stop = whole.start + planned.start, whole.start + planned.stop
            chunk = whole._replace(start=start, stop=stop, num_bytes=planned.num_bytes)
            cut = self._source.tried(chunk.piece, self._reader.span(chunk), lambda: self._cut(chunk, whole.start))  # noqa: B023
            if cut is not None:
                assert self._stream is not None
                slices = self._place.slices + (planned.stop == self._table.chunk_bytes)
                self._place = TapePlace(self._place.runs, slices, self._stream.at, *self._stream.entry())
                return Slice(chunk, cut, self._place)
            self._stream, self._place = None, TapePlace(self._place.runs + 1)
        raise SourceError(f"source {self._source.name!r}: a lane went through all its files and found them empty.")

    def _cut(self, chunk: Chunk, slice_start: int) -> Cut | None:
        """The records of ``chunk``; None where the file ends before the slice does begin."""
        try:
            if self._stream is None:
                self._stream = self._reader.open(chunk.piece, Entry(self._place.packed, self._place.unpacked))
                self._stream.skip(self._place.border)
            self._reader.cutter.seek(self._stream, chunk.start)
            if self._stream.at <= slice_start == chunk.start and _at_end(self._stream):
                return None
            return self._reader.cutter.take(self._stream, chunk.stop)
        except BaseException:
            self._stream = None  # it is opened again at the tape's place
            raise


class Turn(NamedTuple):
    """A place in the order in which a tape is read."""

    tape: Tape
    number: int

    def take(self, chunk: Chunk) -> Slice:
        """``Tape.take`` in this turn."""
        return self.tape.take(self.number, chunk)


def _at_end(stream: Unpacked) -> bool:
    if data := stream.read(1):
        stream.unread(data)
    return not data
