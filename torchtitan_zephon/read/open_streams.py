"""Streams that stay open, because a lane takes the neighbouring chunk next and a stream only moves forward.

A stream that is found again continues where it stands; else the reader opens one and passes over what lies before the
chunk. So what is kept here costs or saves time, and never changes a byte.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
S = TypeVar("S")


class OpenStreams(Generic[K, S]):
    """At most ``most`` streams, each at a position of what it reads; the one put back first is given up.

    Conserved: streams put = taken + given up + held here. Thread-safe: whoever takes a stream owns it until it is put.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: OrderedDict[tuple[K, int], S] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def clear(self) -> None:
        """Give up all."""
        with self._lock:
            self._held.clear()

    def take(self, what: K, at: int) -> tuple[int, S] | None:
        """The stream of ``what`` that stands nearest before ``at``, or there, and its position."""
        with self._lock:
            before = [position for key, position in self._held if key == what and position <= at]
            return (max(before), self._held.pop((what, max(before)))) if before else None

    def put(self, what: K, at: int, stream: S) -> None:
        """Hold ``stream``, which stands at ``at``, until it is taken or given up."""
        with self._lock:
            self._held[what, at] = stream
            if len(self._held) > self._most:
                self._held.popitem(last=False)
