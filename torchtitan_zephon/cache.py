"""Results worth keeping between runs, on this machine: small, and a pure function of their key.

What flows in: what a result depends on, all of it, and the computation. What flows out: the result, from a file below
``$XDG_CACHE_HOME`` (``~/.cache``) if there is one. A folder that cannot be written, or a file that is damaged, of
another owner or of a value that cannot be, costs the computation again and nothing else. The folder may be deleted at
any time.

Whoever can write a file decides what is read from it, so only files of this user that nobody else may write to are
read; each is written so. The folder's owner does not matter: a file put there by another user belongs to that user.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

MOST_BYTES = 32 * 2**20
"""No entry is larger; a larger file is none."""
PART = ".part"
"""Ending of a file that is being written, or that a killed process left."""
MOST_TOKENS = 128
"""No character has more tokens."""


def cached(kind: str, key: list[Any], compute: Callable[[], Any], valid: Callable[[Any], bool]) -> Any:
    """``compute()``, a JSON value, or what it gave for the same ``key``.

    ``valid`` says whether a value can be one for the key; what it refuses is neither taken nor kept.
    """
    text = json.dumps(key)
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        file = Path(home, "torchtitan_zephon", f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:32]}.json")
    except RuntimeError:  # no home folder
        return compute()
    try:
        found = json.loads(read_own(file))
        if found["key"] == text and found["check"] == _check(text, found["value"]) and valid(found["value"]):
            return found["value"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    value = compute()
    if valid(value):
        with suppress(OSError):
            write_whole(file, json.dumps({"key": text, "value": value, "check": _check(text, value)}).encode())
    return value


def _check(key: str, value: Any) -> str:
    """A sum over an entry: finds what was damaged or edited, not what was forged (which takes this user's rights)."""
    return hashlib.sha256(json.dumps([key, value]).encode()).hexdigest()[:32]


def counts_of(sizes: list[int]) -> Callable[[Any], bool]:
    """``valid`` for the tokens in each of some samples, and those of them that can be an input.

    ``sizes``: characters and documents of each. A character may become several tokens (bytes, or a ligature that a
    normaliser spells out), and a document has some around it.
    """

    def valid(value: Any) -> bool:
        return (
            isinstance(value, list)
            and len(value) == len(sizes)
            and all(isinstance(counts, (list, tuple)) and len(counts) == 2 for counts in value)
            and all(type(count) is int for counts in value for count in counts)
            and all(0 <= of <= tokens <= MOST_TOKENS * size for (tokens, of), size in zip(value, sizes, strict=True))
        )

    return valid


def is_line(value: Any) -> bool:
    """``valid`` for a line of text."""
    return isinstance(value, str) and value.isprintable()


def read_own(file: Path) -> bytes:
    """The content of a file that only this user can have written. Raises ``OSError`` if it is another, or no file."""
    # Not to wait for a writer of a FIFO, nor to follow a link to what is no entry.
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as f:
        status = os.fstat(descriptor)
        own = status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not (stat.S_ISREG(status.st_mode) and own and status.st_size <= MOST_BYTES):
            raise PermissionError
        return f.read()


def write_whole(file: Path, data: bytes) -> None:
    """Put the file in place whole, so that processes which fill one entry at a time do not mix. Raises ``OSError``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(PART, f"{file.stem}.", file.parent)  # only for this user, whatever umask
    try:
        with open(descriptor, "wb") as f:
            f.write(data)
        Path(part).replace(file)
    except OSError:
        with suppress(OSError):
            Path(part).unlink()
        raise
