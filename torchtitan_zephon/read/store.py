"""Where the files of a source lie: the only way from a reader to their bytes.

A name is a file's path relative to the root, in UTF-8, with ``/``. This is the local file system; ``stores`` has those
behind a URL. Errors are the system's own, so that ``retry.py`` can tell which may pass.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePath
from typing import BinaryIO, Protocol

import pyarrow as pa

from .pattern import Pattern
from .walk import Walk

BUFFER_BYTES = 4096
"""Python's own choice is a block of the file system, which may be 4 MiB, and that much would be read for every look."""

Version = tuple[int, int | str]
"""Of a file: its size in bytes, and whatever else changes when the file does."""


class Store(Protocol):
    """What a place must offer. All reads of a file give one version of it, or an error.

    ``commit``: what all files are of, in a place that has commits; else ''.
    """

    @property
    def root(self) -> PurePath: ...
    @property
    def commit(self) -> str: ...
    def digest(self, name: str) -> str: ...
    def path(self, name: str) -> str: ...
    def list(self, below: Pattern | str) -> Walk: ...
    def version(self, name: str) -> Version: ...
    def may_read(self, name: str) -> bool: ...
    def read(self, name: str, start: int, stop: int) -> bytes: ...
    def open(self, name: str) -> BinaryIO: ...
    def open_for_arrow(self, name: str) -> pa.NativeFile: ...


class LocalStore:
    """The files below the folder ``root`` of this machine. Thread-safe, as nothing is kept open."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commit = ""
        self._prefix = os.path.join(root, "")  # noqa: PTH118

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalStore) and self.root == other.root

    def __hash__(self) -> int:
        return hash(self.root)

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

    def version(self, name: str) -> Version:
        """Size in bytes, and nanoseconds of the last change."""
        status = os.stat(self.path(name))  # noqa: PTH116
        return status.st_size, status.st_mtime_ns

    def digest(self, name: str) -> str:
        """A hash of the content that the place itself keeps, in hex; a disk keeps none."""
        return ""

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
        return open(self.path(name), "rb", buffering=BUFFER_BYTES)

    def open_for_arrow(self, name: str) -> pa.NativeFile:
        """The file, for readers of Arrow, which read without the GIL."""
        return pa.OSFile(self.path(name))
