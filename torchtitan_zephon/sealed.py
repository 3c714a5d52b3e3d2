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
from dataclasses import field, fields
from typing import Any, NamedTuple, TypeVar

from .errors import StateError

T = TypeVar("T")
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


def _table_of(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(kind, value.values()))


def is_counts(value: object) -> bool:
    """A table of counts by name."""
    return _table_of(is_count)(value)


def _hexadecimal(*lengths: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and len(value) in lengths and bool(re.fullmatch("[0-9a-f]*", value))


class Kind(NamedTuple):
    """What a field can be: in the words of an error, and whether a plain value is one.

    ``encode`` and ``decode`` go from the value in memory to the plain one and back. ``fields``: of a table whose fields
    are known. ``optional``: the field is absent while it is empty.
    """

    name: str
    fits: Callable[[Any], bool]
    encode: Callable[[Any], Any] = lambda value: value
    decode: Callable[[Any], Any] = lambda value: value
    fields: Mapping[str, Kind] = {}
    optional: bool = False


COUNT = Kind("count", is_count)
COUNTS = Kind(
    "list of counts, or null",
    lambda v: v is None or _list_of(is_count)(v),
    decode=lambda v: None if v is None else tuple(v),
)
COUNT_BY_NAME = Kind("table of counts, or null", lambda v: v is None or is_counts(v))
TEXT = Kind("text", lambda v: isinstance(v, str))
SHA256 = Kind("SHA-256", _hexadecimal(64))
DIGESTS = Kind("table of digests", _table_of(_hexadecimal(0, 16)))
TABLE = Kind("table", lambda v: isinstance(v, dict))


def stored(kind: Kind) -> Any:
    """A dataclass field that is a field of a state, which stands nowhere else."""
    return field(metadata={"kind": kind})


def stored_if_any(kind: Kind) -> Any:
    """The same for a table that is absent from the state while it is empty, as most fields of later versions are."""
    name, fits = f"{kind.name} that is not empty", kind.fits
    optional = kind._replace(name=name, fits=lambda value: bool(value) and fits(value), optional=True)
    return field(default_factory=dict, metadata={"kind": optional})


def kinds(cls: Any) -> dict[str, Kind]:
    """The stored fields of a dataclass."""
    return {f.name: f.metadata["kind"] for f in fields(cls)}


def table_of(cls: Any) -> Kind:
    """A field that is a dataclass of stored fields itself."""
    return Kind("table", TABLE.fits, to_table, lambda value: from_table(cls, value), kinds(cls))


def to_table(value: Any) -> dict[str, Any]:
    """The stored fields of a dataclass as plain values."""
    table = {name: kind.encode(getattr(value, name)) for name, kind in kinds(value).items()}
    return {name: plain for name, plain in table.items() if plain or not kinds(value)[name].optional}


def from_table(cls: type[T], table: Mapping[str, Any]) -> T:
    """The dataclass that ``to_table`` was given; the plain values were found to be of their kinds."""
    return cls(**{name: kind.decode(table[name]) for name, kind in kinds(cls).items() if name in table})


def canonical(value: Any) -> bytes:
    """The one encoding of a plain value. ``ValueError`` if it has none: NaN, infinity, half a character."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def seal(version: int, value: Mapping[str, Any]) -> bytes:
    """The bytes of ``value``, with a format version and a check sum."""
    value = {"format": version, **value}
    return canonical({**value, "check": _check(value)})


def unseal(data: object, version: int, fields: Mapping[str, Kind], where: str) -> dict[str, Any]:
    """The ``fields`` that ``seal`` made ``data`` of, as plain values. Raises ``StateError`` that names ``where``."""
    value, whole = _parse(data, where)
    if is_count(value.get("format")) and value["format"] >= 1 and value["format"] != version:
        raise StateError(
            f"{where} has format {value['format']}; this version of torchtitan_zephon reads format {version}. "
            "Install the version that wrote it."
        )
    _check_fields(value, {"format": COUNT, **fields, "check": TEXT}, where)
    if value.pop("check") != _check(value):
        raise damaged(where, "its check sum does not match its content")
    if whole != data:
        raise damaged(where, "it is not in the one form in which it is written")
    return value


def _check_fields(value: Mapping[str, Any], expected: Mapping[str, Kind], where: str, prefix: str = "") -> None:
    """Raise ``StateError`` unless ``value`` has the fields ``expected`` and no other."""
    for name, kind in expected.items():
        if name not in value:
            if kind.optional:
                continue
            raise damaged(where, f"field {prefix + name!r} is missing")
        if not kind.fits(value[name]) or (name == "format" and value[name] < 1):
            found = f"{type(value[name]).__name__}, not a {kind.name}: {str(value[name])[:40]!r}"
            raise damaged(where, f"field {prefix + name!r} is a {found}")
        if kind.fields:
            _check_fields(value[name], kind.fields, where, f"{prefix}{name}.")
    if unknown := sorted(value.keys() - expected.keys()):
        raise damaged(where, f"unknown field {(prefix + unknown[0])[:40]!r}")


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
