"""A file object over ranges: what a format's library, or a reader that wants several parts, is given of a remote file.

A read at any place fetches just what is asked. A read where the one before ended fetches ahead: four times as much each
time, up to ``MOST_BYTES``, so that reading on from the front costs a request for every 8 MiB, and a look costs a look.
The bytes fetched last are kept (one window), so that a look near the end and another one behind it are one request.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from io import SEEK_CUR, SEEK_END, SEEK_SET
from typing import BinaryIO, cast

import pyarrow as pa

from .store import BUFFER_BYTES, Version

MOST_BYTES = 8 * 2**20
"""Largest window; larger only where more is asked in one read."""


class RangedStore(ABC):
    """The part of a ``Store`` that follows from reads of ranges."""

    @abstractmethod
    def path(self, name: str) -> str:
        """As ``Store``."""

    @abstractmethod
    def version(self, name: str) -> Version:
        """As ``Store``."""

    @abstractmethod
    def read(self, name: str, start: int, stop: int) -> bytes:
        """As ``Store``."""

    def open(self, name: str) -> BinaryIO:
        """The file, for several reads; reading on from the front fetches ahead."""
        return cast(BinaryIO, io.BufferedReader(self._file(name), BUFFER_BYTES))

    def open_for_arrow(self, name: str) -> pa.NativeFile:
        """The file, for readers of Arrow."""
        return pa.PythonFile(self._file(name), "r")

    def _file(self, name: str) -> RangeFile:
        return RangeFile(self.path(name), self.version(name)[0], partial(self.read, name))


class RangeFile(io.RawIOBase):
    """``num_bytes`` bytes that ``read_range(start, stop)`` has. Every read is whole, up to the end of the file.

    For one thread at a time. ``name``: what ``open`` would call it.
    """

    def __init__(self, name: str, num_bytes: int, read_range: Callable[[int, int], bytes]) -> None:
        self.name = name
        self._num_bytes = num_bytes
        self._read_range = read_range
        self._at = 0
        self._begin, self._window = 0, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        base = {SEEK_SET: 0, SEEK_CUR: self._at, SEEK_END: self._num_bytes}[whence]
        if base + offset < 0:
            raise ValueError(f"seek to {base + offset}, before the beginning of {self.name!r}")
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """``size`` bytes from here, or all to the end; fewer only where the file ends."""
        until = self._num_bytes if size is None or size < 0 else min(self._at + size, self._num_bytes)
        start = self._at
        if until <= start:
            return b""
        self._at = until
        parts = []
        if self._begin <= start < self._begin + len(self._window):
            parts.append(self._window[start - self._begin : until - self._begin])
            start += len(parts[0])
        if start < until:
            parts.append(self._fetch(start, until))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def _fetch(self, start: int, until: int) -> bytes:
        """The bytes [start, until); what is fetched with them becomes the window."""
        end = self._begin + len(self._window)
        ahead = min(4 * len(self._window), MOST_BYTES) if start == end else 0
        stop = min(max(until, start + ahead), self._num_bytes)
        self._window = self._read_range(start, stop)
        self._begin = start
        return self._window if stop == until else self._window[: until - start]
