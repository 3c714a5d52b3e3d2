"""Arrow IPC files and streams, Feather version 2, and what ``datasets`` saves: tables in record batches.

A batch lies at certain bytes of its file, and a row has an even share of them, though its values lie in several
places. So files are cut by bytes, and nothing is read at the start but some schemas, whatever the number of files.
Where the batches of a file lie is found when a chunk of it is read, and kept. Reading rows out of the middle of a
batch costs the bytes of these rows, unless buffers are compressed (Feather does that): then a batch is decoded whole
for each chunk.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ..bad_records import Sifted
from ..plan.chunking import Chunk
from ..records import origin_of
from .arrow_messages import MARK_BYTES, Messages, batch_of, find_messages, schema_of, told
from .arrow_rows import rows_of
from .files import Manifest
from .ids import contents_of, largest_of, mixed
from .kept import Kept
from .nested import top_of, type_at
from .placed import PlacedReader
from .retry import with_retries
from .settings import SourceConfig
from .table import Decoder

KEPT_BATCHES = 2**18
"""Places of batches kept a source, about 50 bytes each."""
KEPT_HEAD_BYTES = 64 * 2**20
"""Schemas and dictionaries kept a source."""


class ArrowReader(PlacedReader):
    """Reads the chunks of one source of Arrow files. Thread-safe."""

    least_bytes = MARK_BYTES

    def __init__(self, manifest: Manifest, settings: SourceConfig, max_record_bytes: int) -> None:
        super().__init__(manifest, settings, max_record_bytes)
        self._text = settings.text
        self._messages = Kept(manifest, "the messages", self._find, lambda found: len(found.batches), KEPT_BATCHES)
        self._heads = Kept(manifest, "the dictionaries", self._head, lambda head: sum(map(len, head)), KEPT_HEAD_BYTES)
        store, shards = manifest.store, manifest.shards
        for n, shard in enumerate(self.first_look()):
            path, name = self.path(shard), shards[shard].name
            schema = with_retries(partial(schema_of, store, name, shards[shard].num_bytes), path, "the schema")
            contents = contents_of(path, schema, self._text)
            if n and contents != self.contents:
                raise mixed(path, schema, self._text, self.contents)
            self.contents = contents
            if contents == "ids":
                self.largest_id = max(self.largest_id or 0, largest_of(type_at(schema, self._field)))
        self._decoder = Decoder(self._text.fields, self.contents, max_record_bytes)

    def _find(self, shard: int) -> Messages:
        name, num_bytes, _ = self.manifest.shards[shard]
        found = find_messages(self.manifest.store, name, num_bytes)
        if contents_of(self.path(shard), found.schema, self._text) != self.contents:
            raise mixed(self.path(shard), found.schema, self._text, self.contents)
        return found

    def _head(self, shard: int) -> list[bytes]:
        return [self.bytes_of(shard, span.at, span.stop) for span in self._messages.of(shard).head]

    def places(self, shard: int) -> BatchPlaces:
        """As ``PlacedReader``; a place is the number of a row."""
        return BatchPlaces(self._messages.of(shard), self.manifest.shards[shard].num_bytes)

    def read(self, chunk: Chunk, columns: frozenset[str] | None) -> Sifted:
        """As ``PlacedReader``; which rows are too large is seen when they are decoded, not by their shares of bytes."""
        places = self.places(chunk.piece)
        return self.records(chunk, places.after(chunk.start), places.after(chunk.stop), columns)

    def records(self, chunk: Chunk, first: int, stop: int, columns: frozenset[str] | None) -> Sifted:
        """As ``PlacedReader``."""
        return self._decoder.documents(_Rows(self, chunk, first, stop), columns)

    def names(self, shard: int) -> tuple[str, ...]:
        """Of all columns of a file."""
        return tuple(self._messages.of(shard).schema.names)

    def batches(self, shard: int, first: int, stop: int, columns: tuple[str, ...]) -> list[pa.RecordBatch]:
        """These columns, or those that hold these fields, of the rows [first, stop). Raises ``SourceError``."""
        messages = self._messages.of(shard)
        before, names = messages.first_row, messages.schema.names
        numbers = sorted({names.index(top_of(names, name)) for name in columns})
        found = []
        for n in range(int(np.searchsorted(before, first, side="right")) - 1, int(np.searchsorted(before, stop))):
            begin, end = int(before[n]), int(before[n + 1])
            if begin < end:
                with told(f"{self.path(shard)!r}: record batch {n} (rows {begin:,} to {end - 1:,}) cannot be decoded"):
                    found.append(self._batch(shard, n, numbers, max(first, begin) - begin, min(stop, end) - begin))
        return found

    def _batch(self, shard: int, number: int, columns: list[int], first: int, stop: int) -> pa.RecordBatch:
        messages = self._messages.of(shard)
        span, before = messages.batch(number)
        metadata = self.bytes_of(shard, span.at, span.body)
        batch = batch_of(metadata[MARK_BYTES:])
        head = b"".join(self._heads.of(shard)[:before])
        read = partial(self.bytes_of, shard)
        return rows_of(read, head + metadata, span, batch, messages.schema, columns, (first, stop))

    def describe(self, place: int) -> str:
        """As ``PlacedReader``."""
        return f"row {place}"


class BatchPlaces(NamedTuple):
    """Rows that have an even share of the bytes of their record batch (``Places``)."""

    messages: Messages
    size: int

    def after(self, byte: int) -> int:
        """As ``Places``."""
        n = self._batch_at(byte)
        if byte >= self.size or n < 0:
            return self.messages.rows if n >= 0 else 0
        begin, num_bytes, first, rows = self._batch(n)
        return first + min(rows, -(-(byte - begin) * rows // num_bytes))

    def holding(self, byte: int) -> int:
        """As ``Places``."""
        n = self._batch_at(byte)
        if n < 0:
            return 0
        begin, num_bytes, first, rows = self._batch(n)
        return max(0, min(first + min(rows, ((byte - begin + 1) * rows - 1) // num_bytes), self.messages.rows - 1))

    def byte(self, place: int) -> int:
        """As ``Places``."""
        if place >= self.messages.rows:
            return self.size
        n = int(np.searchsorted(self.messages.first_row, place, side="right")) - 1
        begin, num_bytes, first, rows = self._batch(n)
        return begin + (place - first) * num_bytes // rows

    def _batch_at(self, byte: int) -> int:
        """The last batch that begins at ``byte`` or before; -1 if there is none."""
        return int(np.searchsorted(self.messages.batches[:, 0], byte, side="right")) - 1

    def _batch(self, n: int) -> tuple[int, int, int, int]:
        """Where a batch begins, its bytes, its first row and its rows."""
        span, _ = self.messages.batch(n)
        first = int(self.messages.first_row[n])
        return span.at, span.stop - span.at, first, int(self.messages.first_row[n + 1]) - first


class _Rows:
    """Some rows of a file (``table.Rows``)."""

    def __init__(self, reader: ArrowReader, chunk: Chunk, first: int, stop: int) -> None:
        self._reader, self._shard, self._first, self._stop = reader, chunk.piece, first, stop
        self.path = reader.path(chunk.piece)
        self.names = reader.names(chunk.piece)
        self.origin = origin_of(chunk.source, chunk.piece, np.arange(first, stop, dtype=np.int64))

    def batches(self, columns: tuple[str, ...], alone: bool = False) -> list[pa.RecordBatch]:
        """As ``table.Rows``."""
        return self._reader.batches(self._shard, self._first, self._stop, columns)
