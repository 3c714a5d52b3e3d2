"""How many sequences the lanes of a finite stream have, before the first is handed out.

What flows in: a program. What flows out: the number of sequences of each lane in one pass. All ranks must
end at the same step, so each counts its own lanes, which costs reading and tokenising them once more, and the ranks
exchange the counts once. They are a part of the stream's state: a resume counts nothing. Kept for the life of the
process, as a validation set is passed many times. Where the lanes are so unlike that much of the pass is padding, the
first rank says so before the first step.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterable, Sequence

from ..config import RunSettings
from ..errors import ConfigError
from ..lane.machine import Lane
from ..plan.layout import Layout
from ..program import Program
from ..progress import Progress
from ..state import recipe_hash
from .agree import Exchange, alone, gather
from .fetch import Fetch

logger = logging.getLogger(__name__)

TOLERATED_PADDING = 0.02
"""A larger part of a pass that is padding, for lanes that end early, is pointed out."""

_counted: dict[tuple[str, tuple[int, ...]], dict[int, int]] = {}


def count_pass(
    program: Program, tokens_per_mib: tuple[int, ...], layout: Layout, settings: RunSettings, exchange: Exchange
) -> tuple[int, ...]:
    """Sequences of every lane in one pass. A rank counts its own lanes, and all if it has nobody to ask.

    Raises the same ``ZephonError`` on every rank if one of them cannot count.
    """
    lanes = range(layout.lanes)
    known = _known(program, tokens_per_mib)
    if any(n not in known for n in lanes):
        own = lanes if exchange is alone else layout.own_lanes
        for found in gather(exchange, lambda: count_sequences(program, tokens_per_mib, own, settings)):
            known.update({int(n): count for n, count in found.items()})
        if layout.dp_rank == 0 and (text := unlike([known[n] for n in lanes], layout.lane_sequences)):
            logger.warning("zephon: %s", text)
    return tuple(known[n] for n in lanes)


def unlike(counts: Sequence[int], lane_sequences: int) -> str | None:
    """What to say of lanes whose pass has ``counts`` sequences, ``lane_sequences`` a step; None if they are alike.

    >>> unlike([98, 99, 98, 947], 1)[:81]
    'one pass takes 947 steps where 311 would do: lane 3 has 947 sequences, most lanes'
    """
    steps, would_do = (-(-n // lane_sequences) for n in (max(counts), -(-sum(counts) // len(counts))))
    if steps <= would_do + 1 or steps - would_do <= TOLERATED_PADDING * steps:
        return None
    return (
        f"one pass takes {steps:,} steps where {would_do:,} would do: lane {counts.index(max(counts))} has "
        f"{max(counts):,} sequences, most lanes about {round(statistics.median(counts)):,}. So "
        f"{1 - would_do / steps:.0%} of what is read is padding. A record is read whole by one lane: cut records that "
        "are long beside a lane's part, or use fewer lanes. A filter that drops much in one place has this effect too."
    )


def count_sequences(
    program: Program, tokens_per_mib: tuple[int, ...], lanes: Iterable[int], settings: RunSettings
) -> dict[int, int]:
    """Sequences of each of ``lanes`` in one pass of a finite stream. Raises ``ConfigError`` if it repeats."""
    if program.recipe.repeat:
        raise ConfigError("a repeating stream has no last step.")
    known = _known(program, tokens_per_mib)
    if new := [n for n in lanes if n not in known]:
        machines = [Lane(of_lane) for of_lane in program.lanes(new, tokens_per_mib).values()]
        fetch = Fetch(program, machines, settings)
        try:
            with Progress("counting one pass", None, "sequences") as progress:
                known.update({lane.number: _count_lane(lane, fetch, progress) for lane in machines})
        finally:
            fetch.close()
    return {n: known[n] for n in lanes}


def _known(program: Program, tokens_per_mib: tuple[int, ...]) -> dict[int, int]:
    return _counted.setdefault((recipe_hash(program.identity), tokens_per_mib), {})


def _count_lane(lane: Lane, fetch: Fetch, progress: Progress) -> int:
    fetch.active, count = [lane], 0
    fetch.read_on(lane)
    while not lane.dry:
        lane.take()
        count += 1
        progress.done()
        fetch.read_on(lane)
    return count
