"""The slices of files that can only be read from the front: compressed files, archives, CSV.

What flows in: how many such files there are. What flows out: runs, and which slices are in a run. Slice j of a file
holds the records whose first byte lies in the unpacked bytes [j * u, (j + 1) * u), so that a packed file and its plain
twin have the same slices. A run is every m-th slice of a file, from the r-th on: its reader unpacks the file once and
parses what is its own. m is the least number with files * m >= lanes; with fewer runs, some lanes would have nothing.

A lane's runs of a source, end to end, are its *tape*. How many slices a run has is found out by reading, so the plan
says only "the tape's next slice", and what was found travels to the state as a ``TapePlace``. One pass has to end in
all lanes at once: there the files are unpacked and measured first, and the runs are dealt as chunks are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .chunking import Chunk, Pieces, chunk_size
from .deal import pass_chunk_size

NEXT = -1
"""The piece of a planned chunk that is a tape's next slice."""
PASS_RUNS_PER_LANE = 8
"""In one pass, runs for every lane, so that they can be dealt evenly; a file is unpacked by as many lanes more."""


class TapePlace(NamedTuple):
    """A place in a lane's tape of one source.

    ``runs``: finished. Of the run at hand, ``slices``: finished; ``border``: where, in unpacked bytes, the next record
    begins; ``packed`` and ``unpacked``: the last place before it where the unpacking can begin.
    """

    runs: int = 0
    slices: int = 0
    border: int = 0
    packed: int = 0
    unpacked: int = 0


@dataclass(frozen=True, slots=True)
class SliceTable:
    """The slices of one source. ``slices``: of each piece, int64 [pieces]; None where they are not counted.

    ``first_run``: cumulative runs before each piece, int64 [pieces + 1].
    """

    source: int
    chunk_bytes: int
    pieces: Pieces
    slices: np.ndarray | None
    first_run: np.ndarray

    @property
    def num_runs(self) -> int:
        """Runs in one epoch."""
        return int(self.first_run[-1])

    @property
    def readers(self) -> int:
        """Most lanes that unpack one file in an epoch."""
        return int(np.diff(self.first_run).max())

    @property
    def num_chunks(self) -> int:
        """Slices in one epoch; about, where they are not counted."""
        return int(-(-self.pieces.sizes // self.chunk_bytes).sum() if self.slices is None else self.slices.sum())

    @property
    def typical_chunk_bytes(self) -> int:
        """Planned size of a slice."""
        return self.chunk_bytes

    @property
    def run_chunks(self) -> int:
        """Most slices of a run, where they are counted."""
        return 0 if self.slices is None else int((-(-self.slices // np.maximum(1, np.diff(self.first_run)))).max())

    def run_bytes(self) -> np.ndarray:
        """Planned bytes of every run of a counted source: int64 [runs]."""
        assert self.slices is not None
        parts = np.diff(self.first_run)
        slices, parts_of_run = np.repeat(self.slices, parts), np.repeat(parts, parts)
        first = np.arange(self.num_runs) - np.repeat(self.first_run[:-1], parts)
        run_slices: np.ndarray = -(-(slices - first) // parts_of_run)
        return run_slices * self.chunk_bytes

    def part(self, run: int) -> tuple[int, int, int]:
        """Of a run: its piece, its first slice, and every how manyth slice is its own."""
        piece = int(np.searchsorted(self.first_run, run, side="right")) - 1
        first = int(self.first_run[piece])
        return piece, run - first, int(self.first_run[piece + 1]) - first

    def slice_at(self, epoch: int, run: int, k: int) -> Chunk:
        """Slice ``k`` of a run, wherever it ends. Its number is its piece's: of no use but to tell slices apart."""
        piece, first, every = self.part(run)
        start = (first + k * every) * self.chunk_bytes
        return Chunk(self.source, epoch, piece, piece, start, start + self.chunk_bytes, self.chunk_bytes)

    def chunk(self, epoch: int, run: int, k: int) -> tuple[Chunk, bool]:
        """Slice ``k`` of a run and whether it is the last; of a tape, slice ``k`` since its beginning."""
        if self.slices is None:
            return Chunk(self.source, epoch, k, NEXT, 0, self.chunk_bytes, self.chunk_bytes), False
        piece, first, every = self.part(run)
        return self.slice_at(epoch, run, k), first + (k + 1) * every >= int(self.slices[piece])


def cut_slices(source: int, pieces: Pieces, target_bytes: int, lanes: int, lengths: np.ndarray | None) -> SliceTable:
    """Choose a slice size and the runs. ``lengths``: unpacked bytes of the pieces, int64 [pieces], for one pass.

    Without them the size of a slice follows from ``pieces.sizes``, which is what the files are taken to hold.
    """
    if lengths is None:
        chunk_bytes = chunk_size(int(pieces.sizes.sum()), target_bytes, lanes)
        every = -(-lanes // max(1, int(np.count_nonzero(pieces.sizes))))
        parts = np.where(pieces.sizes > 0, every, 0)
        slices = None
    else:
        chunk_bytes = pass_chunk_size(int(lengths.sum()), target_bytes, lanes)
        slices = -(-lengths // chunk_bytes)
        every = -(-PASS_RUNS_PER_LANE * lanes // max(1, int(np.count_nonzero(slices))))
        parts = np.minimum(slices, every)
    first_run = np.zeros(len(parts) + 1, np.int64)
    np.cumsum(parts, out=first_run[1:])
    return SliceTable(source, chunk_bytes, pieces, slices, first_run)
