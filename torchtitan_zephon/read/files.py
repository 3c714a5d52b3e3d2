"""From a path to an ordered manifest of shards with a content identity, without an index.

What flows in: a file, folder or glob. What flows out: the shards in bytewise order of their
path relative to the root, each with its size and a hash of a content sample. A source of up to
16 MiB is hashed whole (about 10 ms); a larger one is sampled evenly within that budget, so a
change between samples is found only when the stream's digest meets it in a restore.
"""

from __future__ import annotations

import glob
import hashlib
import os
import stat
from pathlib import Path
from typing import NamedTuple

from ..errors import SourceError

SAMPLE_BYTES = 16 * 2**20
"""Content hashed per source, spread over its shards."""
SAMPLES_PER_SHARD = 16
MOST_SAMPLED_SHARDS = 4096

EXTENSIONS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
"""Taken from a folder. A file named outright may also end in .json (one record a line)."""
_COMPRESSED = (".gz", ".zst", ".bz2", ".xz", ".lz4")


class Shard(NamedTuple):
    """One file: path relative to the source's root with ``/``, size, sample hash (hex, or '')."""

    name: str
    num_bytes: int
    sample: str


class Manifest(NamedTuple):
    """The shards of a source in order, and where they lie. Only ``shards`` is identity."""

    root: Path
    format: str
    shards: tuple[Shard, ...]

    def path(self, shard: int) -> Path:
        """Where shard number ``shard`` lies on this machine."""
        return self.root / self.shards[shard].name


def list_source(name: str, path: str) -> Manifest:
    """List and fingerprint the source ``name`` at ``path``.

    Raises ``SourceError`` if there is nothing there, nothing of a known format, or two formats.
    """
    if "://" in path:
        raise SourceError(
            f"source {name!r}: {path!r} is a remote path; this version reads local files only. "
            "Download it first, then give the folder."
        )
    root, files = _files(name, path)
    formats = sorted({_format(f) for f in files})
    if len(formats) > 1:
        raise SourceError(
            f"source {name!r}: {path!r} holds both {' and '.join(formats)} files, and each record "
            "would be read twice if they are two copies. Name one kind with a glob, such as "
            f"{path.rstrip('/') + '/**/*.parquet'!r}."
        )
    names = sorted((f.relative_to(root).as_posix() for f in files), key=os.fsencode)
    sizes = [_size(name, root / n) for n in names]
    if not sum(sizes):
        raise SourceError(f"source {name!r}: all {len(names)} files at {path!r} are empty.")
    samples = _sample(root, names, sizes)
    return Manifest(root, formats[0], tuple(map(Shard, names, sizes, samples)))


def _size(name: str, file: Path) -> int:
    try:
        status = file.stat()
    except OSError as error:
        raise SourceError(f"source {name!r}: {str(file)!r} cannot be read: {error.strerror}.") from None
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(f"source {name!r}: {str(file)!r} is no regular file.")
    return status.st_size


def _files(name: str, path: str) -> tuple[Path, list[Path]]:
    given = Path(path).expanduser()
    if not path:
        raise SourceError(f'source {name!r} has no path; write path = "FOLDER or FILE or GLOB".')
    if given.is_file():
        root = given.parent.resolve()
        return root, [root / given.name]  # not resolved: a link's own name says the format
    if given.is_dir():
        root = given.resolve()
        found = _walk(root)
    elif glob.has_magic(path):
        fixed = given.parts[: next(i for i, part in enumerate(given.parts) if glob.has_magic(part))]
        root = Path(*fixed).resolve()
        pattern = str(Path(*given.parts[len(fixed) :]))
        found = [root / f for f in glob.glob(pattern, root_dir=root, recursive=True) if (root / f).is_file()]
    else:
        raise SourceError(f"source {name!r}: there is no file or folder {path!r}.")
    found = [f for f in found if not f.name.startswith((".", "_"))]
    packed = [f.name for f in found if f.suffix in _COMPRESSED and _kind_of(Path(f.stem))]
    if packed:
        raise SourceError(
            f"source {name!r}: {packed[0]!r} is compressed ({len(packed)} such files at {path!r}); "
            "this version reads plain JSONL and Parquet. Unpack them, or convert them to Parquet."
        )
    usable = [f for f in found if _kind_of(f)]
    if not usable:
        kinds = sorted({f.suffix or f.name for f in found})[:8]
        raise SourceError(
            f"source {name!r}: no {', '.join(EXTENSIONS)} file at {path!r} "
            f"({'found only ' + ', '.join(kinds) if kinds else 'it is empty'})."
        )
    return root, usable


def _walk(root: Path) -> list[Path]:
    """All files below ``root``, linked folders too, each folder once; hidden folders are left out."""
    found: list[Path] = []
    seen = {os.path.realpath(root)}
    for folder, folders, names in os.walk(root, followlinks=True):
        found += [Path(folder, name) for name in names]
        folders[:] = sorted(
            (f for f in folders if not f.startswith((".", "_"))), key=lambda f: (_is_link(folder, f), f)
        )
        for name in list(folders):
            if (real := os.path.realpath(Path(folder, name))) in seen:
                folders.remove(name)
            seen.add(real)
    return found


def _is_link(folder: str, name: str) -> bool:
    return Path(folder, name).is_symlink()


def _kind_of(file: Path) -> str | None:
    return EXTENSIONS.get(file.suffix.lower())


def _format(file: Path) -> str:
    try:
        return _kind_of(file) or {".json": "jsonl"}[file.suffix]
    except KeyError:
        raise SourceError(f"{str(file)!r} is neither JSONL (.jsonl, .ndjson, .json) nor Parquet (.parquet).") from None


def _sample(root: Path, names: list[str], sizes: list[int]) -> list[str]:
    """A hash of each shard's sample; '' for those left out where there are very many."""
    every = -(-len(names) // MOST_SAMPLED_SHARDS)
    budget = None if sum(sizes) <= SAMPLE_BYTES else SAMPLE_BYTES // -(-len(names) // every)
    return [
        _sample_file(root / n, size, budget) if i % every == 0 else ""
        for i, (n, size) in enumerate(zip(names, sizes, strict=True))
    ]


def _sample_file(path: Path, size: int, budget: int | None) -> str:
    h = hashlib.blake2b(digest_size=8)
    with open(path, "rb") as f:
        if budget is None or size <= budget:
            for block in iter(lambda: f.read(2**20), b""):
                h.update(block)
        else:
            length = max(1, budget // SAMPLES_PER_SHARD)
            for k in range(SAMPLES_PER_SHARD):
                f.seek((size - length) * k // (SAMPLES_PER_SHARD - 1))
                h.update(f.read(length))
    return h.hexdigest()
