"""MDS, the format of Mosaic Streaming: shards of samples, and an ``index.json`` that names them.

Shards are cut by bytes, and tell by themselves where their samples lie (``mds_shard``). The index is read at the start:
it says whether all shards are there and whole.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np

from ..bad_records import BadRecord, Sifted
from ..errors import SourceError
from ..plan.chunking import Chunk
from ..records import RECORD, Contents, Documents, Record, origin_of
from .files import Manifest
from .kept import Kept
from .mds_index import check_indices
from .mds_shard import Column, Shard, decoded, ids_type, parts_of, shard_of
from .placed import Numbered, PlacedReader, documents_of
from .settings import SourceConfig

KEPT_SAMPLES = 2**21
"""Places of samples kept a source, 8 bytes each."""


class MdsReader(PlacedReader):
    """Reads the chunks of one MDS source. Thread-safe."""

    least_bytes = 8

    def __init__(self, manifest: Manifest, settings: SourceConfig, max_record_bytes: int) -> None:
        super().__init__(manifest, settings, max_record_bytes)
        self._dtype = settings.dtype
        check_indices(manifest)
        self._shards = Kept(manifest, "where samples lie", self._shard, lambda shard: len(shard.begins), KEPT_SAMPLES)
        kinds = [ids_type(self._column(shard).encoding) for shard in self.first_look()]
        if kinds[0] is not None:
            self.contents: Contents = "ids"
            self.largest_id = max(int(np.iinfo(kind).max) for kind in kinds if kind is not None)

    def _shard(self, shard: int) -> Shard:
        num_bytes = self.manifest.shards[shard].num_bytes
        try:
            return shard_of(partial(self.bytes_of, shard), num_bytes, self._field, self._dtype)
        except SourceError:
            raise
        except (ValueError, IndexError) as error:
            raise SourceError(f"{self.path(shard)!r} is no readable MDS shard: {error}. Copy it anew.") from error

    def _column(self, shard: int) -> Column:
        """The field's column in a shard. Raises ``SourceError`` if it is none that can be trained on."""
        path, found = self.path(shard), self._shards.of(shard)
        column = found.column(self._field)
        if column is None:
            names = ", ".join(repr(column.name) for column in found.columns)
            raise SourceError(
                f"{path!r} has no column {self._field!r}; its columns: {names}. Name the text column with "
                '`field = "..."`.'
            )
        kind = ids_type(column.encoding)
        if column.encoding not in ("str", "json") and (kind is None or kind.kind not in "iu"):
            raw = ' If they are token ids, say of which type: dtype = "int64", for one.' * (column.encoding == "bytes")
            raise SourceError(
                f"{path!r}: column {self._field!r} holds {column.encoding}, neither text (str) nor token ids (an "
                f"ndarray of integers).{raw}"
            )
        return column

    def places(self, shard: int) -> Numbered:
        """As ``PlacedReader``; a place is the number of a sample."""
        return Numbered(self._shards.of(shard).begins[:-1], self.manifest.shards[shard].num_bytes)

    def records(self, chunk: Chunk, first: int, stop: int, columns: frozenset[str] | None) -> Sifted:
        """As ``PlacedReader``."""
        shard, path = self._shards.of(chunk.piece), self.path(chunk.piece)
        column = self._column(chunk.piece)
        if (ids_type(column.encoding) is not None) != (self.contents == "ids"):
            raise SourceError(
                f"{path!r}: column {self._field!r} holds {column.encoding}, and the first shard "
                f"{'token ids' if self.contents == 'ids' else 'text'}; a source is one or the other."
            )
        at = shard.begins[first : stop + 1]
        data = self.bytes_of(chunk.piece, int(at[0]), int(at[-1]))
        try:
            parts = [parts_of(data[begin:end], shard, columns) for begin, end in pairwise((at - at[0]).tolist())]
        except (ValueError, StopIteration) as error:
            raise SourceError(f"{path!r}, samples {first:,} to {stop - 1:,}: {error}. Copy it anew.") from error
        records, places, bad = list[Record](), list[int](), list[BadRecord]()
        for place, of_sample in enumerate(parts, first):
            try:
                records.append(self._decoded(of_sample))
                places.append(place)
            except (ValueError, IndexError, KeyError) as error:
                bad.append(BadRecord("column", place, f"a value cannot be decoded: {type(error).__name__}: {error}"))
        return self._documents(chunk, records, np.array(places, np.int64), columns), bad

    def _decoded(self, parts: dict[Column, bytes]) -> Record:
        record = {column.name: decoded(data, column.encoding) for column, data in parts.items()}
        if self.contents == "ids" and record[self._field].dtype.kind not in "iu":
            raise ValueError(f"{record[self._field].dtype} is no type of token ids")
        return record

    def _documents(
        self, chunk: Chunk, records: list[Record], places: np.ndarray, columns: frozenset[str] | None
    ) -> Documents:
        if columns is not None and self.contents == "ids":
            ids = [record[self._field].reshape(-1).astype(np.int64, copy=False) for record in records]
            offsets = np.cumsum([0, *map(len, ids)], dtype=np.int64)
            flat = np.concatenate([np.zeros(0, np.int64), *ids])
            return documents_of(chunk, flat, offsets, places, self._field, columns)
        origin = origin_of(chunk.source, chunk.piece, places)
        if columns is None:
            return Documents.of_values({RECORD: records}, origin)
        names = [column.name for column in self._shards.of(chunk.piece).columns if column.name in columns]
        return Documents.of_values({name: [record[name] for record in records] for name in names}, origin)

    def describe(self, place: int) -> str:
        """As ``PlacedReader``."""
        return f"sample {place:,}"
