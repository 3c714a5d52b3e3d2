"""Reads that are tried again, because a network file system may fail for a moment.

What flows in: a read that opens its file itself. What flows out: its result. A fault that may pass by itself (a stale
handle, an I/O error, a lost connection) is waited out: five tries over 30 seconds, then the error. The waits are fixed
and have no jitter, so that a run is easy to follow. A fault that will not pass (no such file, no permission) is raised
at once.

The price: a disk that is really broken ends the run half a minute later than it could.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from ..errors import SourceError

T = TypeVar("T")
logger = logging.getLogger(__name__)

WAITS_S = (0.5, 2.0, 7.5, 20.0)
"""Seconds before the second try, the third, ..."""
_LOOK_UP_S = 0.5

_TRANSIENT = frozenset(
    number
    for name in (
        # A server or client that was restarted, failed over or evicted; a handle it does not know any more.
        *("EIO", "ESTALE", "EREMOTEIO", "EREMCHG", "ENOLINK", "ESHUTDOWN", "ENOTCONN", "ECOMM", "EPROTO"),
        # The network between.
        *("ETIMEDOUT", "ETIME", "ECONNRESET", "ECONNABORTED", "ECONNREFUSED", "EPIPE"),
        *("ENETDOWN", "ENETUNREACH", "ENETRESET", "EHOSTDOWN", "EHOSTUNREACH"),
        # Too busy, or interrupted.
        *("EAGAIN", "EINTR", "EBUSY", "ECANCELED"),
    )
    if (number := getattr(errno, name, None)) is not None
)
"""Faults that may pass by themselves. Left out on purpose: ENOENT, EACCES, EPERM, EISDIR, ENOTDIR, EINVAL, EMFILE."""

_faults: Counter[str] = Counter()
_counting = threading.Lock()
_worker = threading.local()


class RemoteFault(OSError):
    """A service's fault that may pass by itself; it has a text of its own, as no number says what it is."""

    def __init__(self, text: str) -> None:
        super().__init__(errno.EREMOTEIO, text)


def with_retries(call: Callable[[], T], path: Path | str, place: str) -> T:
    """``call()``, tried again after a fault that may pass; ``place`` and ``path`` say in the log what is read.

    ``call`` opens the file anew each time: a handle that went stale stays so. Raises the last fault with the number of
    tries, as an ``OSError`` or as the ``SourceError`` that ``call`` made of it; and any other error as it is.
    """
    waits = iter(WAITS_S)
    while True:
        try:
            return call()
        except (OSError, pa.ArrowException, SourceError) as error:
            if (number := transient(error)) is None:
                raise
            text = _text(error.__cause__ if isinstance(error, SourceError) else error, number)
            if (wait := next(waits, None)) is None:
                raise _given_up(error, number, text, path) from (error.__cause__ or error)
            _say(path, place, text)
            if not _wait(wait):
                raise


def _given_up(error: Exception, number: int, text: str, path: Path | str) -> Exception:
    """``error`` with the tries, marked so that a read around this one does not try them all again."""
    tries = f"on each of {len(WAITS_S) + 1} tries in {sum(WAITS_S):g} s"
    last: Exception = OSError(number, f"{text}, {tries}", str(path))
    if isinstance(error, SourceError):
        last = SourceError(f"{error} ({tries})")
    last.__dict__["given_up"] = True
    return last


def transient(error: BaseException) -> int | None:
    """The number of a fault that may pass by itself, or None. Arrow has it in the error, or only in its text."""
    fault = error.__cause__ if isinstance(error, SourceError) else error
    if not isinstance(fault, (OSError, pa.ArrowException)) or "given_up" in error.__dict__ | fault.__dict__:
        return None
    number = getattr(fault, "errno", None)
    if number is None and (found := re.search(r"\[errno (\d+)\]", str(fault), re.IGNORECASE)):
        number = int(found[1])
    return number if number in _TRANSIENT else None


def stop_waiting_when(ended: Callable[[], bool]) -> None:
    """This thread waits for no further try once ``ended()``, so that it never holds up the end of its pool."""
    _worker.ended = ended


def _wait(seconds: float) -> bool:
    """Wait; False as soon as nobody wants the result any more."""
    ended: Callable[[], bool] = getattr(_worker, "ended", bool)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if ended():
            return False
        time.sleep(min(left, _LOOK_UP_S))
    return not ended()


def _say(path: Path | str, place: str, text: str) -> None:
    """One warning a file at its first fault, and again at its 10th, 100th, ..."""
    with _counting:
        _faults[str(path)] += 1
        count = _faults[str(path)]
    if count == 10 ** (len(str(count)) - 1):
        logger.warning(
            "zephon: reading %s of %s failed: %s (fault %d of this file). The file is opened again and read up to %d "
            "more times in %g s, so that nothing is lost or read twice.",
            place, repr(str(path)), text, count, len(WAITS_S), sum(WAITS_S),
        )  # fmt: skip


def _text(fault: BaseException | None, number: int) -> str:
    if isinstance(fault, RemoteFault):
        return str(fault.strerror)
    return f"{errno.errorcode[number]}, {os.strerror(number)}"
