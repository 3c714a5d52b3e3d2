"""Which source feeds a lane's next chunk, so that shares of *tokens* follow the weights.

What flows in: tokens scheduled so far per source. What flows out: the index of the next source.
Stride scheduling (Waldspurger and Weihl, 1995): source s is due at virtual time
``(phase + scheduled) / weight``; the earliest goes first. Of two sources, each is within one chunk
of its share in any prefix of a lane; a heavy source beside many light ones can be off by more
(4.6 chunks for 0.9 beside ten of 0.01), since all the light ones may be due at once.
Every lane starts at another phase, spread evenly over the lanes for each source, or step 0 would see
one source only. All arithmetic is on integers.

>>> mixture = Mixture((3, 1), phases=(0, 0))
>>> scheduled, order = [0, 0], []
>>> for _ in range(8):
...     source = mixture.next_source(scheduled, (True, True))
...     order.append(source); scheduled[source] += 100
>>> order
[0, 1, 0, 0, 0, 1, 0, 0]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import keyed

_SCALE = 1 << 80


@dataclass(frozen=True, slots=True)
class Mixture:
    """``weights``: positive integers; ``phases``: tokens each source starts ahead by."""

    weights: tuple[int, ...]
    phases: tuple[int, ...]

    def next_source(self, scheduled: Sequence[int], alive: Sequence[bool]) -> int:
        """Index of the source due first, ties to the lower index; -1 if none is alive."""
        best, best_due = -1, 0
        for s, weight in enumerate(self.weights):
            if alive[s]:
                due = (self.phases[s] + scheduled[s]) * _SCALE // weight
                if best < 0 or due < best_due:
                    best, best_due = s, due
        return best


def integer_weights(weights: Mapping[str, float]) -> tuple[int, ...]:
    """Weights as integers that add up to about 2**32, whatever they added up to before.

    ``[3, 1]`` and ``[0.75, 0.25]`` give the same integers; the rounding error is 2**-32.
    """
    scale = 2.0**-64 if max(weights.values(), default=0) > 2.0**900 else 1.0  # or the sum may overflow
    scaled = [w * scale for w in weights.values()]
    total = math.fsum(scaled)
    return tuple(max(1, round(w / total * 2**32)) for w in scaled)


def lane_phases(
    seed: int, names: Sequence[str], typical_tokens: Sequence[int], lane: int, lanes: int
) -> tuple[int, ...]:
    """Each source's head start in ``lane``: a distinct fraction of its typical chunk's tokens.

    For every source the ``lanes`` fractions are (k + 1/2) / lanes in a keyed order.
    """
    return tuple(
        (2 * keyed.permute(keyed.key(seed, "phase", name), lane, lanes) + 1) * typical // (2 * lanes)
        for name, typical in zip(names, typical_tokens, strict=True)
    )
