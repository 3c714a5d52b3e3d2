"""Files behind a URL, read by ranges through their protocol's own client.

Each file is read in the version in which it was listed, or first asked for; another one is an error. Every length is
checked: what a client gives short, or a cut connection leaves, is asked for again from the byte reached. A fault that
may pass is waited out as on a disk (``retry.py``), and only tries without a single new byte count.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

from ...errors import SourceError
from ..pattern import Pattern
from ..range_file import RangedStore
from ..retry import RemoteFault
from ..store import Version
from ..walk import Walk
from .clients import Client, Entry
from .faults import asked
from .listed_walk import ListedWalk
from .url import UrlPath


def looked_at(client: Client, place: str, url: str) -> Entry | None:
    """What lies at ``place``, which is ``url``; None if nothing does. Raises as ``asked``."""

    def look() -> Entry | None:
        try:
            return client.look(place)
        except FileNotFoundError:
            return None

    return asked(url, "the size", look)


class RemoteStore(RangedStore):
    """The files below ``root``, which ``client`` calls ``folder``; ``query`` follows each name.

    Thread-safe, as nothing but versions is kept.
    """

    def __init__(self, root: UrlPath, client: Client, folder: str, query: str = "") -> None:
        self.root = root
        self.commit = client.commit
        self._client = client
        self._folder = folder
        self._prefix = f"{folder}/" if folder else ""
        self._query = query
        self._versions: dict[str, Version] = {}

    def path(self, name: str) -> str:
        """The URL, for messages: without what a link has behind its name."""
        return f"{self.root}/{name}"

    def _own(self, name: str) -> str:
        """The same as the client wants it."""
        return f"{self._prefix}{name}{self._query}"

    def list(self, below: Pattern | str) -> Walk:
        """The files of a pattern, or the single one of this name. One request for 1,000 names, as a rule."""
        if isinstance(below, Pattern):
            depth = None if "**" in below.parts else len(below.parts)
            url = str(self.root)
            found = asked(url, "the names", lambda: list(self._client.below(self._folder, depth)))
            names = {e.name[len(self._prefix) :] + "/" * e.is_folder: e for e in found}
            self._versions = {name: (e.num_bytes, e.tag) for name, e in names.items() if name and not e.is_folder}
            walk = ListedWalk(self.root, below, {name: e.num_bytes for name, e in names.items() if name})
            walk.run()
        else:
            walk = ListedWalk(self.root, Pattern.of_name(below), {below: self.version(below)[0]})
            walk.named(below)
        return walk

    def version(self, name: str) -> Version:
        """Size in bytes, and what the service calls the version; asked for once, and the same from then on.

        Raises ``FileNotFoundError``, as of a disk, ``SourceError`` or ``OSError``.
        """
        if name not in self._versions:
            if (entry := looked_at(self._client, self._own(name), self.path(name))) is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path(name))
            self._versions.setdefault(name, (entry.num_bytes, entry.tag))
        return self._versions[name]

    def expect(self, versions: Mapping[str, Version]) -> None:
        """From now on read files in just these versions, as another rank listed them."""
        self._versions = dict(versions)

    def digest(self, name: str) -> str:
        """Where files are of a commit, the hash of the content, which is what tells versions there; else ''.

        An ETag is none: it depends on how a file was uploaded.
        """
        return str(self.version(name)[1]) if self.commit else ""

    def may_read(self, name: str) -> bool:
        """Not asked: a right to read is that of the whole bucket, as a rule, and reading tells."""
        return True

    def read(self, name: str, start: int, stop: int) -> bytes:
        """The bytes [start, stop), or fewer where the file ends. Raises ``SourceError``, ``OSError``."""
        num_bytes, tag = self.version(name)
        wanted = min(stop, num_bytes) - start
        found = bytearray()

        def more() -> None:
            self._client.fetch(self._own(name), start + len(found), start + wanted, str(tag), found.extend)
            if len(found) < wanted:
                raise RemoteFault(f"the answer ended after {len(found):,} of {wanted:,} bytes")

        while len(found) < wanted:
            before = len(found)
            try:
                asked(self.path(name), f"bytes {start:,} to {stop:,}", more)
            except OSError:
                if len(found) == before:
                    raise
        if len(found) > max(wanted, 0):
            raise SourceError(f"{self.path(name)!r}: the server sent {len(found):,} bytes where {wanted:,} were asked.")
        return bytes(found)
