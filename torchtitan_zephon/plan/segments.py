"""A lane's plan, segment by segment: which chunk is next, and which one ends the segment.

What flows in: where the sources stood when the segment began, and the place in it. What flows out: the next chunk,
with a mark if it ends the segment or the lane. So it is known before a chunk is read whether a segment ends with it.

A segment ends with the first chunk at whose end its *expected* tokens reach ``segment_tokens``. Expected are planned
bytes times tokens per byte: those of the estimate, until real tokens are known. When segment k begins, the chunks up to
segment k - 2 have been tokenised, whatever has been read ahead. Their real tokens replace the scheduled ones, and real
tokens over planned bytes replace the estimate. So a wrong estimate makes two segments of a lane too long or too short,
and the shares that it bent in them are mended by the next ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..settings import setting
from .chunking import Chunk
from .cursor import Cursor, LaneRuns, replaced
from .mixture import Mixture

LEAST_PART = 2
"""A source's tokens count as at least half of what the estimate promised for its bytes. So where a lane finds next to
nothing in a source (one long record holds it, and another lane reads that), it reads twice as fast as planned and no
faster. With 1/16 instead of a half every lane soon meets the long record: .2 became .7 of 8 M tokens."""
LEAST_RATE = 16
"""Tokens per byte are taken for at least 1/16 of the estimate, or a segment might have no end."""

TRUSTED_CHUNKS = 16
"""The estimate of a source's tokens per byte is worth as much as reading so many of its chunks."""

Ends = Literal["", "segment", "lane"]


@dataclass(frozen=True, kw_only=True)
class SegmentSettings:
    """How long a segment is, and what keeps the shares of the sources."""

    flush_every_sequences: int = setting(
        256,
        "A lane empties its buffers after the chunks of about this many sequences, a segment. A restore replays up to "
        "one segment a lane.",
        low=1,
        high=2**30,
    )
    shares: Literal["measured", "estimated"] = setting(
        "measured",
        "What a source's share is kept by: the tokens that were read of it (`measured`, a segment behind), or the "
        "`estimated` tokens per byte for ever.",
    )


class SourcePlace(NamedTuple):
    """Where a lane stands in one source when a segment begins.

    runs, chunks: the cursor. Of the segments up to the last but one: ``tokens``, real; ``num_bytes``, planned;
    ``target``, the source's part of the lane's tokens. Of the last segment: ``last_tokens``, real; ``last_scheduled``;
    ``last_bytes``, planned.
    """

    runs: int = 0
    chunks: int = 0
    tokens: int = 0
    num_bytes: int = 0
    target: int = 0
    last_tokens: int = 0
    last_scheduled: int = 0
    last_bytes: int = 0

    @property
    def all_tokens(self) -> int:
        """Real tokens of all segments before."""
        return self.tokens + self.last_tokens

    @property
    def all_bytes(self) -> int:
        """Planned bytes of all segments before."""
        return self.num_bytes + self.last_bytes


class Place(NamedTuple):
    """A place in a segment's plan. By source, of the segment's chunks so far: scheduled tokens and planned bytes."""

    cursor: Cursor
    scheduled: tuple[int, ...]
    num_bytes: tuple[int, ...]


class Shares(NamedTuple):
    """What decides the mixture inside a segment, by source.

    ``expected_per_mib``: tokens in a MiB of planned bytes, as far as is known. ``scheduled_per_mib``: what they count
    as until they are. ``ahead``: tokens before the segment less the target.
    """

    expected_per_mib: tuple[int, ...]
    scheduled_per_mib: tuple[int, ...]
    ahead: tuple[int, ...]


class Planned(NamedTuple):
    """A chunk of a plan; ``ends``: what ends with it; ``behind``: the place behind it."""

    chunk: Chunk
    ends: Ends
    behind: Place


@dataclass(frozen=True, slots=True)
class LanePlan:
    """All that decides the chunks of a lane. ``tokens_per_mib``: the estimate, one a source.

    ``measured``: whether real tokens replace the estimate.
    """

    runs: LaneRuns
    mixture: Mixture
    tokens_per_mib: tuple[int, ...]
    segment_tokens: int
    measured: bool

    def holds(self, sources: Sequence[SourcePlace]) -> bool:
        """Whether a segment can begin where ``sources`` stand: at runs and chunks of the plan, not at a pass's end."""
        cursor = _cursor(sources)
        return self.runs.holds(cursor) and (cursor == self.runs.start or any(self.runs.alive(cursor)))

    def begin(self, sources: Sequence[SourcePlace]) -> tuple[Place, Shares]:
        """The segment that begins where ``sources`` stand. Their ``last_tokens`` are of no account."""
        nothing = (0,) * len(sources)
        place = Place(_cursor(sources), nothing, nothing)
        counted = self._counted(sources)
        columns = zip(sources, self.tokens_per_mib, self.runs.tables, strict=True)
        expected = [
            _rate(s, estimated, TRUSTED_CHUNKS * table.typical_chunk_bytes) if self.measured else estimated
            for s, estimated, table in columns
        ]
        pairs = list(zip(expected, self.tokens_per_mib, strict=True))
        last_targets = self.mixture.targets(sum(s.last_scheduled for s in sources))
        ahead = tuple(
            tokens + s.last_scheduled - s.target - target
            for s, tokens, target in zip(sources, counted, last_targets, strict=True)
        )
        return place, Shares(
            tuple(max(1, rate, estimated // LEAST_RATE) for rate, estimated in pairs),
            tuple(max(1, rate, estimated // LEAST_PART) for rate, estimated in pairs),
            ahead,
        )

    def next(self, place: Place, shares: Shares) -> Planned | None:
        """The chunk at ``place``; None once a finite plan is done."""
        alive = self.runs.alive(place.cursor)
        if place.cursor == self.runs.start and alive[self.runs.begin.source]:
            s = self.runs.begin.source
        else:
            ahead = [before + own for before, own in zip(shares.ahead, place.scheduled, strict=True)]
            s = self.mixture.next_source(ahead, alive)
            if s < 0:
                return None
        chunk, cursor = self.runs.take(place.cursor, s)
        scheduled = place.scheduled[s] + max(1, chunk.num_bytes * shares.scheduled_per_mib[s] >> 20)
        behind = Place(
            cursor,
            replaced(place.scheduled, s, scheduled),
            replaced(place.num_bytes, s, place.num_bytes[s] + chunk.num_bytes),
        )
        expected = sum(n * rate >> 20 for n, rate in zip(behind.num_bytes, shares.expected_per_mib, strict=True))
        ends: Ends = "segment" if expected >= self.segment_tokens else ""
        if not self.runs.repeat and not any(self.runs.alive(cursor)):
            ends = "lane"
        return Planned(chunk, ends, behind)

    def after(self, sources: Sequence[SourcePlace], end: Place, tokens: Sequence[int]) -> tuple[SourcePlace, ...]:
        """Where the next segment begins: behind one that began at ``sources``, ended at ``end`` and held ``tokens``."""
        settled = [s._replace(tokens=s.all_tokens, num_bytes=s.all_bytes) for s in sources]
        targets = self.mixture.targets(sum(self._counted(settled)) - sum(self._counted(sources)))
        columns = zip(settled, targets, tokens, *end.cursor, end.scheduled, end.num_bytes, strict=True)
        return tuple(
            SourcePlace(runs, chunks, s.tokens, s.num_bytes, s.target + target, real, scheduled, num_bytes)
            for s, target, real, runs, chunks, scheduled, num_bytes in columns
        )

    def _counted(self, sources: Sequence[SourcePlace]) -> list[int]:
        """What the tokens of each source, up to the last segment but one, count as."""
        estimated = [s.num_bytes * rate >> 20 for s, rate in zip(sources, self.tokens_per_mib, strict=True)]
        if not self.measured:
            return estimated
        return [max(s.tokens, tokens // LEAST_PART) for s, tokens in zip(sources, estimated, strict=True)]


def _rate(s: SourcePlace, estimated: int, trusted_bytes: int) -> int:
    """Tokens per MiB by what was read and by the estimate, which counts as much as ``trusted_bytes`` would.

    The estimate is of places all over the source, and a lane's first chunks tell less than it; but not where it is off
    by more than two.
    """
    promised = estimated * s.num_bytes
    if promised and not promised < s.tokens << 21 < 4 * promised:
        return (s.tokens << 20) // s.num_bytes
    return ((s.tokens << 20) + estimated * trusted_bytes) // (s.num_bytes + trusted_bytes)


def _cursor(sources: Sequence[SourcePlace]) -> Cursor:
    return Cursor(tuple(s.runs for s in sources), tuple(s.chunks for s in sources))
