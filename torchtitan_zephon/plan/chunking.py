"""From the sizes of a source's files to its chunks, without reading or indexing them.

What flows in: the size of every *piece* (a JSONL file; a Parquet row group), in shard order.
What flows out: a rule from a run number to the chunks in it. A *run* is what a lane takes at a
time: one chunk, except that a Parquet row group far above the target chunk size is cut into
runs of neighbouring chunks, so that it is not decoded once per chunk.

Memory is one integer a piece, not one a chunk: 15 T tokens in 1,000,000 files are 8 MB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..settings import setting

CHUNKS_PER_LANE = 4
"""A source is cut finer than the target until every lane has this many chunks an epoch."""
SMALLEST_CHUNK_BYTES = 4096
RUN_CHUNKS = 16
"""Most chunks a lane takes in a row from one Parquet row group."""


@dataclass(frozen=True, kw_only=True)
class ChunkSettings:
    """How sources are cut, and in which order their parts are read."""

    chunk_bytes: int = setting(
        256 * 1024,
        "Target size of a chunk, the unit of planning and reading; smaller sources get smaller chunks.",
        low=4096,
        high=2**30,
    )
    shuffle_chunks: bool = setting(True, "Read the chunks of a source in a new order each epoch.")
    shuffle_records: bool = setting(True, "Permute the records inside each chunk.")


class Chunk(NamedTuple):
    """A contiguous run of records: bytes [start, stop) of a JSONL file, or rows of a row group.

    ``number`` counts the chunks of a source within the epoch, in shard order within each run.
    ``num_bytes`` is its planned size, known before it is read.
    """

    source: int
    epoch: int
    number: int
    piece: int
    start: int
    stop: int
    num_bytes: int

    def parts(self, numerator: int, denominator: int) -> tuple[Chunk, ...]:
        """The first ``numerator`` / ``denominator`` of the chunk, then its rest; whole if it cannot be cut."""
        units = self.stop - self.start
        middle = self.start + max(1, units * numerator // denominator)
        if middle >= self.stop:
            return (self,)
        first = self.num_bytes * (middle - self.start) // units
        return (
            self._replace(stop=middle, num_bytes=first),
            self._replace(start=middle, num_bytes=self.num_bytes - first),
        )


@dataclass(frozen=True, slots=True)
class Pieces:
    """What a source consists of. ``units`` are bytes (JSONL) or rows (Parquet): int64 [pieces].

    ``sizes`` are text bytes, int64 [pieces]; ``runs_of_one`` says that every chunk is a run. ``sequential``: a piece
    can only be read from its front, and its size is what it is taken to hold (``slices.py``).
    """

    sizes: np.ndarray
    units: np.ndarray
    runs_of_one: bool
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class ChunkTable:
    """The chunks of one source. ``first_run``: cumulative runs before each piece, int64 [pieces + 1]."""

    source: int
    chunk_bytes: int
    run_chunks: int
    pieces: Pieces
    chunks: np.ndarray
    first_run: np.ndarray

    @property
    def num_runs(self) -> int:
        """Runs in one epoch."""
        return int(self.first_run[-1])

    @property
    def num_chunks(self) -> int:
        """Chunks in one epoch."""
        return int(self.chunks.sum())

    @property
    def typical_chunk_bytes(self) -> int:
        """Mean planned size of a chunk, at least 1."""
        return max(1, int(self.pieces.sizes.sum()) // max(1, self.num_chunks))

    def borders(self, piece: int) -> np.ndarray:
        """Where the chunks of a piece begin, and where the last one ends, in units: int64 [chunks + 1]."""
        chunks, units = int(self.chunks[piece]), int(self.pieces.units[piece])
        k = np.arange(chunks + 1, dtype=np.int64)
        return np.minimum(k * self.chunk_bytes, units) if self.pieces.runs_of_one else k * units // max(1, chunks)

    def chunk(self, epoch: int, run: int, k: int) -> tuple[Chunk, bool]:
        """Chunk ``k`` of run ``run`` (0 <= run < num_runs), and whether it is the run's last."""
        piece = int(np.searchsorted(self.first_run, run, side="right")) - 1
        in_piece = (run - int(self.first_run[piece])) * self.run_chunks + k
        chunks, units = int(self.chunks[piece]), int(self.pieces.units[piece])
        if self.pieces.runs_of_one:  # cut at fixed offsets: an appended file keeps its first chunks
            start, stop = in_piece * self.chunk_bytes, min((in_piece + 1) * self.chunk_bytes, units)
            size = stop - start
        else:
            start, stop = in_piece * units // chunks, (in_piece + 1) * units // chunks
            size = int(self.pieces.sizes[piece]) * (stop - start) // max(1, units)
        last = k + 1 == self.run_chunks or in_piece + 1 == chunks
        number = run * self.run_chunks + k
        return Chunk(self.source, epoch, number, piece, start, stop, size), last


def chunk_size(total_bytes: int, target_bytes: int, lanes: int) -> int:
    """``target_bytes``, or less where that would leave a lane under ``CHUNKS_PER_LANE`` chunks, but not under 4 KiB."""
    fits = total_bytes // (CHUNKS_PER_LANE * lanes)
    return max(min(target_bytes, fits), min(target_bytes, SMALLEST_CHUNK_BYTES))


def cut(source: int, pieces: Pieces, target_bytes: int, lanes: int) -> ChunkTable:
    """Choose a chunk size for ``pieces`` and count the runs of each piece.

    The size depends on the manifest and the recipe only. An empty piece has no chunk.
    """
    total = int(pieces.sizes.sum())
    chunk_bytes = chunk_size(total, target_bytes, lanes)
    chunks = -(-pieces.sizes // chunk_bytes)
    if pieces.runs_of_one:
        run_chunks = 1
    else:
        chunks = np.minimum(np.maximum(chunks, 1), pieces.units)
        run_chunks = max(1, min(RUN_CHUNKS, total // (CHUNKS_PER_LANE * lanes) // chunk_bytes))
    runs = -(-chunks // run_chunks)
    first_run = np.zeros(len(runs) + 1, dtype=np.int64)
    np.cumsum(runs, out=first_run[1:])
    return ChunkTable(source, chunk_bytes, run_chunks, pieces, chunks.astype(np.int64), first_run)
