"""Compares, while a stream runs, the tokens that came with those the plan had counted on.

What flows in: a rank's figures, now and then. What flows out: one sentence a source, once, if the estimate of its
tokens per byte turns out to be off by more than ``TOLERATED``: its share of tokens is off by as much.
"""

from __future__ import annotations

from ..program import Program
from ..records import Figures

TOLERATED = 0.1
FEWEST_CHUNKS = 16
"""Chunks of a source that must have come; the tokens of a few say little."""


class Watch:
    """Of one stream; only what was said already is kept."""

    def __init__(self, program: Program) -> None:
        self._names, self._tables, self._said = program.names, program.tables, set[str]()

    def strays(self, figures: Figures, tokens_per_mib: tuple[int, ...]) -> list[str]:
        """What is to be said now. ``tokens_per_mib``: the estimate, one a source."""
        found = []
        columns = zip(self._names, self._tables, tokens_per_mib, strict=True)
        for s, (name, table, rate) in enumerate(columns):
            real, scheduled = figures.source_tokens[s], figures.scheduled_tokens[s]
            enough = scheduled >= FEWEST_CHUNKS * (table.typical_chunk_bytes * rate >> 20)
            if name in self._said or not scheduled or not enough or abs(real / scheduled - 1) <= TOLERATED:
                continue
            self._said.add(name)
            found.append(
                f"source {name!r}: its tokens so far, {real:,}, are {real / scheduled:.2f} times what was estimated, "
                "so its share is off by as much. Its tokens per byte vary more than the sample showed: a larger "
                "estimate_bytes measures better (a new stream)."
            )
        return found
