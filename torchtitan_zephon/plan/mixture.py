"""Which source feeds a lane's next chunk, so that shares of *tokens* follow the weights.

What flows in: by how many tokens each source is ahead of its target. What flows out: the index of the next source.
A source's target is its part, by weight, of the tokens of the lane. The source that is furthest behind it for its
weight goes first. With constant weights this is stride scheduling (Waldspurger and Weihl, 1995): source s is due at
virtual time ``(phase + tokens) / weight``; the earliest goes first. Of two sources, each is within one chunk
of its share in any prefix of a lane; a heavy source beside many light ones can be off by more
(4.6 chunks for 0.9 beside ten of 0.01), since all the light ones may be due at once.
Every lane begins as if it had been under way for a while (``Begin``, ``lane_phases``): the sources that
the lanes begin with are in proportion to the weights, or the first batches would be nearly one source.
All arithmetic is on integers.

>>> mixture = Mixture((3, 1), phases=(0, 0))
>>> ahead, order = [0, 0], []
>>> for _ in range(8):
...     source = mixture.next_source(ahead, (True, True))
...     order.append(source); ahead[source] += 100
>>> order
[0, 1, 0, 0, 0, 1, 0, 0]
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from . import keyed

_SCALE = 1 << 80


@dataclass(frozen=True, slots=True)
class Mixture:
    """``weights``: positive integers; ``phases``: tokens each source starts ahead by."""

    weights: tuple[int, ...]
    phases: tuple[int, ...]

    def next_source(self, ahead: Sequence[int], alive: Sequence[bool]) -> int:
        """Index of the source due first, ties to the lower index; -1 if none is alive.

        ``ahead``: tokens of each source less its target, which need be right only up to a multiple of the weights.
        """
        best, best_due = -1, 0
        for s, weight in enumerate(self.weights):
            if alive[s]:
                due = (self.phases[s] + ahead[s]) * _SCALE // weight
                if best < 0 or due < best_due:
                    best, best_due = s, due
        return best

    def targets(self, tokens: int) -> tuple[int, ...]:
        """``tokens`` divided by weight, one whole number a source; they add up to ``tokens``.

        >>> Mixture((2, 1), phases=(0, 0)).targets(10)
        (6, 4)
        """
        cumulative = [0, *itertools.accumulate(self.weights)]
        ends = [tokens * c // cumulative[-1] for c in cumulative]
        return tuple(end - begin for begin, end in itertools.pairwise(ends))


def integer_weights(weights: Mapping[str, float]) -> tuple[int, ...]:
    """Weights as integers that add up to about 2**32, whatever they added up to before.

    ``[3, 1]`` and ``[0.75, 0.25]`` give the same integers; the rounding error is 2**-32.
    """
    scale = 2.0**-64 if max(weights.values(), default=0) > 2.0**900 else 1.0  # or the sum may overflow
    scaled = [w * scale for w in weights.values()]
    total = math.fsum(scaled)
    return tuple(max(1, round(w / total * 2**32)) for w in scaled)


class Begin(NamedTuple):
    """What a lane begins with: a part of a chunk of ``source``, its first ``numerator`` / ``denominator``.

    It is as much as a lane that has been under way would still have to deliver of the chunk at hand. The rest of the
    chunk is the source's next, so the order within a source is not changed.
    """

    source: int
    numerator: int
    denominator: int


def lane_begin(seed: int, weights: Sequence[int], lane: int, lanes: int) -> Begin:
    """How ``lane`` begins: the lanes' sources are spread evenly over the weights, their parts evenly over a chunk.

    A lane under way is inside a chunk of a source for the source's share of the time, and anywhere in the
    chunk. With three sources of .5, .3, .2 and 16 lanes 8, 5 and 3 lanes begin with them. Measured there, chunks of
    128 sequences: the largest error of a share in the first step is .013; without it .116, or .49 where one
    source's chunks are 30 times smaller.
    """
    point = (2 * keyed.permute(keyed.key(seed, "begin"), lane, lanes) + 1) * sum(weights) // (2 * lanes)
    source = 0
    while point >= weights[source]:
        point -= weights[source]
        source += 1
    return Begin(source, 2 * keyed.permute(keyed.key(seed, "part"), lane, lanes) + 1, 2 * lanes)


def lane_phases(
    seed: int, names: Sequence[str], weights: Sequence[int], typical_tokens: Sequence[int], lane: int, lanes: int
) -> tuple[int, ...]:
    """Each source's head start in ``lane``, in tokens.

    For every source the lanes' head starts are (k + 1/2) / lanes of its typical chunk, in a keyed order. The source
    that the lane begins with is ahead by what the others are owed for the part of the chunk that the lane would have
    delivered before: that part times (1 - share).
    """
    phases = [
        (2 * keyed.permute(keyed.key(seed, "phase", name), lane, lanes) + 1) * typical // (2 * lanes)
        for name, typical in zip(names, typical_tokens, strict=True)
    ]
    s, numerator, denominator = lane_begin(seed, weights, lane, lanes)
    before = typical_tokens[s] * (denominator - numerator) // denominator
    phases[s] = before * (sum(weights) - weights[s]) // sum(weights)
    return tuple(phases)
