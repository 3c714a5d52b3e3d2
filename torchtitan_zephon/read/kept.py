"""What was parsed of a source's files, such as footers: parsed once a file, and kept within a bound.

Those used last are kept; what was given up is parsed again, and so is a file that has changed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from .files import Manifest
from .retry import with_retries
from .store import Version

V = TypeVar("V")


class _Entry(NamedTuple, Generic[V]):
    version: Version
    value: V
    weight: int


class Kept(Generic[V]):
    """Of each file what ``parse`` makes of its number; all weigh ``most`` or less, or there is one.

    Thread-safe: two threads may parse one file at once, to no harm.
    """

    def __init__(self, manifest: Manifest, what: str, parse: Callable[[int], V], weigh: Callable[[V], int], most: int):
        self._manifest, self._what, self._parse, self._weigh, self._most = manifest, what, parse, weigh, most
        self._entries: OrderedDict[int, _Entry[V]] = OrderedDict()
        self._weight = 0
        self._lock = threading.Lock()

    def of(self, shard: int) -> V:
        """What was parsed of file ``shard``. Raises what ``parse`` does, and ``OSError``."""
        return with_retries(lambda: self._of(shard), self._manifest.path(shard), self._what)

    def _of(self, shard: int) -> V:
        version = self._manifest.store.version(self._manifest.shards[shard].name)
        with self._lock:
            entry = self._entries.get(shard)
            if entry is not None and entry.version == version:
                self._entries.move_to_end(shard)
                return entry.value
        value = self._parse(shard)
        self._keep(shard, _Entry(version, value, self._weigh(value)))
        return value

    def _keep(self, shard: int, entry: _Entry[V]) -> None:
        with self._lock:
            before = self._entries.pop(shard, None)
            self._weight += entry.weight - (before.weight if before else 0)
            self._entries[shard] = entry
            while self._weight > self._most and len(self._entries) > 1:
                self._weight -= self._entries.popitem(last=False)[1].weight
