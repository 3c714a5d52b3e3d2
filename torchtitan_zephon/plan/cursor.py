"""The list of chunks of one lane, as a pure function of a small cursor.

What flows in: a cursor (for each source: runs finished, chunks done in the current run, tokens
scheduled). What flows out: the next chunk and the cursor after it. No reading happens here: a whole
job can be planned on paper.

Which runs of a source are the lane's own is said by ``Endless`` (a repeating stream) or ``Dealt``
(one pass). The lane's first chunk is taken in two parts, so that the lane begins as one that has been
under way: see ``mixture.Begin``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from . import keyed
from .chunking import Chunk, ChunkTable
from .mixture import Begin, Mixture


class Cursor(NamedTuple):
    """A place in a lane's plan; each field has one integer a source."""

    runs: tuple[int, ...]
    chunks: tuple[int, ...]
    scheduled_tokens: tuple[int, ...]

    @classmethod
    def start(cls, num_sources: int) -> Cursor:
        """The beginning of the stream."""
        zeros = (0,) * num_sources
        return cls(zeros, zeros, zeros)


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

    def run(self, taken: int) -> tuple[int, int] | None:
        """Epoch and number of the run behind the first ``taken``; never None."""
        epoch, i = divmod(self.first + self.lanes * taken, self.num_runs)
        if self.order_key is None:
            return epoch, i
        return epoch, keyed.permute(keyed.key(self.order_key, epoch), i, self.num_runs)


@dataclass(frozen=True, slots=True)
class Dealt:
    """A lane's runs of one source in a single pass, in order: int64 [runs]. Source: ``deal.deal``."""

    runs: np.ndarray

    def run(self, taken: int) -> tuple[int, int] | None:
        """Epoch 0 and the number of the run behind the first ``taken``; None behind the last."""
        return (0, int(self.runs[taken])) if taken < len(self.runs) else None


@dataclass(frozen=True, slots=True)
class LanePlan:
    """All that decides the chunks of ``lane``. One a source: ``tables``, ``runs``, ``tokens_per_mib`` (measured)."""

    lane: int
    tables: tuple[ChunkTable, ...]
    runs: tuple[Endless | Dealt, ...]
    tokens_per_mib: tuple[int, ...]
    mixture: Mixture
    begin: Begin

    @property
    def repeat(self) -> bool:
        """Whether the lane is endless."""
        return all(isinstance(runs, Endless) for runs in self.runs)

    def next(self, cursor: Cursor) -> tuple[Chunk, Cursor] | None:
        """The chunk at ``cursor`` and the cursor behind it; None once a finite plan is done."""
        runs = [runs.run(taken) for runs, taken in zip(self.runs, cursor.runs, strict=True)]
        if cursor.runs == cursor.chunks == (0,) * len(runs) and runs[self.begin.source] is not None:
            s = self.begin.source
        else:
            s = self.mixture.next_source(cursor.scheduled_tokens, [run is not None for run in runs])
        if (found := runs[s] if s >= 0 else None) is None:
            return None
        chunk, last = self._chunk(s, *found, cursor)
        tokens = max(1, chunk.num_bytes * self.tokens_per_mib[s] >> 20)
        return chunk, Cursor(
            _with(cursor.runs, s, cursor.runs[s] + last),
            _with(cursor.chunks, s, 0 if last else cursor.chunks[s] + 1),
            _with(cursor.scheduled_tokens, s, cursor.scheduled_tokens[s] + tokens),
        )

    def holds(self, cursor: Cursor) -> bool:
        """Whether the plan has the run and the chunk of every source at which ``cursor`` stands."""
        for s, runs in enumerate(self.runs):
            found, k = runs.run(cursor.runs[s]), cursor.chunks[s]
            if found is None:
                if k or (cursor.runs[s] and runs.run(cursor.runs[s] - 1) is None):
                    return False
            elif k > self.tables[s].run_chunks or any(self._chunk(s, *found, _at(cursor, s, i))[1] for i in range(k)):
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


def _at(cursor: Cursor, s: int, k: int) -> Cursor:
    """``cursor`` at chunk ``k`` of the run of source ``s``."""
    return cursor._replace(chunks=_with(cursor.chunks, s, k))


def lane_offsets(seed: int, names: Sequence[str], lanes: int) -> tuple[int, ...]:
    """The lane that gets run 0 of each source: another for each, or small sources would all begin at lane 0."""
    return tuple(keyed.below(keyed.key(seed, "offset", name), 0, lanes) for name in names)


def order_keys(seed: int, names: Sequence[str]) -> tuple[int, ...]:
    """One key a source for the order of its runs, extended by the epoch when used."""
    return tuple(keyed.key(seed, "order", name) for name in names)


def _with(values: tuple[int, ...], s: int, value: int) -> tuple[int, ...]:
    return (*values[:s], value, *values[s + 1 :])
