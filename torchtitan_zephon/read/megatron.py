"""Megatron's ``.bin`` and ``.idx``: token ids end to end, and beside them where each document begins.

The ``.bin`` files are the shards, and cut by bytes; where documents begin is looked up in the ``.idx``
(``megatron_index.py``).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ..bad_records import Sifted
from ..errors import SourceError
from ..plan.chunking import Chunk
from ..records import Contents
from .files import Manifest
from .kept import Kept
from .megatron_index import HEADER_BYTES, Begins, header_of
from .placed import Numbered, PlacedReader, documents_of
from .settings import SourceConfig

KEPT_INDICES = 512
"""Indices kept a source, each with at most 4 MiB of what was looked up in it."""


class MegatronReader(PlacedReader):
    """Reads the chunks of one source of Megatron files. Thread-safe."""

    contents: Contents = "ids"

    def __init__(self, manifest: Manifest, settings: SourceConfig, max_record_bytes: int) -> None:
        super().__init__(manifest, settings, max_record_bytes)
        names = {shard.name for shard in manifest.shards}
        for left in manifest.left_out:
            if left.name.endswith(".idx") and f"{left.name[:-4]}.bin" not in names:
                raise SourceError(
                    f"{manifest.store.path(left.name)!r} is there without its .bin, which holds the ids. Copy both."
                )
        self._indices = Kept(manifest, "the index", self._index, lambda begins: 1, KEPT_INDICES)
        self.largest_id = max(
            int(np.iinfo(self._indices.of(shard).header.dtype.str).max) for shard in self.first_look()
        )

    def _index(self, shard: int) -> Begins:
        store, name = self.manifest.store, f"{self.manifest.shards[shard].name[:-4]}.idx"
        path = store.path(name)
        try:
            size, head = store.version(name)[0], store.read(name, 0, HEADER_BYTES)
        except FileNotFoundError:
            raise SourceError(
                f"{self.path(shard)!r} is there without {path!r}, which says where its documents begin. Copy both, or "
                'read the ids as one long row: format = "tokens", with dtype and document_end.'
            ) from None
        begins = Begins(header_of(path, head, size), partial(self.part_of, name), partial(self._disagree, shard))
        begins.check(self.manifest.shards[shard].num_bytes)
        return begins

    def _disagree(self, shard: int, why: str) -> SourceError:
        return SourceError(
            f"{self.path(shard)!r} has {self.manifest.shards[shard].num_bytes:,} bytes, and the .idx beside it is not "
            f"its own: {why}. One of them was cut or is of another run: copy both anew."
        )

    def places(self, shard: int) -> Numbered:
        """As ``PlacedReader``; a place is the number of a document."""
        return Numbered(self._indices.of(shard), self.manifest.shards[shard].num_bytes)

    def records(self, chunk: Chunk, first: int, stop: int, columns: frozenset[str] | None) -> Sifted:
        """As ``PlacedReader``."""
        begins, size = self._indices.of(chunk.piece), self.manifest.shards[chunk.piece].num_bytes
        at = np.append(begins.range(first, stop), begins[stop] if stop < len(begins) else size)
        offsets, odd = np.divmod(at - at[0], begins.header.dtype.itemsize)
        if odd.any() or (np.diff(offsets) < 0).any() or not 0 <= at[0] <= at[-1] <= size:
            raise self._disagree(chunk.piece, "its documents are in no order")
        ids = np.frombuffer(self.bytes_of(chunk.piece, int(at[0]), int(at[-1])), begins.header.dtype)
        return documents_of(chunk, ids, offsets, np.arange(first, stop), self._field, columns), []

    def describe(self, place: int) -> str:
        """As ``PlacedReader``."""
        return f"document {place:,}"
