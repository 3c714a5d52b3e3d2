"""Parquet: row groups, and row ranges of those far above the chunk size.

Its column is text, or lists of token ids. Only that column is decoded; a user's function gets records whose other
columns are read when it asks for them. A row range is read by streaming its row group's batches from the start; a
lane takes neighbouring ranges one after the other, and the open stream is kept for the next (at
most ``OPEN_STREAMS`` a source), so that a row group is decoded about once a run and not once a
chunk. A miss costs time, never bytes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ..errors import SourceError
from ..plan.chunking import Chunk, Pieces
from ..records import Record
from . import BadRecord
from .files import Manifest
from .groups import RowGroups
from .lazy import Columns, first_undecodable, lazy_records
from .retry import with_retries

OPEN_STREAMS = 64
_BATCH_ROWS = 256

_Stream = Iterator[pa.RecordBatch]


class ParquetReader:
    """Reads the chunks of one Parquet source. Thread-safe: a stream is used by one thread at a time."""

    def __init__(self, manifest: Manifest, field: str) -> None:
        self.manifest = manifest
        self._field = field
        self._groups = RowGroups(manifest, field)
        self.holds_ids = self._groups.holds_ids
        self._asked = frozenset({field})  # columns that functions asked for; they are read together from then on
        self._streams: OrderedDict[tuple[int, int, tuple[str, ...]], tuple[_Stream, pa.RecordBatch | None]]
        self._streams = OrderedDict()
        self._lock = threading.Lock()

    def pieces(self) -> Pieces:
        """One piece a row group that has rows; its units are rows."""
        return Pieces(sizes=self._groups.sizes, units=self._groups.rows, runs_of_one=False)

    def shard_of(self, piece: int) -> int:
        """The file that row group ``piece`` lies in."""
        return self._groups.at(piece).shard

    def around(self, piece: int, unit: int, num_bytes: int) -> tuple[int, int]:
        """The rows from ``unit`` on that hold about ``num_bytes`` of text, by the mean of the row group."""
        rows = int(self._groups.rows[piece])
        return unit, min(rows, unit + max(1, num_bytes * rows // int(self._groups.sizes[piece])))

    def weigh(self, piece: int, borders: np.ndarray) -> np.ndarray:
        """Bytes of text or of ids in the rows [borders[i], borders[i + 1]) of ``piece``; int64 [ranges]."""
        return self._groups.weigh(piece, borders)

    def read(self, chunk: Chunk, whole_records: bool) -> tuple[list[Record], np.ndarray]:
        """The records of ``chunk`` and their row numbers in the file, int64 [records].

        Whole records have all columns of the file; those that nobody asked for before are read when they are.
        """
        if whole_records:
            return self._whole_records(chunk)
        batches, places = self._batches(chunk, (self._field,))
        try:
            return [record for batch in batches for record in batch.to_pylist()], places
        except UnicodeDecodeError:
            bad = first_undecodable(self._field, [batch.column(0) for batch in batches], places)
            assert bad is not None
            raise bad from None

    def read_ids(self, chunk: Chunk) -> tuple[list[pa.Array], np.ndarray]:
        """The token ids of ``chunk``, a list a row, in arrays of many rows; and the row numbers, int64 [rows]."""
        batches, places = self._batches(chunk, (self._field,))
        return [batch.column(0) for batch in batches], places

    def _whole_records(self, chunk: Chunk) -> tuple[list[Record], np.ndarray]:
        names = self._groups.columns[self.shard_of(chunk.piece)]
        asked = [name for name in names if name in self._asked]
        columns = tuple(name for name in asked if asked.count(name) == 1)
        try:
            batches, places = self._batches(chunk, columns)
        except SourceError:  # of a column that this chunk's functions may not ask for
            columns = (self._field,)
            batches, places = self._batches(chunk, columns)
        arrays = {name: [batch.column(i) for batch in batches] for i, name in enumerate(columns)}
        found = Columns(arrays, lambda name: self._one_column(chunk, name, places), places)
        return list(lazy_records(names, found, len(places))), places

    def _one_column(self, chunk: Chunk, name: str, places: np.ndarray) -> list[pa.Array]:
        """Column ``name`` of ``chunk``, which a function has asked for; from now on it is read with the others."""
        what, first = f"column {name!r} of rows {places[0]} to {places[-1]}", int(places[0])
        if (count := self._groups.columns[self.shard_of(chunk.piece)].count(name)) > 1:
            raise BadRecord(f"{what}: there are {count} columns of this name, so a function can have none", first)
        try:
            path = self.manifest.path(self.shard_of(chunk.piece))
            batches, _ = with_retries(lambda: self._batches(chunk, (name,), keep=False), path, what)
        except SourceError as error:
            cause = error.__cause__
            if cause is None or getattr(cause, "errno", None) is not None:
                raise  # the file and not the column
            raise BadRecord(f"{what} cannot be read, and a function asks for it: {cause}", first) from cause
        with self._lock:
            self._asked |= {name}
        return [batch.column(0) for batch in batches]

    def _batches(
        self, chunk: Chunk, columns: tuple[str, ...], keep: bool = True
    ) -> tuple[list[pa.RecordBatch], np.ndarray]:
        """The rows of ``chunk`` and their numbers in the file; the stream stays open for the next rows if ``keep``."""
        at, wanted = self._groups.at(chunk.piece), chunk.stop - chunk.start
        with self._lock:
            before = (row for piece, row, c in self._streams if piece == chunk.piece and c == columns)
            row = max((row for row in before if row <= chunk.start), default=0)
            stream, held = self._streams.pop((chunk.piece, row, columns), (None, None))
        with self._groups.errors_at(at):
            if stream is None:
                stream = self._groups.batches(at, columns, _BATCH_ROWS)
            held = self._skip(stream, held, chunk.start - row)
            batches, held = self._take(stream, held, wanted)
        if sum(batch.num_rows for batch in batches) < wanted:
            raise self._groups.ends_early(at)
        if keep and chunk.stop < at.rows:
            with self._lock:
                self._streams[chunk.piece, chunk.stop, columns] = (stream, held)
                if len(self._streams) > OPEN_STREAMS:
                    self._streams.popitem(last=False)
        return batches, np.arange(at.first + chunk.start, at.first + chunk.stop, dtype=np.int64)

    @staticmethod
    def _skip(stream: _Stream, held: pa.RecordBatch | None, rows: int) -> pa.RecordBatch | None:
        """Pass over ``rows`` rows, first of ``held``; returns the rest of the batch in which they ended."""
        while rows and (batch := next(stream, None) if held is None else held) is not None:
            held = batch.slice(rows) if rows < batch.num_rows else None
            rows -= min(rows, batch.num_rows)
        return held

    @staticmethod
    def _take(
        stream: _Stream, held: pa.RecordBatch | None, rows: int
    ) -> tuple[list[pa.RecordBatch], pa.RecordBatch | None]:
        """``rows`` rows, first from ``held`` and then from ``stream``; and what is left over of the last batch."""
        batches = []
        while rows and (batch := next(stream, None) if held is None else held) is not None:
            batches.append(batch.slice(0, rows))
            held = batch.slice(rows) if rows < batch.num_rows else None
            rows -= batches[-1].num_rows
        return batches, held

    def span(self, chunk: Chunk) -> str:
        """In words, where in its shard a chunk lies."""
        at = self._groups.at(chunk.piece)
        return f"row group {at.number}, rows {at.first + chunk.start:,} to {at.first + chunk.stop - 1:,}"

    def describe(self, place: int) -> str:
        """In words, where in its shard a record lies."""
        return f"row {place}"
