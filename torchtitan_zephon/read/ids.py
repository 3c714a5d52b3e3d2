"""Documents that are token ids already: lists of integers, from a Parquet column or from a user's function.

What flows in: Arrow arrays of lists, a document each, or Python lists. What flows out: ``Documents``, flat int32
with offsets; no Python object per token on the way from a column.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyarrow as pa

from ..records import Balance, Documents
from . import BadRecord

_setting_up = threading.Lock()
"""Held while Arrow is given a first Python list and sets itself up. On free-threaded builds two threads that do so at
once may wait for each other for ever (what apache/arrow pull request 44047 brought; seen with pyarrow 24)."""


def is_ids(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists of integers."""
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(of(kind) for of in lists) and pa.types.is_integer(kind.value_type)


def numbers(array: pa.Array) -> np.ndarray:
    """An array of integers, without a copy; what stands for a null is undefined.

    Arrow's own ``to_numpy`` and its functions import pandas where that is installed, which takes a second.
    """
    kind = np.dtype(str(array.type))
    if not len(array):
        return np.zeros(0, kind)
    return np.frombuffer(array.buffers()[1], kind, len(array), array.offset * kind.itemsize)


def valid(array: pa.Array) -> np.ndarray:
    """Where ``array``, which has nulls, has none: bool [rows]."""
    bits = np.frombuffer(array.buffers()[0], np.uint8)
    return np.unpackbits(bits, count=array.offset + len(array), bitorder="little")[array.offset :].astype(bool)


def list_lengths(lists: pa.Array) -> np.ndarray:
    """Values in each list, int64 [rows]; a null counts what lies in its place."""
    if pa.types.is_fixed_size_list(lists.type):
        return np.full(len(lists), lists.type.list_size, np.int64)
    return np.diff(numbers(lists.offsets).astype(np.int64))


def ids_of(arrays: list[pa.Array], origin: np.ndarray, field: str) -> Documents:
    """The documents in ``arrays``; empty ones are counted and left out.

    ``origin``: of every document, int64 [documents, 4]. Raises ``BadRecord`` for what is no id.
    """
    flat, lengths, done, places = [], [], 0, origin[:, 2]
    for array in arrays:
        values = array.flatten()
        if array.null_count or values.null_count:
            raise _null(array, field, places, done)
        lengths.append(list_lengths(array))
        flat.append(numbers(values))
        done += len(array)
    count = np.concatenate([np.zeros(0, np.int64), *lengths]).astype(np.int64)
    offsets = np.zeros(len(count) + 1, np.int64)
    np.cumsum(count, out=offsets[1:])
    wide = np.concatenate(flat) if len(flat) > 1 else flat[0]
    if len(wide) and (wide.min() < 0 or wide.max() >= 1 << 31):
        at = int(np.flatnonzero((wide < 0) | (wide >= 1 << 31))[0])
        place = int(places[np.searchsorted(offsets, at, side="right") - 1])
        raise BadRecord(f"field {field!r} holds {wide[at]}, which is no token id", place)
    ids = wide.astype(np.int32, copy=False)
    kept = count > 0
    balance = Balance(records=len(count), empty=int(len(count) - kept.sum()), documents=int(kept.sum()))
    return Documents({}, {"ids": ids}, np.append(offsets[:-1][kept], offsets[-1]), origin[kept], balance)


def _null(array: pa.Array, field: str, places: np.ndarray, done: int) -> BadRecord:
    inner = [not row.is_valid or any(not value.is_valid for value in row.values) for row in array]
    return BadRecord(f"field {field!r} is null, or holds one", int(places[done + inner.index(True)]))


def array_of(documents: list[Any], places: list[int], field: str) -> pa.Array:
    """Lists of integers from a user's function as one array. Raises ``BadRecord`` for anything else."""
    with _setting_up:
        pa.array([0])
    arrays = []
    for document, place in zip(documents, places, strict=True):
        try:
            if not isinstance(document, (list, tuple, np.ndarray)):
                raise TypeError
            array = pa.array(document)  # not asked for as integers: 1.5 would become 1
            if len(array) and not pa.types.is_integer(array.type):
                raise TypeError
            arrays.append(array.cast(pa.int64()))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise BadRecord(f"field {field!r} must be a list of token ids; it is {str(document)[:40]}", place) from None
    offsets = np.cumsum([0, *map(len, arrays)])
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.concat_arrays([pa.array([], pa.int64()), *arrays]))
