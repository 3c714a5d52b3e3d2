"""A rank's figures, and what is said of them while a stream runs.

One sentence is logged of a source, once, if the estimate of its tokens per byte turns out to be off by more than
``TOLERATED``: its share of tokens is off by as much.
"""

from __future__ import annotations

import logging

from ..lane import Lane
from ..program import Program
from ..records import Balance, Figures

logger = logging.getLogger(__name__)

TOLERATED = 0.1
FEWEST_CHUNKS = 16
"""Chunks of a source that must have come; the tokens of a few say little."""


def figures_of(lanes: list[Lane]) -> Figures:
    """The figures of ``lanes``, one or more, summed."""
    total = Balance()
    for lane in lanes:
        total.add(lane.balance)
    columns = [
        (lane.source_tokens, lane.scheduled_tokens, lane.delivered_tokens, _delivered_bytes(lane)) for lane in lanes
    ]
    sums = [tuple(map(sum, zip(*column, strict=True))) for column in zip(*columns, strict=True)]
    return Figures(total, sum(lane.ready for lane in lanes), *sums)


def _delivered_bytes(lane: Lane) -> tuple[float, ...]:
    """Of the planned bytes whose tokens were packed, by source: the part that the trainer has, as much as of tokens."""
    rates, columns = lane.program.plan.tokens_per_mib, (lane.delivered_tokens, lane.source_tokens)
    of_sources = zip(lane.scheduled_tokens, rates, *columns, strict=True)
    return tuple(
        scheduled * 2**20 / rate * delivered / max(1, packed) for scheduled, rate, delivered, packed in of_sources
    )


class Watch:
    """Of one stream; only what was said already is kept."""

    def __init__(self, program: Program) -> None:
        self._names, self._tables, self._said = program.names, program.tables, set[str]()

    def look(self, figures: Figures, tokens_per_mib: tuple[int, ...]) -> None:
        """Say what is to be said now. ``tokens_per_mib``: the estimate, one a source."""
        columns = zip(self._names, self._tables, tokens_per_mib, strict=True)
        for s, (name, table, rate) in enumerate(columns):
            real, scheduled = figures.source_tokens[s], figures.scheduled_tokens[s]
            enough = scheduled >= FEWEST_CHUNKS * (table.typical_chunk_bytes * rate >> 20)
            if name in self._said or not scheduled or not enough or abs(real / scheduled - 1) <= TOLERATED:
                continue
            self._said.add(name)
            logger.warning(
                "source %r: its tokens so far, %s, are %.2f times what was estimated, so its share is off by as much. "
                "Either its tokens per byte vary more than the sample showed (a larger estimate_bytes measures better, "
                "in a new stream), or a few records hold much of it (cut them).", name, f"{real:,}", real / scheduled,
            )  # fmt: skip
