"""Where the files of a source lie: the only way from a reader to their bytes.

A name is a file's path relative to the root, in UTF-8, with ``/``. There is the local file system so far; another place
is another class with these methods. Errors are the system's own, so that ``retry.py`` can tell which may pass.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Protocol

import pyarrow as pa

from .pattern import Pattern
from .walk import Walk

_BUFFER_BYTES = 4096
"""Python's own choice is a block of the file system, which may be 4 MiB, and that much would be read for every look."""


class Store(Protocol):
    """What a place must offer. A ``version`` changes when the file does."""

    @property
    def root(self) -> Path: ...
    def path(self, name: str) -> str: ...
    def list(self, below: Pattern | str) -> Walk: ...
    def version(self, name: str) -> tuple[int, ...]: ...
    def may_read(self, name: str) -> bool: ...
    def read(self, name: str, start: int, stop: int) -> bytes: ...
    def open(self, name: str) -> BinaryIO: ...
    def open_for_arrow(self, name: str) -> pa.NativeFile: ...


class LocalStore:
    """The files below the folder ``root`` of this machine. Thread-safe, as nothing is kept open."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._prefix = os.path.join(root, "")  # noqa: PTH118

    def path(self, name: str) -> str:
        """The whole path, for messages too. Names differ from those of the system in odd locales only."""
        return self._prefix + (name if name.isascii() else os.fsdecode(name.encode()))

    def list(self, below: Pattern | str) -> Walk:
        """The files of a pattern, or the single one of this name, and what was met on the way."""
        if isinstance(below, Pattern):
            walk = Walk(self.root, below)
            walk.run()
        else:
            walk = Walk(self.root, Pattern.of_name(below))
            walk.named(below)
        return walk

    def version(self, name: str) -> tuple[int, ...]:
        """Size in bytes, and nanoseconds of the last change."""
        status = os.stat(self.path(name))  # noqa: PTH116
        return status.st_size, status.st_mtime_ns

    def may_read(self, name: str) -> bool:
        """Whether this user may read the file; it is not opened."""
        return os.access(self.path(name), os.R_OK)

    def read(self, name: str, start: int, stop: int) -> bytes:
        """The bytes [start, stop), or fewer where the file ends."""
        with self.open(name) as file:
            file.seek(start)
            return file.read(stop - start)

    def open(self, name: str) -> BinaryIO:
        """The file, for several reads."""
        return open(self.path(name), "rb", buffering=_BUFFER_BYTES)

    def open_for_arrow(self, name: str) -> pa.NativeFile:
        """The file, for readers of Arrow, which read without the GIL."""
        return pa.OSFile(self.path(name))
