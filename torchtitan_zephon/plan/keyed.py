"""The only source of randomness: a keyed, counter-based generator.

What flows in: a key made from what the number is for (seed, purpose, lane, segment, ...) and a
counter. What flows out: a 64-bit integer that depends on nothing else, so any draw can be made
at any time, in any process, in any order. A table-free permutation is built on it.

Generator: SplitMix64's output function on ``key + counter * golden`` (Steele, Lea, Flood,
"Fast splittable pseudorandom number generators", OOPSLA 2014). Good equidistribution and a
dozen integer operations; not cryptographic. Keys: BLAKE2b, so related parts give unrelated keys.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np

_MASK: Final = 2**64 - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15


def key(*parts: int | str) -> int:
    """A 64-bit key from ``parts``; each part is tagged with its type and length."""
    h = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = str(part).encode()
        h.update(b"%s%d:" % (b"i" if isinstance(part, int) else b"s", len(data)) + data)
    return int.from_bytes(h.digest(), "little")


def draw(k: int, counter: int) -> int:
    """Number ``counter`` of the sequence of key ``k``, uniform on [0, 2**64)."""
    z = (k + (counter + 1) * _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def below(k: int, counter: int, n: int) -> int:
    """An integer on [0, n), by multiply-high; its bias is below n / 2**64."""
    return (draw(k, counter) * n) >> 64


def draws(k: int, counters: np.ndarray) -> np.ndarray:
    """``draw`` for many counters at once: int64 [n], not below 0, to uint64 [n]."""
    with np.errstate(over="ignore"):
        z = np.uint64(k) + (counters.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return z


def permutation(k: int, n: int) -> np.ndarray:
    """A random order of ``range(n)``, int64 [n]: the argsort of ``n`` draws."""
    return np.argsort(draws(k, np.arange(n)), kind="stable")


def permute(k: int, i: int, n: int) -> int:
    """Where the keyed bijection on [0, n) sends ``i``; no table, O(1) memory.

    A four-round Feistel network on the smallest even-width power of two >= n, walked until it
    lands below n (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). The
    domain is under 4n, so the walk takes under four steps on average.
    """
    assert 0 <= i < n
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = i >> half, i & mask
        for r in range(4):
            left, right = right, left ^ (draw(k, (r << 32) | right) & mask)
        i = (left << half) | right
        if i < n:
            return i
