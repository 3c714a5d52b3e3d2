"""How long a finite stream is, without asking another rank.

What flows in: a program. What flows out: the number of sequences of every lane in one pass. Every
rank must know the last step, and none waits for another, so each reads and tokenises the whole
source once, before its first batch. Advantage: no collective; disadvantage: the set is read by
every rank. Kept for the life of the process (a validation set is passed many times).
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future

from ..errors import ConfigError
from ..lane import Lane
from ..program import Program
from ..records import Tokens
from ..state import recipe_hash
from .pool import Pool

_counted: dict[tuple[str, tuple[int, ...]], list[int]] = {}


def count_sequences(program: Program, tokens_per_mib: tuple[int, ...], workers: int) -> list[int]:
    """Sequences of every lane in one pass of a finite stream. Raises ``ConfigError`` if it repeats."""
    if program.recipe.repeat:
        raise ConfigError("a repeating stream has no last step.")
    key = _key(program, tokens_per_mib)
    if key not in _counted:
        pool = Pool(workers)
        try:
            _counted[key] = [
                _count_lane(Lane(program.lane(n, tokens_per_mib)), program, pool, 2 * workers)
                for n in range(program.recipe.lanes)
            ]
        finally:
            pool.close()
    return _counted[key]


def remember_count(program: Program, tokens_per_mib: tuple[int, ...], counts: list[int]) -> None:
    """Take ``counts`` for what ``count_sequences`` found in another process."""
    _counted[_key(program, tokens_per_mib)] = counts


def _key(program: Program, tokens_per_mib: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    return recipe_hash(program.identity), tokens_per_mib


def _count_lane(lane: Lane, program: Program, pool: Pool, depth: int) -> int:
    work: deque[Future[Tokens]] = deque()
    count = 0
    while True:
        while len(work) < depth and (chunk := lane.plan_chunk()) is not None:
            work.append(pool.submit(program.work, chunk))
        if not work:
            return count + lane.ready
        lane.arrived(work.popleft().result())
        while lane.ready:
            lane.take()
            count += 1
