"""One list of files for all ranks of a job: made by one of them, taken by the others, and proved by each.

What flows in: on the rank that lists, the sources, as a program opens them. What flows out: their list as a text, about
10 bytes a file (100,000 files: 0.9 MB). The other ranks open the same sources with it, in folders of their own.
They walk no folder and sample no file. Instead a file is compared with the list when it is first opened: its size, and
its sample where it has one. That is a ``stat`` and up to 16 small reads, once a file and rank. A place behind a URL is
the same for all ranks and has versions: the list names them, and no other version of a file is ever read.

The price: a file that is missing on one rank is found when that rank opens it, not before, and a file that only one of
the others has is not read.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import defaultdict, deque
from collections.abc import Sequence
from pathlib import PurePath
from typing import BinaryIO, NamedTuple

import pyarrow as pa

from ..errors import SourceError
from .files import Manifest, Shard, list_source, place_of
from .pattern import Pattern
from .sample import Sampling
from .settings import SourceConfig
from .source import Source, source_of
from .store import Store, Version
from .stores.cache import with_cache
from .stores.hub import at_commit
from .stores.remote import RemoteStore
from .stores.settings import LOCAL, StorageSettings
from .stores.url import UrlPath
from .walk import Walk


class Listing:
    """Opens sources, and remembers the list of each: of the rank that lists."""

    def __init__(self) -> None:
        self._found: list[tuple[str, Manifest]] = []

    def __call__(
        self, name: str, settings: SourceConfig, max_record_bytes: int, storage: StorageSettings = LOCAL
    ) -> Source:
        """The source ``name``. Raises ``SourceError``."""
        manifest = list_source(name, settings, storage)
        self._found.append((name, manifest))
        return source_of(name, settings, max_record_bytes, manifest)

    def text(self) -> str:
        """All lists, in the order in which the sources were opened."""
        plain = [
            [name, manifest.format, manifest.store.commit, _tags(manifest), *zip(*manifest.shards, strict=True)]
            for name, manifest in self._found
        ]
        return base64.b64encode(zlib.compress(json.dumps(plain, separators=(",", ":")).encode())).decode()


class TakenListing:
    """Opens the same sources by the list of another rank: of every rank that takes it, named ``rank`` in errors."""

    def __init__(self, text: str, rank: str) -> None:
        self._rank = rank
        self._lists: defaultdict[str, deque[_Listed]] = defaultdict(deque)
        for name, kind, commit, tags, *columns in json.loads(zlib.decompress(base64.b64decode(text))):
            self._lists[name].append(_Listed(kind, commit, tags, tuple(map(Shard, *columns))))

    def __call__(
        self, name: str, settings: SourceConfig, max_record_bytes: int, storage: StorageSettings = LOCAL
    ) -> Source:
        """The source ``name``, at the path that this rank has for it. Raises ``SourceError``."""
        if not self._lists[name]:
            raise SourceError(
                f"source {name!r} is read by this rank, and rank 0, which lists the files of all ranks, reads no such "
                "source. Start all ranks with the same job and overrides."
            )
        kind, commit, tags, shards = self._lists[name].popleft()
        path = at_commit(settings.path, commit) if commit else settings.path
        store, _ = place_of(name, path, settings.format, storage)
        if isinstance(store, RemoteStore):
            store.expect({shard.name: (shard.num_bytes, tag) for shard, tag in zip(shards, tags, strict=True)})
            store = with_cache(store, storage)
        else:
            store = ProvedStore(name, store, shards, self._rank)
        return source_of(name, settings, max_record_bytes, Manifest(store, kind, shards))


class _Listed(NamedTuple):
    """A source in the list. ``tags``: the second part of each file's version, where the place is the same for all."""

    format: str
    commit: str
    tags: list[str]
    shards: tuple[Shard, ...]


def _tags(manifest: Manifest) -> list[str]:
    if not isinstance(manifest.root, UrlPath):
        return []
    return [str(manifest.store.version(shard.name)[1]) for shard in manifest.shards]


class ProvedStore:
    """A store whose files another rank listed. Thread-safe: two threads may prove one file at once, to no harm."""

    def __init__(self, source: str, store: Store, shards: Sequence[Shard], rank: str) -> None:
        self._source, self._store, self._rank = source, store, rank
        self._sampling = Sampling.of([shard.num_bytes for shard in shards])
        self._unproved = {shard.name: shard for shard in shards}

    @property
    def root(self) -> PurePath:
        """The folder on this machine."""
        return self._store.root

    @property
    def commit(self) -> str:
        """None, as of any folder."""
        return self._store.commit

    def path(self, name: str) -> str:
        """The whole path, for messages too."""
        return self._store.path(name)

    def list(self, below: Pattern | str) -> Walk:
        """What is there, whatever was listed."""
        return self._store.list(below)

    def version(self, name: str) -> Version:
        """Changes when the file does."""
        return self._proved(name).version(name)

    def digest(self, name: str) -> str:
        """None, as of any folder."""
        return self._store.digest(name)

    def may_read(self, name: str) -> bool:
        """Whether this user may read the file."""
        return self._proved(name).may_read(name)

    def read(self, name: str, start: int, stop: int) -> bytes:
        """The bytes [start, stop), or fewer where the file ends."""
        return self._proved(name).read(name, start, stop)

    def open(self, name: str) -> BinaryIO:
        """The file, for several reads."""
        return self._proved(name).open(name)

    def open_for_arrow(self, name: str) -> pa.NativeFile:
        """The file, for readers of Arrow."""
        return self._proved(name).open_for_arrow(name)

    def _proved(self, name: str) -> Store:
        """The store, once ``name`` is what was listed. Raises ``SourceError``, or ``OSError`` as a read does."""
        if (listed := self._unproved.get(name)) is not None:
            try:
                here = self._look(listed)
            except FileNotFoundError:
                raise self._differs(listed, "is not there") from None
            if here != listed:
                raise self._differs(listed, f"has {_text(here)}")
            self._unproved.pop(name, None)
        return self._store

    def _look(self, listed: Shard) -> Shard:
        """The file as it is on this machine."""
        size = self._store.version(listed.name)[0]
        digest = self._sampling.look(self._store, listed.name, size)[0] if listed.sample else ""
        return Shard(listed.name, size, digest)

    def _differs(self, listed: Shard, what: str) -> SourceError:
        path = self._store.path(listed.name)
        return SourceError(
            f"source {self._source!r}: {path!r} on {self._rank} {what}; rank 0, which lists the files of all ranks, "
            f"has {_text(listed)}. Give all ranks the same files and start again. Their folders may differ, their "
            "content not."
        )


def _text(shard: Shard) -> str:
    return f"{shard.num_bytes} bytes" + f", sample {shard.sample}" * bool(shard.sample)
