"""From a path to an ordered manifest of shards with a content identity, without an index.

What flows in: a file, folder or glob. What flows out: the shards in bytewise order of their path relative to the root,
each with its size and a hash of a content sample (``sample.py``), and the names that were left out (``listing.py``).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from ..errors import SourceError
from .folders import refuse_copies, refuse_revisions, refuse_tables
from .formats import check_format, check_settings, format_of
from .listing import SHOWN_NAMES, left_out_text, list_files
from .pattern import Pattern, root_of
from .sample import sample
from .settings import SourceConfig
from .splits import names_of_split
from .store import LocalStore, Store
from .stores.cache import with_cache
from .stores.open import open_url
from .stores.settings import LOCAL, StorageSettings
from .stores.url import is_url
from .walk import LeftOut, Reason


class Shard(NamedTuple):
    """One file: path relative to the source's root with ``/``, size, sample hash (hex, or '')."""

    name: str
    num_bytes: int
    sample: str


class Manifest(NamedTuple):
    """The shards of a source in order, and what reads them. Only ``shards`` is identity."""

    store: Store
    format: str
    shards: tuple[Shard, ...]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def root(self) -> PurePath:
        """The folder that they lie in."""
        return self.store.root

    def path(self, shard: int) -> str:
        """Where shard number ``shard`` lies."""
        return self.store.path(self.shards[shard].name)

    def files_text(self) -> str:
        """What is read and what was left out and why, in two lines or one."""
        names = [repr(shard.name) for shard in self.shards[:SHOWN_NAMES]]
        more = f" and {len(self.shards) - SHOWN_NAMES:,} more" * (len(self.shards) > SHOWN_NAMES)
        left = f"\nleft out: {left_out_text(self.left_out)}" if self.left_out else ""
        return f"read from {str(self.root)!r}: {', '.join(names)}{more}{left}"


def shared_files(manifests: Sequence[tuple[str, Manifest]]) -> list[str]:
    """A sentence for each two sources, given by what they are called, that read files in common."""
    found = []
    for (one, a), (other, b) in itertools.combinations(manifests, 2):
        if a.root.is_relative_to(b.root) or b.root.is_relative_to(a.root):
            both = sorted(_paths(a) & _paths(b))
            if both:
                more = f" and {len(both) - 1:,} files more are" if both[1:] else " is"
                found.append(f"{both[0]!r}{more} read by both {one} and {other}")
    return found


def _paths(manifest: Manifest) -> set[str]:
    return {f"{manifest.root}/{shard.name}" for shard in manifest.shards}


def list_source(name: str, settings: SourceConfig, storage: StorageSettings = LOCAL) -> Manifest:
    """List and fingerprint the source ``name``.

    Raises ``SourceError`` if there is nothing there, nothing of a known format, two formats, something that cannot be
    read, or a folder of which only some files are meant (``folders.py``).
    """
    path = settings.path
    check_format(name, settings.format)
    store, below = place_of(name, path, settings.format, storage)
    root = store.root
    found, left_out, tables = list_files(name, path, store, below)
    own = set(names_of_split(name, root, [file.name for file in found], settings.split))
    files = [file for file in found if file.name in own]
    left_out += tuple(LeftOut(file.name, Reason.OTHER_SPLIT) for file in found if file.name not in own)
    names = [file.name for file in files]
    kind = settings.format or _format(name, path, root, names)
    check_settings(name, kind, settings)
    if kind == "parquet" and isinstance(root, Path):
        refuse_tables(name, root, tables, names)
    refuse_revisions(name, root, names)
    refuse_copies(name, root, names)
    if not any(file.num_bytes for file in files):
        raise SourceError(f"source {name!r}: all {len(names)} files at {path!r} are empty.")
    samples = sample(name, kind, store, files)
    shards = tuple(Shard(file.name, file.num_bytes, digest) for file, digest in zip(files, samples, strict=True))
    return Manifest(with_cache(store, storage), kind, shards, left_out)


def place_of(name: str, path: str, format: str = "", storage: StorageSettings = LOCAL) -> tuple[Store, Pattern | str]:
    """What reads the files of ``path``, and the pattern below its root; for a single file its name.

    ``format``: that of the files, if the source states it.
    """
    if is_url(path):
        try:
            return open_url(path, storage, format)
        except (SourceError, OSError) as error:
            raise SourceError(f"source {name!r}: {error}") from None
    root, below = root_of(name, path, format)
    return LocalStore(root), below


def _format(name: str, path: str, root: PurePath, names: list[str]) -> str:
    """The one format of all files."""
    formats = {kind for name in names if (kind := format_of(name))}
    if len(formats) > 1:
        raise SourceError(
            f"source {name!r}: {path!r} holds both {' and '.join(sorted(formats))} files, and each record would be "
            "read twice if they are two copies. Name one kind with a glob, such as "
            f"{f'{root}/**/*.parquet'!r}."
        )
    return formats.pop()
