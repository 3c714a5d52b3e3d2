"""How many sequences the lanes of a finite stream have, before the first is handed out.

What flows in: a program. What flows out: the number of sequences of each lane in one pass. All ranks must
end at the same step, so each counts its own lanes, which costs reading and tokenising them once more, and the ranks
exchange the counts once. They are a part of the stream's state: a resume counts nothing. Kept for the life of the
process, as a validation set is passed many times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future

from ..errors import ConfigError
from ..lane import Lane
from ..plan.chunking import Chunk
from ..plan.layout import Layout
from ..program import Program
from ..records import Tokens
from ..state import recipe_hash
from .agree import Exchange, alone, gather
from .pool import Pool
from .waiting import wait_for

_counted: dict[tuple[str, tuple[int, ...]], dict[int, int]] = {}


def count_pass(
    program: Program, tokens_per_mib: tuple[int, ...], layout: Layout, workers: int, exchange: Exchange
) -> tuple[int, ...]:
    """Sequences of every lane in one pass. A rank counts its own lanes, and all if it has nobody to ask.

    Raises the same ``ZephonError`` on every rank if one of them cannot count.
    """
    lanes = range(layout.lanes)
    known = _known(program, tokens_per_mib)
    if any(n not in known for n in lanes):
        own = lanes if exchange is alone else layout.own_lanes
        for found in gather(exchange, lambda: count_sequences(program, tokens_per_mib, own, workers)):
            known.update({int(n): count for n, count in found.items()})
    return tuple(known[n] for n in lanes)


def count_sequences(
    program: Program, tokens_per_mib: tuple[int, ...], lanes: Iterable[int], workers: int
) -> dict[int, int]:
    """Sequences of each of ``lanes`` in one pass of a finite stream. Raises ``ConfigError`` if it repeats."""
    if program.recipe.repeat:
        raise ConfigError("a repeating stream has no last step.")
    known = _known(program, tokens_per_mib)
    if new := [n for n in lanes if n not in known]:
        pool = Pool(workers)
        try:
            for n, lane in program.lanes(new, tokens_per_mib).items():
                known[n] = _count_lane(Lane(lane), program, pool, 2 * workers)
        finally:
            pool.close()
    return {n: known[n] for n in lanes}


def _known(program: Program, tokens_per_mib: tuple[int, ...]) -> dict[int, int]:
    return _counted.setdefault((recipe_hash(program.identity), tokens_per_mib), {})


def _count_lane(lane: Lane, program: Program, pool: Pool, depth: int) -> int:
    work: deque[tuple[Future[Tokens], Chunk]] = deque()
    count = 0
    while True:
        while len(work) < depth and (chunk := lane.plan_chunk()) is not None:
            work.append((pool.submit(program.work, chunk), chunk))
        if not work:
            return count + lane.ready
        lane.arrived(wait_for(*work.popleft(), program, pool))
        while lane.ready:
            lane.take()
            count += 1
