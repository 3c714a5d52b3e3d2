"""Parquet: row groups, and row ranges of those far above the chunk size.

Its column is text, or lists of token ids. Only that column is decoded; a user's function gets records whose other
columns are read when it asks for them. A row range is read by streaming its row group's batches from the start; a
lane takes neighbouring ranges one after the other, and the open stream is kept for the next (at
most ``OPEN_STREAMS`` a source), so that a row group is decoded about once a run and not once a
chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ..bad_records import BadRecord, Sifted, Unreadable, without
from ..errors import SourceError
from ..plan.chunking import Chunk, Pieces
from ..records import RECORD, Contents, Documents, origin_of
from .files import Manifest
from .groups import RowGroups
from .ids import laid_out
from .lazy import Columns, decoded, lazy_records
from .many_files import FEW_FILES, ManyFiles
from .open_streams import OpenStreams
from .retry import with_retries
from .settings import SourceConfig

OPEN_STREAMS = 64
_BATCH_ROWS = 256


class ParquetReader:
    """Reads the chunks of one Parquet source. Thread-safe: a stream is used by one thread at a time."""

    def __init__(self, manifest: Manifest, settings: SourceConfig) -> None:
        self.manifest = manifest
        self._field = settings.field
        self._groups = RowGroups(manifest, self._field)
        self.contents: Contents = self._groups.contents
        self._asked = frozenset({self._field})
        """Columns that functions asked for; they are read together from then on. A note that two threads write at once
        may be lost, and is made again."""
        self._streams = OpenStreams[tuple[int, tuple[str, ...]], _Rows](OPEN_STREAMS)

    @property
    def rows(self) -> np.ndarray:
        """Rows of every row group that has some, int64 [groups]."""
        return self._groups.rows

    def pieces(self) -> Pieces:
        """One piece a row group that has rows; its units are rows. Raises ``SourceError`` if there is none."""
        if not len(self.rows):
            shards, root = self.manifest.shards, str(self.manifest.root)
            raise SourceError(f"none of the {len(shards)} Parquet files in {root!r} has a row.")
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

    def read(self, chunk: Chunk, columns: frozenset[str] | None) -> Sifted:
        """The records of ``chunk``, or these columns of them.

        Whole records have all columns of the file; those that nobody asked for before are read when they are.
        """
        if columns is None:
            return self._lazy_records(chunk), []
        names = tuple(name for name in self._groups.columns[self.shard_of(chunk.piece)] if name in columns)
        batches, places = self._batches(chunk, names)
        documents, bad = Documents.of_values({}, self._origin(chunk, places)), list[BadRecord]()
        for i, name in enumerate(names):
            arrays = [batch.column(i) for batch in batches]
            if name == self._field and self.contents == "ids":
                ids, offsets, nulls = laid_out(arrays)
                documents = replace(documents, tokens={"ids": ids}, offsets=offsets)
                problem = f"field {name!r} is null, or holds one"
                bad += [BadRecord("ids", place, problem) for place in places[nulls].tolist()]
            else:
                documents.values[name] = decoded(name, arrays, places)
                bad += [value for value in documents.values[name] if type(value) is BadRecord]
        return without(documents, bad), bad

    def _origin(self, chunk: Chunk, places: np.ndarray) -> np.ndarray:
        return origin_of(chunk.source, self.shard_of(chunk.piece), places)

    def _lazy_records(self, chunk: Chunk) -> Documents:
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
        records = lazy_records(names, found, len(places))
        return Documents.of_values({RECORD: list(records)}, self._origin(chunk, places))

    def _one_column(self, chunk: Chunk, name: str, places: np.ndarray) -> list[pa.Array]:
        """Column ``name`` of ``chunk``, which a function has asked for; from now on it is read with the others."""
        what, first = f"column {name!r} of rows {places[0]} to {places[-1]}", int(places[0])
        if (count := self._groups.columns[self.shard_of(chunk.piece)].count(name)) > 1:
            problem = f"{what}: there are {count} columns of this name, so a function can have none"
            raise Unreadable(BadRecord("column", first, problem))
        try:
            path = self.manifest.path(self.shard_of(chunk.piece))
            batches, _ = with_retries(lambda: self._batches(chunk, (name,), keep=False), path, what)
        except SourceError as error:
            cause = error.__cause__
            if cause is None or getattr(cause, "errno", None) is not None:
                raise  # the file and not the column
            problem = f"{what} cannot be read, and a function asks for it: {cause}"
            raise Unreadable(BadRecord("column", first, problem)) from cause
        self._asked |= {name}
        return [batch.column(0) for batch in batches]

    def _batches(
        self, chunk: Chunk, columns: tuple[str, ...], keep: bool = True
    ) -> tuple[list[pa.RecordBatch], np.ndarray]:
        """The rows of ``chunk`` and their numbers in the file; the stream stays open for the next rows if ``keep``."""
        at, what, wanted = self._groups.at(chunk.piece), (chunk.piece, columns), chunk.stop - chunk.start
        with self._groups.errors_at(at):
            held = self._streams.take(what, chunk.start)
            row, rows = held or (0, _Rows(self._groups.batches(at, columns, _BATCH_ROWS)))
            for _ in rows.next(chunk.start - row):
                pass
            batches = list(rows.next(wanted))
        if sum(batch.num_rows for batch in batches) < wanted:
            raise self._groups.ends_early(at)
        if keep and chunk.stop < at.rows:
            self._streams.put(what, chunk.stop, rows)
        return batches, np.arange(at.first + chunk.start, at.first + chunk.stop, dtype=np.int64)

    def span(self, chunk: Chunk) -> str:
        """In words, where in its shard a chunk lies."""
        at = self._groups.at(chunk.piece)
        return f"row group {at.number}, rows {at.first + chunk.start:,} to {at.first + chunk.stop - 1:,}"

    def describe(self, place: int) -> str:
        """In words, where in its shard a record lies."""
        return f"row {place}"


def parquet_reader(manifest: Manifest, settings: SourceConfig) -> ParquetReader | ManyFiles:
    """What reads a Parquet source: with all footers read at the start, or with none where there are very many files."""
    if len(manifest.shards) <= FEW_FILES:
        return ParquetReader(manifest, settings)
    return ManyFiles(manifest, lambda one: ParquetReader(one, settings))


class _Rows:
    """The rows of a stream of batches, any number at a time."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rest: pa.RecordBatch | None = None

    def next(self, rows: int) -> Iterator[pa.RecordBatch]:
        """The next ``rows`` rows; fewer where the stream ends."""
        while rows and (batch := next(self._batches, None) if self._rest is None else self._rest) is not None:
            part = batch.slice(0, rows)
            self._rest = batch.slice(rows) if rows < batch.num_rows else None
            rows -= part.num_rows
            yield part
