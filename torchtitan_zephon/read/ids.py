"""Columns of token ids: Arrow arrays of lists of integers, as numpy arrays, without a Python object a token."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def is_ids(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists of integers."""
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(of(kind) for of in lists) and pa.types.is_integer(kind.value_type)


def largest_of(kind: pa.DataType) -> int:
    """The largest id that lists of this type can hold."""
    return int(np.iinfo(str(kind.value_type)).max)


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


def laid_out(arrays: list[pa.Array]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lists laid end to end: their integers, int64 [rows + 1] offsets, and the numbers of rows with a null.

    A row with a null counts as an empty list.
    """
    flat, lengths, nulls, done = [], [], [np.zeros(0, np.int64)], 0
    for array in arrays:
        values, of_row = array.flatten(), np.zeros(len(array), np.int64)
        if array.null_count or values.null_count:
            good = np.array([row.is_valid and all(value.is_valid for value in row.values) for row in array])
            nulls.append(done + np.flatnonzero(~good))
            whole = array.take(pa.array(np.flatnonzero(good)))
            values, of_row[good] = whole.flatten(), list_lengths(whole)
        else:
            of_row = list_lengths(array)
        flat.append(numbers(values))
        lengths.append(of_row)
        done += len(array)
    offsets = np.zeros(done + 1, np.int64)
    np.cumsum(np.concatenate(lengths), out=offsets[1:])
    return flat[0] if len(flat) == 1 else np.concatenate(flat), offsets, np.concatenate(nulls)
