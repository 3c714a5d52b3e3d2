"""Results worth keeping between runs, on this machine: small, and a pure function of their key.

What flows in: what a result depends on, all of it, and the computation. What flows out: the result, from a file below
``$XDG_CACHE_HOME`` (``~/.cache``) if there is one. A folder that cannot be written, or a file that is damaged, costs
the computation again and nothing else. The folder may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


def cached(kind: str, key: list[Any], compute: Callable[[], Any]) -> Any:
    """``compute()``, a JSON value, or what it gave for the same ``key``; None is not kept."""
    text = json.dumps(key)
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        file = Path(home, "torchtitan_zephon", f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:32]}.json")
    except RuntimeError:  # no home folder
        return compute()
    try:
        found = json.loads(file.read_text("utf-8"))
        if found["key"] == text:
            return found["value"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    value = compute()
    if value is not None:
        _write(file, json.dumps({"key": text, "value": value}))
    return value


def _write(file: Path, text: str) -> None:
    part = file.with_suffix(f".{os.getpid()}.{threading.get_ident()}")  # two streams may begin at the same time
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, "utf-8")
        part.replace(file)
    except OSError:
        with suppress(OSError):
            part.unlink()
