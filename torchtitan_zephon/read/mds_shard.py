"""A shard of MDS, the format of Mosaic Streaming: where its samples lie, and the values in them.

The layout is that of ``MDSWriter``: the number of samples; where each begins, and the last one ends; the columns as
JSON; the samples. A sample has the bytes of each value of no fixed size, then the values. Nothing is unpickled: a value
that is encoded otherwise than below is given as bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

_SHAPE_TYPES = ("u1", "<u2", "<u4", "<u8")
_VALUE_TYPES = {
    8: "u1",
    9: "i1",
    16: "<u2",
    17: "<i2",
    18: "<f2",
    32: "<u4",
    33: "<i4",
    34: "<f4",
    64: "<u8",
    65: "<i8",
    66: "<f8",
}
_SCALARS = (*(f"{sign}int{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64)), "float16", "float32", "float64")
_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "str": lambda data: str(data, "utf-8"),
    "json": json.loads,
    "int": lambda data: int(np.frombuffer(data, "<i8")[0]),
    "str_int": lambda data: int(data),
    "str_float": lambda data: float(data),
}


class Column(NamedTuple):
    """``num_bytes``: of a value, None if that stands in each sample."""

    name: str
    encoding: str
    num_bytes: int | None


class Shard(NamedTuple):
    """``begins``: where the samples begin and the last one ends, int64 [samples + 1]."""

    begins: np.ndarray
    columns: tuple[Column, ...]

    def column(self, name: str) -> Column | None:
        """The column of this name."""
        return next((column for column in self.columns if column.name == name), None)

    @property
    def head_bytes(self) -> int:
        """Of what stands before the values of a sample."""
        return 4 * sum(column.num_bytes is None for column in self.columns)


def shard_of(read: Callable[[int, int], bytes], num_bytes: int, field: str, dtype: str) -> Shard:
    """The samples of a shard of ``num_bytes`` bytes; where ``field`` has bytes, they are ids of ``dtype``, if given.

    Raises ``ValueError`` for what is no shard, or not whole.
    """
    samples = int.from_bytes(read(0, 4), "little")
    if (table := 4 + 4 * (samples + 1)) > num_bytes:
        raise ValueError(f"{samples:,} samples in {num_bytes:,} bytes")
    begins = np.frombuffer(read(4, table), "<u4").astype(np.int64)
    if begins[0] < table or (np.diff(begins) < 0).any() or begins[-1] != num_bytes:
        raise ValueError(f"its samples end at byte {begins[-1]:,}, and it has {num_bytes:,}")
    try:
        stated = json.loads(read(table, int(begins[0])))
        names, encodings, sizes = (stated[f"column_{what}"] for what in ("names", "encodings", "sizes"))
        columns = tuple(map(Column, names, encodings, sizes))
        if dtype:
            columns = tuple(c._replace(encoding=f"raw:{dtype}") if c[:2] == (field, "bytes") else c for c in columns)
    except (KeyError, TypeError) as error:
        raise ValueError(f"its columns cannot be told: {error}") from error
    return Shard(begins, columns)


def parts_of(sample: bytes, shard: Shard, wanted: frozenset[str] | None) -> dict[Column, bytes]:
    """The values of a sample as they are encoded, or those ``wanted``. Raises ``ValueError``."""
    found, at = {}, shard.head_bytes
    lengths = iter(np.frombuffer(sample, "<u4", at // 4).tolist())
    for column in shard.columns:
        length = next(lengths) if column.num_bytes is None else column.num_bytes
        if wanted is None or column.name in wanted:
            found[column] = sample[at : at + length]
        at += length
    if at != len(sample):
        raise ValueError(f"a sample of {len(sample):,} bytes has values of {at:,}")
    return found


def ids_type(encoding: str) -> np.dtype[Any] | None:
    """The type of the numbers in a column of arrays, int64 where each says its own; None of another column."""
    kind, _, rest = encoding.partition(":")
    return np.dtype(rest.partition(":")[0] or np.int64) if kind in ("ndarray", "raw") else None


def decoded(data: bytes, encoding: str) -> Any:
    """A value. Raises ``ValueError``, ``IndexError``, ``KeyError`` for bytes that are none."""
    kind, _, rest = encoding.partition(":")
    if kind == "ndarray":
        return _array(data, *rest.split(":"))
    if kind == "raw":
        return np.frombuffer(data, np.dtype(rest).newbyteorder("<"))
    if kind in _SCALARS:
        return np.frombuffer(data, np.dtype(kind).newbyteorder("<"))[0].item()
    return _DECODERS.get(kind, bytes)(data)


def _array(data: bytes, dtype: str = "", shape: str = "") -> np.ndarray:
    at, kind = 0, np.dtype(dtype).newbyteorder("<") if dtype else None
    if kind is None:
        at, kind = 1, np.dtype(_VALUE_TYPES[data[0]])
    if shape:
        return np.frombuffer(data, kind, -1, at).reshape([int(n) for n in shape.split(",")])
    dimensions, of_shape = data[at] >> 2, np.dtype(_SHAPE_TYPES[data[at] & 3])
    at += 1
    axes = np.frombuffer(data, of_shape, dimensions, at)
    return np.frombuffer(data, kind, -1, at + axes.nbytes).reshape(axes.tolist())
