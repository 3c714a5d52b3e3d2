"""The ``index.json`` of MDS folders, compared with the shards that are there.

One index stands in each folder of shards, or one for several folders above them (``merge_index``). It must name every
shard that is read, with its size; and what it names must be there, and not only packed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ..errors import SourceError
from .files import Manifest
from .retry import with_retries
from .store import Store

INDEX = "index.json"


def check_indices(manifest: Manifest) -> None:
    """Raise ``SourceError`` unless the shards of ``manifest`` are those of their indices."""
    store, sizes = manifest.store, {shard.name: shard.num_bytes for shard in manifest.shards}
    stated: dict[str, int] = {}
    for index in sorted({_index_of(store, folder) for folder in {name.rpartition("/")[0] for name in sizes}}):
        below = index.removesuffix(INDEX)
        for entry in _entries(store, index):
            stated[below + entry["raw_data"]["basename"]] = entry["raw_data"]["bytes"]
            _check_there(store, index, below, entry, sizes)
    for name, num_bytes in sizes.items():
        if stated.get(name) != num_bytes:
            says = f"and {stated[name]:,} by its {INDEX}" if name in stated else f"and no {INDEX} names it"
            raise SourceError(
                f"{store.path(name)!r} has {num_bytes:,} bytes, {says}: it was cut, or is of another run of the "
                "writer. Copy the folder anew."
            )


def _index_of(store: Store, folder: str) -> str:
    """The nearest index in, or above, a folder."""
    parts = folder.split("/") if folder else []
    for depth in range(len(parts), -1, -1):
        if _is_there(store, name := "/".join([*parts[:depth], INDEX])):
            return name
    raise SourceError(
        f"{store.path(folder or '.')!r} has no {INDEX}, without which nobody knows whether its shards are all there: "
        "the writer was not closed, or the copy is not whole."
    )


def _is_there(store: Store, name: str) -> bool:
    try:
        with_retries(lambda: store.version(name), store.path(name), "the version")
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _entries(store: Store, index: str) -> Iterator[dict[str, Any]]:
    def read() -> bytes:
        with store.open(index) as file:
            return file.read()

    path = store.path(index)
    try:
        for entry in json.loads(with_retries(read, path, "the index"))["shards"]:
            if entry["format"] != "mds":
                raise SourceError(
                    f"{path!r} is that of {entry['format']!r} shards; of this library only 'mds' is read."
                )
            yield {"compression": entry["compression"], "raw_data": dict(entry["raw_data"])}
    except (KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SourceError(f"{path!r} is no index of MDS: {type(error).__name__}: {error}. Copy it anew.") from error


def _check_there(store: Store, index: str, below: str, entry: dict[str, Any], sizes: dict[str, int]) -> None:
    name = below + entry["raw_data"]["basename"]
    if name in sizes or _is_there(store, name):  # there, and not asked for
        return
    why = "copy it, or the folder anew"
    if packed := entry["compression"]:
        why = f"it is compressed ({packed}): unpack the shards beside themselves, or write them with compression=None"
    raise SourceError(f"{store.path(index)!r} names {name!r}, which is not there; {why}.")
