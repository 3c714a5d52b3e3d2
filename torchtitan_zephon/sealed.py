"""Canonical JSON with a check sum: how the state is written, and how bytes that may be anything are read.

What flows in and out: a table of plain values, and its one canonical encoding. ``unseal`` takes nothing else: what it
accepts is byte for byte what ``seal`` gives for the result. So a key that stands twice, a number that JSON does not
know, half a character, another encoding or spacing, and a nesting that no state has are refused here, whatever reads
the values later. The check sum finds accidents; who can forge it can write any state.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from .errors import StateError

NEW_STREAM = "To train on with a new stream: --checkpoint.exclude_from_loading dataloader."
OLDER_STEP = "Load an older step (--checkpoint.load_step N)."
MOST_LEVELS = 16
"""A state is nested 6 levels deep: the recipe's sources' shards."""
MOST_COUNT = 2**63 - 1


def is_count(value: object) -> bool:
    """A whole number that fits 64 bits with sign, and is not below 0."""
    return type(value) is int and 0 <= value <= MOST_COUNT


def _list_of(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(kind, value))


def _hexadecimal(*lengths: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and len(value) in lengths and bool(re.fullmatch("[0-9a-f]*", value))


KINDS: dict[str, Callable[[Any], bool]] = {
    "count": is_count,
    "list of counts": _list_of(is_count),
    "list of counts, or null": lambda v: v is None or KINDS["list of counts"](v),
    "text": lambda v: isinstance(v, str),
    "SHA-256": _hexadecimal(64),
    "list of digests": _list_of(_hexadecimal(0, 16)),
    "table": lambda v: isinstance(v, dict),
}
"""What a field can be, in the words of an error."""


def canonical(value: Any) -> bytes:
    """The one encoding of a plain value. ``ValueError`` if it has none: NaN, infinity, half a character."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def seal(version: int, value: Mapping[str, Any]) -> bytes:
    """The bytes of ``value``, with a format version and a check sum."""
    value = {"format": version, **value}
    return canonical({**value, "check": _check(value)})


def unseal(data: object, version: int, fields: Mapping[str, str], where: str) -> dict[str, Any]:
    """The ``fields`` (name: kind) that ``seal`` made ``data`` of. Raises ``StateError`` that names ``where``."""
    value, whole = _parse(data, where)
    if is_count(value.get("format")) and value["format"] >= 1 and value["format"] != version:
        raise StateError(
            f"{where} has format {value['format']}; this version of torchtitan_zephon reads format {version}. "
            "Install the version that wrote it."
        )
    expected = {"format": "count", **fields, "check": "text"}
    for name, kind in expected.items():
        if name not in value:
            raise damaged(where, f"field {name!r} is missing")
        if not KINDS[kind](value[name]) or (name == "format" and value[name] < 1):
            found = f"{type(value[name]).__name__}, not a {kind}: {str(value[name])[:40]!r}"
            raise damaged(where, f"field {name!r} is a {found}")
    if unknown := sorted(value.keys() - expected.keys()):
        raise damaged(where, f"unknown field {unknown[0][:40]!r}")
    if value.pop("check") != _check(value):
        raise damaged(where, "its check sum does not match its content")
    if whole != data:
        raise damaged(where, "it is not in the one form in which it is written")
    return value


def damaged(where: str, why: str) -> StateError:
    """The refusal of a state that cannot be, with both ways out."""
    return StateError(f"{where} in the checkpoint is damaged: {why}. {OLDER_STEP} {NEW_STREAM}")


def _parse(data: object, where: str) -> tuple[dict[str, Any], bytes]:
    """The table in ``data``, and its canonical encoding."""
    if not isinstance(data, (bytes, bytearray)):
        raise StateError(
            f"{where} is a {type(data).__name__}, not bytes: this checkpoint was not made by "
            f"torchtitan_zephon. {NEW_STREAM}"
        )
    try:
        value = json.loads(data.decode())
        if isinstance(value, dict) and not _too_deep(value):
            return value, canonical(value)
    except (ValueError, RecursionError):  # numbers of thousands of digits, too
        pass
    shown = f"its {len(data)} bytes begin {bytes(data[:16])!r}"
    raise damaged(where, f"it is not JSON, or none that a state is written in ({shown})")


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_LEVELS):
        tables = [v for v in level if isinstance(v, (dict, list))]
        level = [inner for v in tables for inner in (v.values() if isinstance(v, dict) else v)]
        if not level:
            return False
    return True


def _check(value: Mapping[str, Any]) -> str:
    return hashlib.blake2b(canonical(value), digest_size=8).hexdigest()
