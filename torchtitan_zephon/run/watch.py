"""A rank's figures, and what is said of them while a stream runs.

One sentence is logged of a source, once, if its tokens turn out to be so far from the estimate that its share suffers:
by more than ``TOLERATED`` where shares follow the estimate alone, and else where it gives so little that it cannot be
read fast enough to make up for it. Bad records that are left out are told as they become more.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ..balance import Balance, Figures
from ..lane.machine import Lane
from ..plan.segments import LEAST_PART
from ..program import Program

logger = logging.getLogger(__name__)

TOLERATED = 0.1
FEWEST_CHUNKS = 16
"""Chunks of a source that must have come; the tokens of a few say little."""


def figures_of(lanes: list[Lane]) -> Figures:
    """The figures of ``lanes``, one or more, summed."""
    columns = [
        (lane.source_tokens, _estimated_tokens(lane), lane.delivered_tokens, _delivered_bytes(lane), lane.refused)
        for lane in lanes
    ]
    sums = [tuple(map(sum, zip(*column, strict=True))) for column in zip(*columns, strict=True)]
    return Figures(balance_of(lanes), sum(lane.ready for lane in lanes), *sums)


def balance_of(lanes: list[Lane]) -> Balance:
    """The balance of ``lanes``, summed."""
    total = Balance()
    for lane in lanes:
        total.add(lane.balance)
    return total


def _estimated_tokens(lane: Lane) -> tuple[int, ...]:
    """What the estimate promised for the planned bytes whose tokens were packed, by source."""
    plan = lane.program.plan
    return tuple(n * rate >> 20 for n, rate in zip(lane.source_bytes, plan.tokens_per_mib, strict=True))


def _delivered_bytes(lane: Lane) -> tuple[float, ...]:
    """Of the planned bytes whose tokens were packed, by source: the part that the trainer has, as much as of tokens."""
    columns = zip(lane.source_bytes, lane.delivered_tokens, lane.source_tokens, strict=True)
    return tuple(num_bytes * delivered / max(1, packed) for num_bytes, delivered, packed in columns)


class Watch:
    """Of one stream; only what was said already is kept."""

    def __init__(self, program: Program) -> None:
        self._program, self._said = program, set[str]()
        self._next_refused: dict[tuple[str, str], int] = {}

    def look_at_refused(self, balance: Balance) -> None:
        """Say of each source and kind of bad record that is left out: the first, and how many at 10, 100, ..."""
        for name, read in balance.sources.items():
            for kind, (number, first) in read.refused.items():
                if number >= self._next_refused.get((name, kind), 1):
                    self._next_refused[name, kind] = 10 ** len(str(number))
                    logger.warning("source %r: bad records (%s) left out by this rank so far: %s; the first one: %s",
                        name, kind, f"{number:,}", first)  # fmt: skip

    def look(self, figures: Figures, tokens_per_mib: Mapping[str, int]) -> None:
        """Say what is to be said now. ``tokens_per_mib``: the estimate, by source."""
        for s, (name, table) in enumerate(zip(self._program.names, self._program.tables, strict=True)):
            real, estimated = figures.source_tokens[s], figures.estimated_tokens[s]
            enough = estimated >= FEWEST_CHUNKS * (table.typical_chunk_bytes * tokens_per_mib[name] >> 20)
            if name in self._said or not estimated or not enough:
                continue
            if why := self._why(real / estimated):
                self._said.add(name)
                logger.warning("source %r: its tokens so far, %s, are %.2g times what was estimated, %s", name,
                    f"{real:,}", real / estimated, why)  # fmt: skip

    def _why(self, ratio: float) -> str | None:
        """What follows from real tokens that are ``ratio`` times the estimated ones; None if nothing to speak of."""
        if self._program.recipe.shares == "estimated" and abs(ratio - 1) > TOLERATED:
            return (
                "so its share is off by as much. Either its tokens per byte vary more than the sample showed (a larger "
                'estimate_bytes measures better, in a new stream; shares = "measured" needs no sample), or a few '
                "records hold much of it (cut them)."
            )
        if ratio * LEAST_PART < 1:
            return (
                f"and it is read at most {LEAST_PART} times as fast as planned, so its share is too small. Either a "
                "filter drops nearly all of it, or a few records hold much of it and other lanes read them (cut them)."
            )
        return None
