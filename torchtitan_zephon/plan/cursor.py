"""The endless list of chunks of one lane, as a pure function of a small cursor.

What flows in: a cursor (for each source: runs finished, chunks done in the current run, tokens
scheduled). What flows out: the next chunk and the cursor after it. Run g = epoch * n + i of a
source belongs to lane (g + offset) % lanes, so each is read once an epoch by one lane, and a source
with fewer runs than lanes still feeds them all. Every source has an offset of its own, or in one
pass over many small sources the first lanes would get all of them. No reading happens here: a whole job can be planned
on paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from . import keyed
from .chunking import Chunk, ChunkTable
from .mixture import Mixture


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
class LanePlan:
    """All that decides the chunks of ``lane``.

    One a source: ``offsets``, ``order_keys`` (None: read in shard order), ``tokens_per_mib`` (measured).
    """

    lane: int
    lanes: int
    tables: tuple[ChunkTable, ...]
    offsets: tuple[int, ...]
    order_keys: tuple[int, ...] | None
    tokens_per_mib: tuple[int, ...]
    mixture: Mixture
    repeat: bool

    def next(self, cursor: Cursor) -> tuple[Chunk, Cursor] | None:
        """The chunk at ``cursor`` and the cursor behind it; None once a finite plan is done."""
        alive = [self.repeat or self._run_number(s, cursor.runs[s]) < t.num_runs for s, t in enumerate(self.tables)]
        s = self.mixture.next_source(cursor.scheduled_tokens, alive)
        if s < 0:
            return None
        table = self.tables[s]
        epoch, i = divmod(self._run_number(s, cursor.runs[s]), table.num_runs)
        run = i if self.order_keys is None else keyed.permute(keyed.key(self.order_keys[s], epoch), i, table.num_runs)
        chunk, last = table.chunk(epoch, run, cursor.chunks[s])
        tokens = max(1, chunk.num_bytes * self.tokens_per_mib[s] >> 20)
        return chunk, Cursor(
            _with(cursor.runs, s, cursor.runs[s] + last),
            _with(cursor.chunks, s, 0 if last else cursor.chunks[s] + 1),
            _with(cursor.scheduled_tokens, s, cursor.scheduled_tokens[s] + tokens),
        )

    def _run_number(self, s: int, taken: int) -> int:
        return (self.lane - self.offsets[s]) % self.lanes + self.lanes * taken


def lane_offsets(seed: int, names: Sequence[str], lanes: int) -> tuple[int, ...]:
    """The lane that gets run 0 of each source."""
    return tuple(keyed.below(keyed.key(seed, "offset", name), 0, lanes) for name in names)


def order_keys(seed: int, names: Sequence[str]) -> tuple[int, ...]:
    """One key a source for the order of its runs, extended by the epoch when used."""
    return tuple(keyed.key(seed, "order", name) for name in names)


def _with(values: tuple[int, ...], s: int, value: int) -> tuple[int, ...]:
    return (*values[:s], value, *values[s + 1 :])
