"""A hash of a content sample of each file, and a look at its first bytes.

What flows in: files and sizes. What flows out: a hash a file. A source of up to 16 MiB is hashed whole (about 10 ms); a
larger one is sampled evenly within that budget, so a change between samples is found only when the stream's digest
meets it in a restore. A file that holds something else than its name says, and can be told by its first bytes, is
refused here: a pointer of Git LFS, or one JSON array.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..errors import SourceError
from ..progress import Progress
from .formats import formats, other_format
from .packings import PACKINGS, packing_of, wrong_packing
from .retry import with_retries
from .store import Store
from .stores.url import UrlPath
from .walk import File, trouble

SAMPLE_BYTES = 16 * 2**20
"""Content hashed per source, spread over its shards."""
SAMPLES_PER_SHARD = 16
_DIGEST_BYTES = 8
_AT_ONCE = 16
"""Files behind a URL that are sampled at a time: a request takes long, and costs this machine little."""
MOST_SAMPLED_SHARDS = 4096
_POINTERS = {
    b"version https://git-lfs.github.com/spec/": "of Git LFS; run `git lfs pull` in its repository",
    b"/annex/objects/": "of git-annex; run `git annex get` in its repository",
}
_POINTER_BYTES = range(64, 1025)
"""Sizes that a pointer can have."""


class Sampling(NamedTuple):
    """How the files of a source are sampled: every ``every``-th of them, ``budget`` bytes each, or whole if None."""

    every: int
    budget: int | None

    @classmethod
    def of(cls, sizes: Sequence[int]) -> Sampling:
        """For files of these sizes."""
        every = -(-len(sizes) // MOST_SAMPLED_SHARDS)
        return cls(every, None if sum(sizes) <= SAMPLE_BYTES else SAMPLE_BYTES // -(-len(sizes) // every))

    def look(self, store: Store, name: str, num_bytes: int) -> tuple[str, bytes]:
        """The hash of a file's sample, and its first bytes; of a place that keeps a hash, that. Raises ``OSError``."""
        if kept := store.digest(name):
            return kept[: 2 * _DIGEST_BYTES], b""
        h = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        with store.open(name) as f:
            if self.budget is None or num_bytes <= self.budget:
                head = b""
                for block in iter(lambda: f.read(2**20), b""):
                    head = head or block[:64]
                    h.update(block)
            else:
                head = f.read(64)
                length = max(1, self.budget // SAMPLES_PER_SHARD)
                for k in range(SAMPLES_PER_SHARD):
                    f.seek((num_bytes - length) * k // (SAMPLES_PER_SHARD - 1))
                    h.update(f.read(length))
        return h.hexdigest(), head


def sample(source: str, kind: str, store: Store, files: list[File]) -> list[str]:
    """A hash of each file's sample; '' for those left out where there are very many, which are only asked for.

    Raises ``SourceError`` for a file that may not be read, or that holds no records.
    """
    sampling = Sampling.of([file.num_bytes for file in files])

    def sampled(i: int) -> str:
        name, num_bytes, _ = files[i]
        path = store.path(name)
        try:
            if i % sampling.every:
                digest, head = "", with_retries(partial(_head, store, name, num_bytes), path, "the beginning")
            else:
                digest, head = with_retries(partial(sampling.look, store, name, num_bytes), path, "a sample")
        except OSError as error:
            raise SourceError(f"source {source!r}: {path!r} {trouble(Path(path), error)}") from None
        if head and (problem := _problem(kind, name, head)):
            raise SourceError(f"source {source!r}: {path!r} {problem}")
        return digest

    samples = []
    with (
        Progress(f"sampling the files of source {source!r}", len(files), "files") as progress,
        ThreadPoolExecutor(_AT_ONCE, "zephon-sample") as threads,
    ):
        map_over = threads.map if isinstance(store.root, UrlPath) else map  # a disk is fastest with one reader
        for digest in map_over(sampled, range(len(files))):
            samples.append(digest)
            progress.done()
    return samples


def _head(store: Store, name: str, num_bytes: int) -> bytes:
    """The first bytes of a file that can be a pointer; of another none, but it must be one that this user may read."""
    if num_bytes in _POINTER_BYTES:
        return store.read(name, 0, 64)
    if not store.may_read(name):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return b""


def _problem(kind: str, name: str, head: bytes) -> str | None:
    for begin, what in _POINTERS.items():
        if head.startswith(begin):
            return f"is a pointer {what}, which puts the file itself in its place."
    if problem := wrong_packing(name, head):
        return problem
    if other := other_format(kind, head):
        return f"begins with {head[:8]!r}, as {other} does: it is not of the format {formats()[kind].title}."
    packed = next((packing for packing in PACKINGS if head.startswith(packing.magic)), None)
    if kind == "jsonl" and packed is not None and packing_of(name) is None:
        return f"is packed with {packed.title}, and its name does not say so. Let it end in {packed.suffix!r}."
    if kind == "jsonl" and head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        return (
            f"begins with {head[:20]!r}: it is one JSON array, or a line of it is, where each line must be an object. "
            "Write one record a line, for example with: jq -c '.[]' IN.json > OUT.jsonl"
        )
    return None
