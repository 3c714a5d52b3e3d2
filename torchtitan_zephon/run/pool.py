"""A pool of worker threads that ends with the program, whatever is still queued.

What flows in: calls, each about a chunk. What flows out: their futures; the caller keeps them in order, so a slow
worker delays but never reorders. Conserved: submitted = queued + running + done.
``concurrent.futures`` would finish its whole queue at interpreter exit (seconds of tokenising
for nothing); these threads look up once a second whether the main thread is still there.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from ..read.retry import stop_waiting_when

T = TypeVar("T")
_LOOK_UP_S = 1.0
GRACE_S = 10.0
logger = logging.getLogger(__name__)

_Call = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...]]
_Busy = tuple[float, tuple[Any, ...]]


class _Queued:
    """The calls that wait: first what is urgent, then as submitted.

    Conserved: tickets = calls waiting + one for each worker that is to look whether it should end. A finalizer may use
    a ``SimpleQueue`` and deques even inside a call to them, where a ``PriorityQueue`` would wait for itself.
    """

    def __init__(self) -> None:
        self._tickets: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._urgent: deque[_Call] = deque()
        self._others: deque[_Call] = deque()

    def put(self, call: _Call, urgent: bool) -> None:
        """Add a call."""
        (self._urgent if urgent else self._others).append(call)
        self._tickets.put(None)

    def wake(self) -> None:
        """Let one worker return from ``get`` without a call."""
        self._tickets.put(None)

    def get(self) -> _Call | None:
        """The next call, waited for; None after a while, or if woken."""
        with suppress(queue.Empty):
            self._tickets.get(timeout=_LOOK_UP_S)
        for calls in (self._urgent, self._others):
            with suppress(IndexError):
                return calls.popleft()
        return None


class Pool:
    """``workers`` threads, started at the first call. ``close`` drops what is queued and joins."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._calls = _Queued()
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._busy: list[_Busy | None] = [None] * workers

    def submit(self, call: Callable[..., T], *args: Any, urgent: bool = False) -> Future[T]:
        """Queue ``call(*args)``, before all that is not ``urgent`` if it is."""
        assert not self._closed.is_set()
        if not self._threads:
            self._threads = [
                threading.Thread(target=_run, args=(self._calls, self._closed, self._busy, i), name=f"zephon-{i}")
                for i in range(self._workers)
            ]
            for thread in self._threads:
                thread.start()
        future: Future[T] = Future()
        self._calls.put((future, call, args), urgent)
        return future

    def busy(self) -> list[_Busy]:
        """For each call that runs: when it began, by ``time.monotonic``, and its arguments."""
        return [call for call in self._busy if call is not None]

    def close(self) -> None:
        """End the threads; each finishes the call it is in. Safe to call twice.

        A call that has not ended after ``GRACE_S`` may never end. Its thread is left to it, so that the error that
        closes the pool, or the interruption, is not held back for ever.
        """
        self._closed.set()
        for _ in self._threads:
            self._calls.wake()
        end = time.monotonic() + GRACE_S
        others = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in others:
            thread.join(max(0.0, end - time.monotonic()))
        if hanging := sum(thread.is_alive() for thread in others):
            logger.warning(
                "zephon: %d of %d workers did not end within %g s: a read hangs, or a document takes that long. They "
                "end when it is over; this process cannot end before, unless it is killed.",
                hanging, self._workers, GRACE_S,
            )  # fmt: skip
        self._threads = []


def _run(calls: _Queued, closed: threading.Event, busy: list[_Busy | None], number: int) -> None:
    def ended() -> bool:
        return closed.is_set() or not threading.main_thread().is_alive()

    stop_waiting_when(ended)
    while not ended():
        if (item := calls.get()) is None:
            continue
        future, call, args = item
        future.set_running_or_notify_cancel()
        busy[number] = time.monotonic(), args
        try:
            future.set_result(call(*args))
        except BaseException as error:
            future.set_exception(error)
        busy[number] = None
        del item, future, call, args  # hold nothing alive while waiting for the next
