"""Parts of remote files on this node's disk: fetched once for all its ranks, for later epochs and for later runs.

A part is a block of 1 MiB of one version of one file, in a file of its own with a check sum, written whole and renamed.
So nothing is locked, two processes that fill one entry do no harm, and a killed one leaves nothing that is read. Whole
files were the other choice: lanes read chunks of 256 KiB from all over a source, so every node would fetch every file,
to read a part of each. A small block wastes less: where 16 nodes share one pass, a node fetches 5 times what it reads
in blocks of 1 MiB, and 11 times in blocks of 4 MiB. So the cache is for several epochs, and for row groups that several
lanes read. Where a source does not fit into ``cache_bytes`` it costs more bytes than it saves.

A disk that is full or read-only costs a warning, and from then on nothing more is kept.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, NamedTuple, cast

from ...cache import PART, read_own, write_whole
from ..pattern import Pattern
from ..range_file import RangedStore
from ..store import Store, Version
from ..walk import Walk
from .settings import StorageSettings
from .url import UrlPath

logger = logging.getLogger(__name__)

BLOCK_BYTES = 2**20
MOST_FETCHED_BYTES = 16 * 2**20
"""Largest request for blocks that are missing side by side."""
_CHECK_BYTES = 4
_KEPT_AFTER = 0.9
"""Part of ``cache_bytes`` that is left after old blocks were given up, so that this is done seldom."""
_LOOK_EVERY = 64
"""The folder is looked through again after a process has written 1/64 of ``cache_bytes``: others write too."""
_USED_S = 60
"""A block's time of use is written at most so often."""
_DEAD_S = 3600
"""A file that is being written for so long was left by a killed process."""


def with_cache(store: Store, settings: StorageSettings) -> Store:
    """``store``, with the parts of its files kept on a disk where the settings want it and it is remote."""
    if not settings.cache_folder or not isinstance(store.root, UrlPath):
        return store
    return CachedStore(store, BlockCache(Path(settings.cache_folder).expanduser(), settings.cache_bytes))


class CachedStore(RangedStore):
    """A remote store that fetches whole blocks, and those that are on the disk not at all. Thread-safe."""

    def __init__(self, store: Store, cache: BlockCache) -> None:
        self.commit = store.commit
        self._store, self._cache = store, cache

    @property
    def root(self) -> PurePath:
        """That of the store behind."""
        return self._store.root

    def path(self, name: str) -> str:
        """The URL, for messages."""
        return self._store.path(name)

    def list(self, below: Pattern | str) -> Walk:
        """What the store behind lists."""
        return self._store.list(below)

    def version(self, name: str) -> Version:
        """What the store behind says."""
        return self._store.version(name)

    def digest(self, name: str) -> str:
        """What the store behind says."""
        return self._store.digest(name)

    def may_read(self, name: str) -> bool:
        """What the store behind says."""
        return self._store.may_read(name)

    def read(self, name: str, start: int, stop: int) -> bytes:
        """The bytes [start, stop), or fewer where the file ends."""
        version = self.version(name)
        num_bytes = version[0]
        stop = min(stop, num_bytes)
        if start >= stop:
            return b""
        if not version[1]:  # a file of this name and size may be another one tomorrow
            return self._store.read(name, start, stop)
        folder = _folder(self.digest(name) or repr((self.path(name), version)))
        blocks = range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES))
        found = {n: self._cache.get(folder, n, min(BLOCK_BYTES, num_bytes - n * BLOCK_BYTES)) for n in blocks}
        for first, last in _side_by_side([n for n, block in found.items() if block is None]):
            data = self._store.read(name, first * BLOCK_BYTES, (last + 1) * BLOCK_BYTES)
            for n in range(first, last + 1):
                at = (n - first) * BLOCK_BYTES
                found[n] = data[at : at + BLOCK_BYTES]
                self._cache.put(folder, n, data[at : at + BLOCK_BYTES])
        data = b"".join(cast(bytes, found[n]) for n in blocks)
        first_byte = blocks.start * BLOCK_BYTES
        return data[start - first_byte : stop - first_byte]


def _folder(version: str) -> str:
    """Where the blocks of one version of a file lie."""
    digest = hashlib.sha256(version.encode()).hexdigest()
    return f"{digest[:2]}/{digest[2:34]}"


def _side_by_side(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """First and last of each stretch of rising ``numbers`` that follow one another, cut at ``MOST_FETCHED_BYTES``."""
    most = MOST_FETCHED_BYTES // BLOCK_BYTES
    first = 0
    for i, number in enumerate(numbers):
        ends = i + 1 == len(numbers) or numbers[i + 1] != number + 1 or i + 1 - first == most
        if ends:
            yield numbers[first], number
            first = i + 1


class _Kept(NamedTuple):
    used: float
    num_bytes: int
    path: str


class BlockCache:
    """Blocks below ``folder``, ``most_bytes`` in all. Thread-safe; any number of processes use one folder.

    Conserved: bytes on the disk = bytes at the last look + bytes written since, here and elsewhere - bytes given up.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._named, self._folder = folder, folder / "torchtitan_zephon-blocks"  # nothing of anybody else's is in there
        self._most_bytes = most_bytes
        self._written: int | None = None
        """Bytes since the folder was looked through; None before the first time."""
        self._broken = False
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._named, self._most_bytes)

    def get(self, folder: str, number: int, num_bytes: int) -> bytes | None:
        """The block, if it is there and whole."""
        file = self._folder / folder / str(number)
        try:
            data = read_own(file)
            if len(data) != num_bytes + _CHECK_BYTES or _check(data[:num_bytes]) != data[num_bytes:]:
                return None
            if time.time() - file.stat().st_mtime > _USED_S:
                os.utime(file)
        except OSError:
            return None
        return data[:num_bytes]

    def put(self, folder: str, number: int, data: bytes) -> None:
        """Keep the block, if the disk can."""
        if self._broken:
            return
        try:
            self._make_room(len(data))
            write_whole(self._folder / folder / str(number), data + _check(data))
        except OSError as error:
            with self._lock:
                before, self._broken = self._broken, True
            if not before:
                logger.warning(
                    "zephon: the cache folder %r cannot be written: %s. The run continues without keeping more of its "
                    "remote files; what is kept is still used. Free some space, or set cache_folder and cache_bytes.",
                    str(self._named), error.strerror,
                )  # fmt: skip

    def _make_room(self, num_bytes: int) -> None:
        """Count ``num_bytes`` that are to be written; look through the folder if it is time."""
        with self._lock:
            look = self._written is None or self._written * _LOOK_EVERY > self._most_bytes
            self._written = num_bytes if look or self._written is None else self._written + num_bytes
        if look:
            self._give_up()

    def _give_up(self) -> None:
        """Remove the blocks that were used longest ago, if there are too many; whoever reads one keeps it."""
        kept = sorted(self._blocks())
        total = sum(block.num_bytes for block in kept)
        if total <= self._most_bytes * (1 - 1 / _LOOK_EVERY):
            return
        for block in kept:
            if total <= self._most_bytes * _KEPT_AFTER:
                break
            with suppress(OSError):
                os.unlink(block.path)  # noqa: PTH108
            total -= block.num_bytes

    def _blocks(self) -> Iterator[_Kept]:
        """All blocks; files that a killed process left are removed."""
        for folder, _, names in os.walk(self._folder):
            for name in names:
                path = os.path.join(folder, name)  # noqa: PTH118
                with suppress(OSError):
                    status = os.stat(path)  # noqa: PTH116
                    if name.endswith(PART) and time.time() - status.st_mtime > _DEAD_S:
                        os.unlink(path)  # noqa: PTH108
                    else:
                        yield _Kept(status.st_mtime, status.st_size, path)


def _check(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(_CHECK_BYTES, "little")
