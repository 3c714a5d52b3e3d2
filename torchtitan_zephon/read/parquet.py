"""Parquet: row groups, and row ranges of those far above the chunk size.

Its column is text, or lists of token ids. Only that column is decoded; a user's function gets records whose other
columns are read when it asks for them. A row range is read by streaming its row group's batches from the start; a
lane takes neighbouring ranges one after the other, and the open stream is kept for the next (at
most ``OPEN_STREAMS`` a source), so that a row group is decoded about once a run and not once a
chunk.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ..bad_records import Sifted
from ..errors import SourceError
from ..plan.chunking import Chunk, Pieces
from ..records import Contents, origin_of
from .files import Manifest
from .groups import RowGroups
from .many_files import FEW_FILES, ManyFiles
from .open_streams import OpenStreams
from .settings import SourceConfig
from .table import Decoder

OPEN_STREAMS = 64
_BATCH_ROWS = 256


class ParquetReader:
    """Reads the chunks of one Parquet source. Thread-safe: a stream is used by one thread at a time."""

    def __init__(self, manifest: Manifest, settings: SourceConfig, max_record_bytes: int) -> None:
        self.manifest = manifest
        self._groups = RowGroups(manifest, settings.text)
        self.contents: Contents = self._groups.contents
        self.largest_id = self._groups.largest_id
        self._decoder = Decoder(settings.text.fields, self.contents, max_record_bytes)
        self._streams = OpenStreams[tuple[int, tuple[str, ...]], _Stream](OPEN_STREAMS)

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
        return self._decoder.documents(_Rows(self, chunk), columns)

    def columns_of(self, chunk: Chunk) -> tuple[str, ...]:
        """The names of all columns of the chunk's file."""
        return self._groups.columns[self.shard_of(chunk.piece)]

    def places_of(self, chunk: Chunk) -> np.ndarray:
        """The numbers of its rows in the file: int64 [rows]."""
        first = self._groups.at(chunk.piece).first
        return np.arange(first + chunk.start, first + chunk.stop, dtype=np.int64)

    def batches(self, chunk: Chunk, columns: tuple[str, ...], keep: bool) -> list[pa.RecordBatch]:
        """The rows of ``chunk``; the stream stays open for the next rows if ``keep``."""
        at, what, wanted = self._groups.at(chunk.piece), (chunk.piece, columns), chunk.stop - chunk.start
        with self._groups.errors_at(at):
            held = self._streams.take(what, chunk.start)
            row, rows = held or (0, _Stream(self._groups.batches(at, columns, _BATCH_ROWS)))
            for _ in rows.next(chunk.start - row):
                pass
            batches = list(rows.next(wanted))
        if sum(batch.num_rows for batch in batches) < wanted:
            raise self._groups.ends_early(at)
        if keep and chunk.stop < at.rows:
            self._streams.put(what, chunk.stop, rows)
        return batches

    def span(self, chunk: Chunk) -> str:
        """In words, where in its shard a chunk lies."""
        at = self._groups.at(chunk.piece)
        return f"row group {at.number}, rows {at.first + chunk.start:,} to {at.first + chunk.stop - 1:,}"

    def describe(self, place: int) -> str:
        """In words, where in its shard a record lies."""
        return f"row {place}"


def parquet_reader(manifest: Manifest, settings: SourceConfig, max_record_bytes: int) -> ParquetReader | ManyFiles:
    """What reads a Parquet source: with all footers read at the start, or with none where there are very many files."""
    if len(manifest.shards) <= FEW_FILES:
        return ParquetReader(manifest, settings, max_record_bytes)
    return ManyFiles(manifest, lambda one: ParquetReader(one, settings, max_record_bytes))


class _Rows:
    """The rows of a chunk (``table.Rows``)."""

    def __init__(self, reader: ParquetReader, chunk: Chunk) -> None:
        self._reader, self._chunk = reader, chunk
        shard = reader.shard_of(chunk.piece)
        self.path = str(reader.manifest.path(shard))
        self.names = reader.columns_of(chunk)
        self.origin = origin_of(chunk.source, shard, reader.places_of(chunk))

    def batches(self, columns: tuple[str, ...], alone: bool = False) -> list[pa.RecordBatch]:
        """As ``table.Rows``."""
        return self._reader.batches(self._chunk, columns, keep=not alone)


class _Stream:
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
