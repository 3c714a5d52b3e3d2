"""The types that the trained column of a table may have: texts, or lists of token ids; ids as numpy arrays, without a
Python object a token."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..errors import SourceError
from ..records import Contents
from ..text_of import TextOf
from .nested import names_in, times_in, top_of, type_at

TEXTS = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
"""Types of text, and of bytes that may hold UTF-8; as words, since older versions of pyarrow have no views."""
_LISTS = ("list<", "large_list<", "fixed_size_list<", "list_view<", "large_list_view<")


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds texts, maybe each only once."""
    return str(kind.value_type if pa.types.is_dictionary(kind) else kind) in TEXTS


def is_ids(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists of integers."""
    return str(kind).startswith(_LISTS) and pa.types.is_integer(kind.value_type)


def readable(texts: pa.Array) -> pa.Array:
    """Texts that are stored as bytes, as texts, without a copy; any other array as it is."""
    if isinstance(texts, pa.DictionaryArray):
        found = readable(texts.dictionary)
        return texts if found is texts.dictionary else pa.DictionaryArray.from_arrays(texts.indices, found, safe=False)
    kind = str(texts.type)
    return texts.view(pa.type_for_alias(kind.replace("binary", "string"))) if kind in TEXTS[3:] else texts


def largest_of(kind: pa.DataType) -> int:
    """The largest id that lists of this type can hold."""
    return int(np.iinfo(str(kind.value_type)).max)


def contents_of(path: str, schema: pa.Schema, text: TextOf) -> Contents:
    """What the columns of ``text`` hold in a file; ``SourceError`` for what is neither text nor ids, or there twice."""
    return "ids" if "ids" in {_contents_at(path, schema, field, text.one_field) for field in text.fields} else "text"


def _contents_at(path: str, schema: pa.Schema, field: str, alone: bool) -> Contents:
    if (count := times_in(schema, field)) == 0:
        raise SourceError(
            f"{path!r} has no column {field!r}; its columns: {', '.join(map(repr, names_in(schema)))}. Name the text "
            'column with `field = "..."`.'
        )
    if count > 1:
        raise SourceError(f"{path!r} has {count} columns named {top_of(schema.names, field)!r}.")
    kind = type_at(schema, field)
    if is_text(kind):
        return "text"
    if is_ids(kind) and alone:
        return "ids"
    if alone:
        why = "neither text (string, or binary in UTF-8) nor token ids (a list of integers)"
    else:
        why = "no text (string, or binary in UTF-8), and only text can be joined"
    raise SourceError(f"{path!r}: column {field!r} holds {kind}, {why}.")


def mixed(path: str, schema: pa.Schema, text: TextOf, others: Contents) -> SourceError:
    """The error for a file whose column does not hold what those of the ``others`` do."""
    field = text.fields[0]
    return SourceError(
        f"{path!r}: column {field!r} holds {type_at(schema, field)}, and the files before it "
        f"{'token ids' if others == 'ids' else 'text'}; a source is one or the other."
    )


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
    if "list_view<" in str(lists.type):
        return numbers(lists.sizes).astype(np.int64)
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
