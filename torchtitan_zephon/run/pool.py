"""A pool of worker threads that ends with the program, whatever is still queued.

What flows in: calls. What flows out: their futures; the caller keeps them in order, so a slow
worker delays but never reorders. Conserved: submitted = queued + running + done.
``concurrent.futures`` would finish its whole queue at interpreter exit (seconds of tokenising
for nothing); these threads look up once a second whether the main thread is still there.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from ..read.retry import stop_waiting_when

T = TypeVar("T")
_LOOK_UP_S = 1.0

_Call = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...]]


class Pool:
    """``workers`` threads, started at the first call. ``close`` drops what is queued and joins."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []

    def submit(self, call: Callable[..., T], *args: Any) -> Future[T]:
        """Queue ``call(*args)``."""
        assert not self._closed.is_set()
        if not self._threads:
            self._threads = [
                threading.Thread(target=_run, args=(self._calls, self._closed), name=f"zephon-{i}")
                for i in range(self._workers)
            ]
            for thread in self._threads:
                thread.start()
        future: Future[T] = Future()
        self._calls.put((future, call, args))
        return future

    def close(self) -> None:
        """End the threads; each finishes the call it is in. Safe to call twice."""
        self._closed.set()
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()


def _run(calls: queue.SimpleQueue[_Call | None], closed: threading.Event) -> None:
    def ended() -> bool:
        return closed.is_set() or not threading.main_thread().is_alive()

    stop_waiting_when(ended)
    while not ended():
        try:
            item = calls.get(timeout=_LOOK_UP_S)
        except queue.Empty:
            continue
        if item is None:
            return
        future, call, args = item
        try:
            future.set_result(call(*args))
        except BaseException as error:
            future.set_exception(error)
        del item, future, call, args  # hold nothing alive while waiting for the next
