"""The shuffle buffer of one lane: sequences in, the same sequences in another order out.

The accumulator holds up to ``size`` sequences. Every push beyond that lets a random one go. The
window starts small and grows by one for every two pushes, because a lane that first waited for
512 sequences would keep the first batch waiting for a million tokens. A flush lets all go.
Draws come from a key of their own for each segment, so nothing but the segment's start decides
the order. Quality: a sequence moves at most one segment; size 0 passes through.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from ..plan import keyed
from ..settings import setting

T = TypeVar("T")
FIRST_WINDOW = 16


@dataclass(frozen=True, kw_only=True)
class ShuffleSettings:
    """How sequences are shuffled in a lane."""

    shuffle_buffer_sequences: int = setting(
        128,
        "Size of a lane's shuffle buffer in sequences; 0 turns it off. It grows from 16 by one for every two "
        "sequences and empties at a flush, so it never holds more than 16 + flush_every_sequences / 2.",
        low=0,
        high=2**20,
    )
    shuffle_seed: int | None = setting(
        None, "Seed of the shuffle buffer; the same as `seed` if not given.", low=0, high=2**63 - 1
    )


class ShuffleBuffer(Generic[T]):
    """``held`` sequences wait; conserved: pushed = let go + held."""

    def __init__(self, size: int, key: int) -> None:
        self.size, self._key = size, key
        self._pushed = self._drawn = 0
        self._held: list[T] = []

    def push(self, sequence: T) -> list[T]:
        """Take one; returns the one to let go, or none while the window grows."""
        self._held.append(sequence)
        self._pushed += 1
        window = min(self.size, FIRST_WINDOW + self._pushed // 2)
        return [self._pick()] if len(self._held) > window else []

    def flush(self) -> list[T]:
        """Let all go in random order. The buffer is not used afterwards."""
        return [self._pick() for _ in range(len(self._held))]

    def _pick(self) -> T:
        i = keyed.below(self._key, self._drawn, len(self._held)) if len(self._held) > 1 else 0
        self._drawn += 1
        self._held[i], self._held[-1] = self._held[-1], self._held[i]
        return self._held.pop()
