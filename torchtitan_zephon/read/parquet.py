"""Parquet: row groups, and row ranges of those far above the chunk size.

Its column is text, or lists of token ids. Only that column is decoded, unless a user's function
wants whole records. A row range is read by streaming its row group's batches from the start; a
lane takes neighbouring ranges one after the other, and the open stream is kept for the next (at
most ``OPEN_STREAMS`` a source), so that a row group is decoded about once a run and not once a
chunk. A miss costs time, never bytes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import SourceError
from ..plan.chunking import Chunk, Pieces
from ..records import Record
from . import BadRecord
from .files import Manifest
from .ids import is_ids
from .retry import with_retries

OPEN_STREAMS = 64
_BATCH_ROWS = 256

_Stream = Iterator[pa.RecordBatch]


class ParquetReader:
    """Reads the chunks of one Parquet source. Thread-safe: a stream is used by one thread at a time."""

    def __init__(self, manifest: Manifest, field: str) -> None:
        self.manifest = manifest
        self._field = field
        self.holds_ids = False
        self._groups = [g for shard in range(len(manifest.shards)) for g in self._row_groups(shard)]
        self._streams: OrderedDict[tuple[int, int, bool], tuple[_Stream, pa.RecordBatch | None]] = OrderedDict()
        self._lock = threading.Lock()
        if not self._groups:
            raise SourceError(f"none of the {len(manifest.shards)} Parquet files in {str(manifest.root)!r} has a row.")

    def _row_groups(self, shard: int) -> list[tuple[int, int, int, int, int]]:
        """(shard, row group, first row, rows, text bytes) of every row group that has rows."""
        path = self.manifest.path(shard)
        try:
            metadata, schema = with_retries(lambda: _footer(path), path, "the footer")
        except (pa.ArrowException, OSError) as error:
            raise SourceError(f"{str(path)!r} is not a readable Parquet file: {error}") from None
        ids = self._holds_ids(path, schema)
        if shard and ids != self.holds_ids:
            raise SourceError(
                f"{str(path)!r}: column {self._field!r} holds {schema.field(self._field).type}, and the files before "
                f"it {'token ids' if self.holds_ids else 'text'}; a source is one or the other."
            )
        self.holds_ids = ids
        groups, first = [], 0
        for g in range(metadata.num_row_groups):
            group = metadata.row_group(g)
            columns = [group.column(c) for c in range(group.num_columns)]
            size = sum(
                c.total_uncompressed_size
                for c in columns
                if c.path_in_schema == self._field or (ids and c.path_in_schema.startswith(f"{self._field}."))
            )
            if group.num_rows:
                groups.append((shard, g, first, group.num_rows, max(1, size)))
            first += group.num_rows
        return groups

    def _holds_ids(self, path: Path, schema: pa.Schema) -> bool:
        """Whether the column holds token ids and not text; ``SourceError`` if it is neither."""
        if self._field not in schema.names:
            raise SourceError(
                f"{str(path)!r} has no column {self._field!r}; its columns: "
                f'{", ".join(map(repr, schema.names))}. Name the text column with `field = "..."`.'
            )
        if schema.names.count(self._field) > 1:
            raise SourceError(f"{str(path)!r} has {schema.names.count(self._field)} columns named {self._field!r}.")
        kind = schema.field(self._field).type
        text = kind.value_type if pa.types.is_dictionary(kind) else kind
        if pa.types.is_string(text) or pa.types.is_large_string(text) or pa.types.is_string_view(text):
            return False
        if not is_ids(kind):
            raise SourceError(
                f"{str(path)!r}: column {self._field!r} holds {kind}, neither text (string) nor token ids (list, "
                "large_list or fixed_size_list of integers)."
            )
        return True

    def pieces(self) -> Pieces:
        """One piece a row group that has rows; its units are rows."""
        columns = np.array(self._groups, dtype=np.int64)
        return Pieces(sizes=columns[:, 4], units=columns[:, 3], runs_of_one=False)

    def shard_of(self, piece: int) -> int:
        """The file that row group ``piece`` lies in."""
        return self._groups[piece][0]

    def read(self, chunk: Chunk, whole_records: bool) -> tuple[list[Record], np.ndarray]:
        """The records of ``chunk`` and their row numbers in the file, int64 [records]."""
        batches, places = self._batches(chunk, whole_records)
        try:
            return [record for batch in batches for record in batch.to_pylist()], places
        except UnicodeDecodeError as error:
            rows = f"rows {places[0]} to {places[-1]}"
            raise BadRecord(f"a text in {rows} is not valid UTF-8: {error}", int(places[0])) from None

    def read_ids(self, chunk: Chunk) -> tuple[list[pa.Array], np.ndarray]:
        """The token ids of ``chunk``, a list a row, in arrays of many rows; and the row numbers, int64 [rows]."""
        batches, places = self._batches(chunk, False)
        return [batch.column(0) for batch in batches], places

    def _batches(self, chunk: Chunk, whole_records: bool) -> tuple[list[pa.RecordBatch], np.ndarray]:
        shard, group, first, rows, _ = self._groups[chunk.piece]
        wanted = chunk.stop - chunk.start
        with self._lock:
            stream, held = self._streams.pop((chunk.piece, chunk.start, whole_records), (None, None))
        waiting = None if stream is None else (stream, held)

        def read() -> tuple[_Stream, list[pa.RecordBatch], pa.RecordBatch | None]:
            nonlocal waiting
            opened, waiting = waiting, None  # a stream that failed is opened anew
            if opened is None:
                begun = self._open(shard, group, whole_records)
                opened = begun, self._skip(begun, chunk.start)
            return opened[0], *self._take(*opened, wanted)

        try:
            stream, batches, held = with_retries(read, self.manifest.path(shard), self.span(chunk))
        except (pa.ArrowException, OSError) as error:
            raise SourceError(f"{str(self.manifest.path(shard))!r}, row group {group}: {error}") from None
        if sum(batch.num_rows for batch in batches) < wanted:
            raise SourceError(
                f"{str(self.manifest.path(shard))!r}, row group {group} ends early: the file was changed "
                "while the job runs."
            )
        if chunk.stop < rows:
            with self._lock:
                self._streams[chunk.piece, chunk.stop, whole_records] = (stream, held)
                if len(self._streams) > OPEN_STREAMS:
                    self._streams.popitem(last=False)
        return batches, np.arange(first + chunk.start, first + chunk.stop, dtype=np.int64)

    def _open(self, shard: int, group: int, whole_records: bool) -> _Stream:
        file = pq.ParquetFile(self.manifest.path(shard))
        return file.iter_batches(  # type: ignore[no-any-return]
            batch_size=_BATCH_ROWS,
            row_groups=[group],
            use_threads=False,
            columns=None if whole_records else [self._field],
        )

    @staticmethod
    def _skip(stream: _Stream, rows: int) -> pa.RecordBatch | None:
        """Pass over ``rows`` rows; returns the rest of the batch in which they ended."""
        for batch in stream if rows else ():
            if rows < batch.num_rows:
                return batch.slice(rows)
            rows -= batch.num_rows
            if not rows:
                return None
        return None

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
        _, group, first, _, _ = self._groups[chunk.piece]
        return f"row group {group}, rows {first + chunk.start:,} to {first + chunk.stop - 1:,}"

    def describe(self, place: int) -> str:
        """In words, where in its shard a record lies."""
        return f"row {place}"


def _footer(path: Path) -> tuple[pq.FileMetaData, pa.Schema]:
    with pq.ParquetFile(path) as file:
        return file.metadata, file.schema_arrow
