"""Records whose columns are decoded when a user's function asks for them.

A function that looks at two of forty columns costs two columns, and what it does not look at cannot fail: a date that
Python has no value for, a time zone that this machine does not know, an encrypted column. A column is decoded for a
whole chunk at once, which costs less than one value at a time; only if that fails is each value tried alone, so that
an error names its row. A lazy record is a ``dict`` for Python code. Libraries in C that look into a ``dict`` past its
methods (``orjson.dumps``) meet a placeholder and fail; they take ``dict(record)``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from ..bad_records import BadRecord, Unreadable
from .sizes import value_bytes


class _Unread:
    """Stands for a value that nobody asked for. It refuses to become text, or it could get into somebody's data."""

    def __repr__(self) -> NoReturn:
        raise TypeError("a field of this record was not read yet, and its placeholder was used; pass on dict(record).")


_UNREAD = _Unread()


class Columns:
    """The columns of one chunk's records. ``load`` reads one that is not among ``arrays``; one thread uses both.

    ``places``: int64 [records]. ``most_bytes``: that a text may have.
    """

    def __init__(
        self,
        arrays: dict[str, list[pa.Array]],
        load: Callable[[str], list[pa.Array]],
        places: np.ndarray,
        most_bytes: int,
    ) -> None:
        self._arrays = arrays
        self._load = load
        self._places, self._most_bytes = places, most_bytes
        self._values: dict[str, list[Any]] = {}

    def value(self, name: str, row: int) -> Any:
        """One value. Raises ``Unreadable`` if its column cannot be read, or the value has no form in Python."""
        if name not in self._values:
            self._values[name] = self._column(name)
        value = self._values[name][row]
        if type(value) is BadRecord:
            raise Unreadable(value)
        return value

    def _column(self, name: str) -> list[Any]:
        """All values; a ``BadRecord`` in place of each that cannot be had."""
        arrays = self._arrays.pop(name, None)
        try:
            return decoded(name, self._load(name) if arrays is None else arrays, self._places, self._most_bytes)
        except Unreadable as error:
            return [error.bad] * len(self._places)


def decoded(name: str, arrays: list[pa.Array], places: np.ndarray, most_bytes: int) -> list[Any]:
    """The values of column ``name``; a ``BadRecord`` in place of each that has no form in Python, or is too large."""
    large = are_large(arrays, most_bytes)
    try:
        if not large.any():
            return [value for array in arrays for value in array.to_pylist()]
    except Exception:  # Arrow has no one class for these: it passes on what `datetime`, `zoneinfo` or a codec raise
        pass
    scalars = (scalar for array in arrays for scalar in array)
    return [
        too_large(name, place, most_bytes) if is_large else _value(name, scalar, place)
        for scalar, place, is_large in zip(scalars, places.tolist(), large.tolist(), strict=True)
    ]


def are_large(arrays: list[pa.Array], most_bytes: int) -> np.ndarray:
    """Which values have more than ``most_bytes``: bool [rows]."""
    return np.concatenate([np.zeros(0, bool), *(value_bytes(array) > most_bytes for array in arrays)])


def too_large(name: str, place: int, most_bytes: int) -> BadRecord:
    """The record at ``place``, whose column ``name`` is too large."""
    return BadRecord("size", place, f"column {name!r} holds more than max_record_bytes = {most_bytes:,} bytes")


def _value(name: str, scalar: pa.Scalar, place: int) -> Any:
    try:
        return scalar.as_py()
    except Exception as error:
        return BadRecord("column", place, f"column {name!r} cannot be decoded: {type(error).__name__}: {error}")


class LazyRecord(dict[str, Any]):
    """A record of which every key is there, and a value once it was asked for."""

    __slots__ = ("_columns", "_row")
    _columns: Columns
    _row: int

    def _read(self) -> LazyRecord:
        """This record with every value read."""
        for key in self:
            self[key]
        return self

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if value is _UNREAD:
            value = self._columns.value(key, self._row)
            self[key] = value
        return value

    def __iter__(self) -> Iterator[str]:
        # Not useless: `{**record}` and `dict(record)` use `__getitem__` only for a class with an `__iter__` of its own.
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        value = super().get(key, default)
        return self[key] if value is _UNREAD else value

    def pop(self, key: str, *default: Any) -> Any:
        if key in self:
            self[key]
        return super().pop(key, *default)

    def popitem(self) -> tuple[str, Any]:
        self._read()
        return super().popitem()

    def setdefault(self, key: str, default: Any = None) -> Any:
        super().setdefault(key, default)
        return self[key]

    def values(self) -> Any:
        return super(LazyRecord, self._read()).values()

    def items(self) -> Any:
        return super(LazyRecord, self._read()).items()

    def copy(self) -> LazyRecord:
        """As lazy as this one."""
        made = LazyRecord()
        for key in self:
            made[key] = super().__getitem__(key)
        if hasattr(self, "_columns"):  # not where a function made one: type(record)(record)
            made._columns, made._row = self._columns, self._row
        return made

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy(dict(self), memo)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def __or__(self, other: Any) -> Any:
        if not isinstance(other, dict):
            return NotImplemented
        made = self.copy()
        made.update(other)
        return made

    def __ror__(self, other: Any) -> Any:
        return {**other, **self} if isinstance(other, dict) else NotImplemented

    def __eq__(self, other: object) -> bool:
        return dict(self) == (dict(other) if isinstance(other, LazyRecord) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        return repr(dict(self))


def lazy_records(names: Sequence[str], columns: Columns, count: int) -> list[LazyRecord]:
    """``count`` records with the fields ``names``, none of them read."""
    unread: Mapping[str, Any] = dict.fromkeys(names, _UNREAD)
    records = []
    for row in range(count):
        record = LazyRecord(unread)
        record._columns, record._row = columns, row
        records.append(record)
    return records
