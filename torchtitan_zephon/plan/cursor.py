"""Which chunk of a source is a lane's next, as a pure function of a small cursor.

What flows in: a cursor (for each source: runs finished, chunks done in the current run) and a source. What flows out:
the source's next chunk and the cursor behind it. Nothing is read here, so a whole job can be planned on paper.

Which runs of a source are the lane's own is said by ``Endless`` (a repeating stream), ``Dealt`` (one pass), or ``Tape``
(a repeating stream of files that can only be read from the front). The lane's first chunk is taken in two parts, so
that the lane begins as one that has been under way: see ``mixture.Begin``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from . import keyed
from .chunking import Chunk, ChunkTable
from .mixture import Begin
from .slices import SliceTable


class Cursor(NamedTuple):
    """A place in a lane's runs; each field has one integer a source."""

    runs: tuple[int, ...]
    chunks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Endless:
    """A lane's runs of one source, for ever: every ``lanes``-th of epoch * num_runs + i, from ``first`` on.

    Each run is read once an epoch, by one lane, and a source with fewer runs than lanes still feeds them
    all. ``order_key`` permutes the runs of an epoch; None reads them in shard order.
    """

    first: int
    lanes: int
    num_runs: int
    order_key: int | None

    def has(self, taken: int) -> bool:
        """Always."""
        return True

    def run(self, taken: int) -> tuple[int, int]:
        """Epoch and number of the run behind the first ``taken``."""
        epoch, i = divmod(self.first + self.lanes * taken, self.num_runs)
        if self.order_key is None:
            return epoch, i
        return epoch, keyed.permute(keyed.key(self.order_key, epoch), i, self.num_runs)


@dataclass(frozen=True, slots=True)
class Dealt:
    """A lane's runs of one source in a single pass, in order: int64 [runs]. Source: ``deal.deal``."""

    runs: np.ndarray

    def has(self, taken: int) -> bool:
        """Whether there is a run behind the first ``taken``."""
        return taken < len(self.runs)

    def run(self, taken: int) -> tuple[int, int]:
        """Epoch 0 and the number of the run behind the first ``taken``."""
        return 0, int(self.runs[taken])


@dataclass(frozen=True, slots=True)
class Tape:
    """A lane's runs of one source whose lengths are not known. To the plan it is a single run without an end."""

    runs: Endless

    def has(self, taken: int) -> bool:
        """Always."""
        return True

    def run(self, taken: int) -> tuple[int, int]:
        """The one run."""
        return 0, 0


@dataclass(frozen=True, slots=True)
class LaneRuns:
    """The chunks of ``lane``. One a source: ``tables`` and ``runs``."""

    lane: int
    tables: tuple[ChunkTable | SliceTable, ...]
    runs: tuple[Endless | Dealt | Tape, ...]
    begin: Begin

    @property
    def repeat(self) -> bool:
        """Whether the lane is endless."""
        return not any(isinstance(runs, Dealt) for runs in self.runs)

    @property
    def start(self) -> Cursor:
        """The beginning of the stream."""
        zeros = (0,) * len(self.runs)
        return Cursor(zeros, zeros)

    def alive(self, cursor: Cursor) -> list[bool]:
        """Which sources have a chunk at ``cursor``."""
        return [runs.has(taken) for runs, taken in zip(self.runs, cursor.runs, strict=True)]

    def take(self, cursor: Cursor, s: int) -> tuple[Chunk, Cursor]:
        """The chunk of source ``s`` at ``cursor``, and the cursor behind it."""
        chunk, last = self._chunk(s, *self.runs[s].run(cursor.runs[s]), cursor)
        return chunk, Cursor(
            replaced(cursor.runs, s, cursor.runs[s] + last),
            replaced(cursor.chunks, s, 0 if last else cursor.chunks[s] + 1),
        )

    def holds(self, cursor: Cursor) -> bool:
        """Whether there is a run and a chunk of every source at which ``cursor`` stands."""
        for s, (runs, taken, k) in enumerate(zip(self.runs, cursor.runs, cursor.chunks, strict=True)):
            if isinstance(runs, Tape):
                if taken:
                    return False
            elif not runs.has(taken):
                if k or (taken and not runs.has(taken - 1)):
                    return False
            elif k > self.tables[s].run_chunks or any(
                self._chunk(s, *runs.run(taken), cursor._replace(chunks=replaced(cursor.chunks, s, i)))[1]
                for i in range(k)
            ):
                return False  # a run's first chunk may be in two parts, and its last one ends it
        return True

    def _chunk(self, s: int, epoch: int, run: int, cursor: Cursor) -> tuple[Chunk, bool]:
        """The chunk at ``cursor`` in a run of source ``s``, and whether it is the run's last."""
        k = cursor.chunks[s]
        if s != self.begin.source or cursor.runs[s]:
            return self.tables[s].chunk(epoch, run, k)
        chunk, last = self.tables[s].chunk(epoch, run, 0)
        parts = chunk.parts(self.begin.numerator, self.begin.denominator)
        if k < len(parts):
            return parts[k], last and k + 1 == len(parts)
        return self.tables[s].chunk(epoch, run, k + 1 - len(parts))


def lane_offsets(seed: int, names: Sequence[str], lanes: int) -> tuple[int, ...]:
    """The lane that gets run 0 of each source: another for each, or small sources would all begin at lane 0."""
    return tuple(keyed.below(keyed.key(seed, "offset", name), 0, lanes) for name in names)


def order_keys(seed: int, names: Sequence[str]) -> tuple[int, ...]:
    """One key a source for the order of its runs, extended by the epoch when used."""
    return tuple(keyed.key(seed, "order", name) for name in names)


def replaced(values: tuple[int, ...], s: int, value: int) -> tuple[int, ...]:
    """``values`` with another at ``s``."""
    return (*values[:s], value, *values[s + 1 :])
