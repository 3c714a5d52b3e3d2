"""Ranks as threads of one process, which exchange bytes as the processes of a job do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torchtitan_zephon.run.agree import Exchange

T = TypeVar("T")


class Meeting:
    """An ``Exchange`` for each of ``size`` threads. ``sent``: the bytes that one rank sent, exchange by exchange."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sent: list[list[int]] = [[] for _ in range(size)]
        self._said: list[bytes] = [b""] * size
        self._all_here = threading.Barrier(size, timeout=60)

    def exchange(self, rank: int) -> Exchange:
        """The ``Exchange`` of ``rank``. It fails if another rank does not come."""

        def hand_out(data: bytes) -> list[bytes]:
            self.sent[rank].append(len(data))
            self._said[rank] = data
            self._all_here.wait()
            said = list(self._said)
            self._all_here.wait()
            return said

        return hand_out

    def run(self, act: Callable[[int, Exchange], T]) -> list[T | Exception]:
        """``act(rank, exchange)`` on all ranks at once: what each returned, or raised."""

        def on(rank: int) -> T | Exception:
            try:
                return act(rank, self.exchange(rank))
            except Exception as error:
                return error

        with ThreadPoolExecutor(self.size) as threads:
            return list(threads.map(on, range(self.size)))
