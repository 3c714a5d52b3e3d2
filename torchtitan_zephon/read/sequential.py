"""Files that can only be read from the front: unpacked once, cut into slices of what comes out.

What flows in: a chunk that is a slice (``plan.slices``). What flows out: its records. One reader serves every format
that is read so; how records are told apart and parsed is the format's ``Cutter``. Unpacking and cutting are in order,
file by file; parsing is a pure function of what was cut, for any worker.
"""

from __future__ import annotations

import itertools
import time
from typing import NamedTuple, Protocol

import numpy as np

from ..bad_records import Sifted
from ..plan.chunking import Chunk, Pieces
from ..records import Contents
from .files import Manifest
from .open_streams import OpenStreams
from .packings import BLOCK_BYTES, Entry, Unpacked, open_unpacked, packing_of

PACKED = 4
"""What a packed file is taken to hold, times its size. It decides the size of slices of a small source, and an epoch's
length where one is shown; the mixture counts what is read."""
OPEN_STREAMS = 64
LOOK_BYTES = 2**24
MOST_UNPACKED = 2**62


class Cut(NamedTuple):
    """Whole records as they lie in a file: ``data`` from unpacked byte ``at`` on.

    ``too_long``: places and sizes of records that are left out of it, as they are longer than a record may be.
    """

    at: int
    data: bytes
    too_long: tuple[tuple[int, int], ...] = ()

    def places(self, offsets: np.ndarray) -> np.ndarray:
        """The unpacked bytes that lie at ``offsets`` of ``data``; both int64 [records]."""
        found: np.ndarray = self.at + offsets
        for place, size in self.too_long:
            found[found >= place] += size
        return found


class Cutter(Protocol):
    """How a format's records lie one behind the other. Made as a ``Reader`` is; thread-safe.

    A stream always stands where a record begins, or at its end.
    """

    contents: Contents

    def seek(self, stream: Unpacked, at: int) -> None:
        """Go to the first record that begins at unpacked byte ``at`` or behind it."""

    def take(self, stream: Unpacked, stop: int) -> Cut:
        """All records that begin before ``stop``."""

    def parse(self, chunk: Chunk, cut: Cut, columns: frozenset[str] | None) -> Sifted:
        """The records in ``cut``; ``columns`` as for ``Source.read``."""

    def describe(self, place: int) -> str:
        """In words, where in its file a record lies."""


class SequentialReader:
    """Reads the slices of one source. Thread-safe: a stream is used by one thread at a time."""

    largest_id: int | None = None

    def __init__(self, manifest: Manifest, cutter: Cutter) -> None:
        self.manifest, self.cutter = manifest, cutter
        self.contents = cutter.contents
        self._streams = OpenStreams[int, Unpacked](OPEN_STREAMS)

    def pieces(self) -> Pieces:
        """One piece a file; its units are unpacked bytes, as many as it is taken to hold."""
        times = [PACKED if packing_of(shard.name) else 1 for shard in self.manifest.shards]
        sizes = np.array([s.num_bytes for s in self.manifest.shards], dtype=np.int64) * np.array(times, np.int64)
        return Pieces(sizes=sizes, units=sizes, runs_of_one=True, sequential=True)

    def shard_of(self, piece: int) -> int:
        """Pieces are shards."""
        return piece

    def open(self, piece: int, entry: Entry) -> Unpacked:
        """The stream of a file from ``entry`` on."""
        shard = self.manifest.shards[piece]
        file = self.manifest.store.open(shard.name)
        return open_unpacked(file, self.manifest.store.path(shard.name), shard.name, shard.num_bytes, entry)

    def length(self, piece: int) -> int:
        """Unpacked bytes of a file, found by unpacking it."""
        stream = self.open(piece, Entry(0, 0))
        stream.skip(MOST_UNPACKED)
        return stream.at

    def restore_seconds(self) -> float:
        """About how long it takes to go on anywhere in the largest file: unpacking from the place before that can be
        entered. Measured on the file's first ``LOOK_BYTES``."""
        shards = self.manifest.shards
        piece = max(range(len(shards)), key=lambda p: shards[p].num_bytes)
        stream, entries, began = self.open(piece, Entry(0, 0)), {Entry(0, 0)}, time.process_time()
        while stream.at < LOOK_BYTES and stream.read(BLOCK_BYTES):
            entries.add(stream.entry())
        seconds = (time.process_time() - began) / max(1, stream.at)
        places = sorted(entry.unpacked for entry in entries)
        if len(places) > 1:
            return seconds * max(b - a for a, b in itertools.pairwise(places))
        return seconds * int(self.pieces().sizes[piece])

    def around(self, piece: int, unit: int, num_bytes: int) -> tuple[int, int]:
        """The records that begin in ``num_bytes`` unpacked bytes from ``unit`` on."""
        return unit, unit + num_bytes

    def weigh(self, piece: int, borders: np.ndarray) -> np.ndarray:
        """Bytes of the records that begin in [borders[i], borders[i + 1]) of ``piece``; int64 [ranges]."""
        stream, starts = self.open(piece, Entry(0, 0)), []
        for border in borders.tolist():
            self.cutter.seek(stream, border)
            starts.append(stream.at)
        return np.diff(np.array(starts, dtype=np.int64))

    def read(self, chunk: Chunk, columns: frozenset[str] | None) -> Sifted:
        """The records that begin in the unpacked bytes [chunk.start, chunk.stop)."""
        held = self._streams.take(chunk.piece, chunk.start)
        stream = held[1] if held else self.open(chunk.piece, Entry(0, 0))
        self.cutter.seek(stream, chunk.start)
        cut = self.cutter.take(stream, chunk.stop)
        self._streams.put(chunk.piece, chunk.stop, stream)
        return self.cutter.parse(chunk, cut, columns)

    def let_go(self) -> None:
        """Close what ``read`` keeps open: a source that is read by tapes has no more use for it."""
        self._streams.clear()

    def span(self, chunk: Chunk) -> str:
        """In words, where in its shard a chunk lies."""
        return f"unpacked bytes {chunk.start:,} to {chunk.stop:,}"

    def describe(self, place: int) -> str:
        """In words, where in its shard a record lies."""
        return self.cutter.describe(place)
