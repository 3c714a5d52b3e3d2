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
from .nested import top_of
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
        self._text = settings.text
        check_indices(manifest)
        self._shards = Kept(manifest, "where samples lie", self._shard, lambda shard: len(shard.begins), KEPT_SAMPLES)
        looked_into = self.first_look()
        self.contents: Contents = self._contents(looked_into[0])
        for shard in looked_into:
            self._check_contents(shard)
        if self.contents == "ids":
            columns = [self._shards.of(shard).column(self._field) for shard in looked_into]
            self.largest_id = max(_largest(column) for column in columns if column is not None)

    def _shard(self, shard: int) -> Shard:
        num_bytes = self.manifest.shards[shard].num_bytes
        try:
            return shard_of(partial(self.bytes_of, shard), num_bytes, self._field, self._dtype)
        except SourceError:
            raise
        except (ValueError, IndexError) as error:
            raise SourceError(f"{self.path(shard)!r} is no readable MDS shard: {error}. Copy it anew.") from error

    def _contents(self, shard: int) -> Contents:
        """What the fields hold in a shard. Raises ``SourceError`` if it is nothing that can be trained on."""
        path, found = self.path(shard), self._shards.of(shard)
        names = [column.name for column in found.columns]
        for field in self._text.fields:
            column = found.column(top_of(names, field))
            if column is None:
                raise SourceError(
                    f"{path!r} has no column {field!r}; its columns: {', '.join(map(repr, names))}. Name the text "
                    'column with `field = "..."`.'
                )
            kind = ids_type(column.encoding)
            if kind is not None and kind.kind in "iu" and self._text.one_field:
                return "ids"
            if column.encoding not in (("str", "json") if column.name == field else ("json",)):
                raw = ' If they are token ids, say of which type: dtype = "int64", for one.'
                raise SourceError(
                    f"{path!r}: column {field!r} holds {column.encoding}, neither text (str) nor token ids (an ndarray "
                    f"of integers).{raw if column.encoding == 'bytes' else ''}"
                )
        return "text"

    def places(self, shard: int) -> Numbered:
        """As ``PlacedReader``; a place is the number of a sample."""
        return Numbered(self._shards.of(shard).begins[:-1], self.manifest.shards[shard].num_bytes)

    def records(self, chunk: Chunk, first: int, stop: int, columns: frozenset[str] | None) -> Sifted:
        """As ``PlacedReader``."""
        shard, path = self._shards.of(chunk.piece), self.path(chunk.piece)
        self._check_contents(chunk.piece)
        names = [column.name for column in shard.columns]
        wanted = None if columns is None else frozenset(top_of(names, field) for field in columns)
        at = shard.begins[first : stop + 1]
        data = self.bytes_of(chunk.piece, int(at[0]), int(at[-1]))
        try:
            parts = [parts_of(data[begin:end], shard, wanted) for begin, end in pairwise((at - at[0]).tolist())]
        except (ValueError, StopIteration) as error:
            raise SourceError(f"{path!r}, samples {first:,} to {stop - 1:,}: {error}. Copy it anew.") from error
        records, places, bad = list[Record](), list[int](), list[BadRecord]()
        for place, of_sample in enumerate(parts, first):
            try:
                records.append(self._decoded(of_sample))
                places.append(place)
            except (ValueError, IndexError, KeyError) as error:
                bad.append(BadRecord("column", place, f"a value cannot be decoded: {type(error).__name__}: {error}"))
        places_of = np.array(places, np.int64)
        if columns is not None and self.contents == "ids":
            ids = [record[self._field].reshape(-1).astype(np.int64, copy=False) for record in records]
            offsets = np.cumsum([0, *map(len, ids)], dtype=np.int64)
            flat = np.concatenate([np.zeros(0, np.int64), *ids])
            return documents_of(chunk, flat, offsets, places_of, self._field, columns), bad
        return Documents.of_values({RECORD: records}, origin_of(chunk.source, chunk.piece, places_of)), bad

    def _check_contents(self, shard: int) -> None:
        if self._contents(shard) != self.contents:
            raise SourceError(
                f"{self.path(shard)!r}: column {self._field!r} holds other than in the first shard, "
                f"{'token ids' if self.contents == 'ids' else 'text'}; a source is one or the other."
            )

    def _decoded(self, parts: dict[Column, bytes]) -> Record:
        record = {column.name: decoded(data, column.encoding) for column, data in parts.items()}
        if self.contents == "ids" and record[self._field].dtype.kind not in "iu":
            raise ValueError(f"{record[self._field].dtype} is no type of token ids")
        return record

    def describe(self, place: int) -> str:
        """As ``PlacedReader``."""
        return f"sample {place:,}"


def _largest(column: Column) -> int:
    """The largest id that a column can hold."""
    kind = ids_type(column.encoding)
    assert kind is not None
    return int(np.iinfo(kind).max)
