"""Token files: ids end to end, as numpy, nanoGPT and llm.c write them, cut into documents.

Rows of two dimensions are a document each. One long row is cut behind each ``document_end``, which belongs to the
document that it ends; without one it is cut every ``DOCUMENT_TOKENS`` ids, since a document must end somewhere. The
ids go to the packer as they stand in the file. A place is the number of a document's first id.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ..bad_records import Sifted
from ..errors import SourceError
from ..plan.chunking import Chunk
from ..records import Contents
from .files import Manifest
from .kept import Kept
from .placed import PlacedReader, documents_of
from .settings import SourceConfig
from .token_files import Layout, layout_of

DOCUMENT_TOKENS = 4096
"""Ids of a document in one long row, where nothing says where one ends: 1 of so many is predicted from nothing."""
LONGEST_DOCUMENT_BYTES = 2**30
"""A document that does not end within so many bytes is taken for a wrong ``document_end``."""
KEPT_LAYOUTS = 2**16
_LOOK_BYTES, _MOST_LOOK_BYTES = 16 * 1024, 2**20


class Stretches:
    """Documents of ``ids`` ids each, and the rest of the file (``Places``)."""

    def __init__(self, layout: Layout, ids: int) -> None:
        self._layout, self._ids = layout, ids

    def after(self, byte: int) -> int:
        """As ``Places``."""
        return min(self._layout.ids, -(-self._layout.id_after(byte) // self._ids) * self._ids)

    def holding(self, byte: int) -> int:
        """As ``Places``."""
        return self._layout.id_holding(byte) // self._ids * self._ids

    def byte(self, place: int) -> int:
        """As ``Places``."""
        return self._layout.byte(place)

    def offsets(self, ids: np.ndarray) -> np.ndarray:
        """Where the documents of ``ids`` begin, and where the last one ends: int64 [documents + 1]."""
        return np.append(np.arange(0, len(ids), self._ids, dtype=np.int64), len(ids))


class Ended:
    """Documents that end with the id ``end``, or with the file (``Places``); ``read``: the ids [start, stop)."""

    def __init__(self, layout: Layout, end: int, read: Callable[[int, int], np.ndarray], path: str) -> None:
        self._layout, self._end, self._read, self._path = layout, end, read, path

    def after(self, byte: int) -> int:
        """As ``Places``: from the id before on, since that may end a document."""
        at, block = self._layout.id_after(byte), _LOOK_BYTES
        if not 0 < at < self._layout.ids:
            return at
        first = at = at - 1
        while at < self._layout.ids:
            ids = self._read(at, min(self._layout.ids, at + block // self._layout.id_bytes))
            if len(found := np.flatnonzero(ids == self._end)):
                return at + int(found[0]) + 1
            at, block = at + len(ids), min(2 * block, _MOST_LOOK_BYTES)
            self._check(first, at)
        return at

    def holding(self, byte: int) -> int:
        """As ``Places``."""
        stop = last = self._layout.id_holding(byte)
        block = _LOOK_BYTES
        while stop:
            start = max(0, stop - block // self._layout.id_bytes)
            if len(found := np.flatnonzero(self._read(start, stop) == self._end)):
                return start + int(found[-1]) + 1
            stop, block = start, min(2 * block, _MOST_LOOK_BYTES)
            self._check(stop, last)
        return 0

    def byte(self, place: int) -> int:
        """As ``Places``."""
        return self._layout.byte(place)

    def offsets(self, ids: np.ndarray) -> np.ndarray:
        """Where the documents of ``ids`` begin, and where the last one ends: int64 [documents + 1]."""
        ends = np.flatnonzero(ids == self._end) + 1
        return np.unique(np.concatenate([[0], ends, [len(ids)]]))

    def _check(self, start: int, stop: int) -> None:
        if (stop - start) * self._layout.id_bytes > LONGEST_DOCUMENT_BYTES:
            raise SourceError(
                f"{self._path!r}: no id {self._end} among {stop - start:,} ids from number {start:,} on, so no "
                f"document ends there. Is document_end right? Without it one ends every {DOCUMENT_TOKENS:,} ids."
            )


class TokensReader(PlacedReader):
    """Reads the chunks of token files; thread-safe."""

    contents: Contents = "ids"

    def __init__(self, manifest: Manifest, settings: SourceConfig, max_record_bytes: int) -> None:
        super().__init__(manifest, settings, max_record_bytes)
        self._dtype, self._end = settings.dtype, settings.document_end
        self._layouts = Kept(manifest, "the header", self._layout, lambda layout: 1, KEPT_LAYOUTS)
        self.largest_id = max(int(np.iinfo(self._layouts.of(shard).dtype).max) for shard in self.first_look())

    def _layout(self, shard: int) -> Layout:
        name, num_bytes, _ = self.manifest.shards[shard]
        return layout_of(self.manifest.store, name, num_bytes, self._dtype)

    def places(self, shard: int) -> Stretches | Ended:
        """As ``PlacedReader``."""
        layout = self._layouts.of(shard)
        if layout.row or self._end is None:
            return Stretches(layout, layout.row or DOCUMENT_TOKENS)
        return Ended(layout, self._end, partial(self._ids, shard, layout), self.path(shard))

    def records(self, chunk: Chunk, first: int, stop: int, columns: frozenset[str] | None) -> Sifted:
        """As ``PlacedReader``: tokens "ids", or whole records of an array each."""
        places = self.places(chunk.piece)
        ids = self._ids(chunk.piece, self._layouts.of(chunk.piece), first, stop)
        offsets = places.offsets(ids)
        return documents_of(chunk, ids, offsets, first + offsets[:-1], self._field, columns), []

    def describe(self, place: int) -> str:
        """As ``PlacedReader``."""
        return f"document at id {place:,}"

    def _ids(self, shard: int, layout: Layout, start: int, stop: int) -> np.ndarray:
        return np.frombuffer(self.bytes_of(shard, layout.byte(start), layout.byte(stop)), layout.dtype)
