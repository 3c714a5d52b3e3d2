"""What is trained on of a record: text of one field or several, or token ids. Checked, and without the empty documents.

What flows in: documents as a reader gives them, with the fields' values or token ids as they stand in the file; or
whole records, as a user's functions give them. What flows out: documents of non-empty texts (values "text") or of ids
(tokens "ids", int32), and the bad ones. No Python object per token on the way from a column of ids.
"""

from __future__ import annotations

import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..bad_records import BadRecord, Sifted, Unreadable, without
from ..records import RECORD, Contents, Documents, Record
from ..text_of import TextOf, names_in, value_at


class IdLimits(NamedTuple):
    """What documents of ids must be: ids up to ``largest``; one of ``lengths`` of them, any if there are none."""

    largest: int = (1 << 31) - 1
    lengths: tuple[int, ...] = ()


ANY_IDS = IdLimits()


def checked(documents: Documents, text: TextOf, contents: Contents, limits: IdLimits = ANY_IDS) -> Sifted:
    """``documents`` with their ``text`` alone, which is of ``contents``; empty ones are counted and left out."""
    bad: list[BadRecord] = []
    if RECORD in documents.values:
        documents, bad = _fields_of(documents, text.fields)
    if contents == "text":
        documents, more = _texts(documents, text)
        return documents, bad + more
    field = text.fields[0]
    if field in documents.values:
        documents, more = _flat(documents, field)
        bad += more
    documents, more = _ids(documents, field, limits.largest)
    bad += more
    if limits.lengths:
        documents, more = _of_length(documents, field, limits.lengths)
        bad += more
    return _not_empty(documents, np.diff(documents.offsets) > 0), bad


def _fields_of(documents: Documents, fields: tuple[str, ...]) -> Sifted:
    """The values of ``fields`` of whole records."""
    records = documents.values[RECORD]
    try:
        return replace(documents, values={field: _column(records, field) for field in fields}), []
    except (KeyError, Unreadable):
        return _fields_where_they_are(documents, fields)


def _column(records: list[Record], field: str) -> list[Any]:
    if "." in field:
        return [value_at(record, field) for record in records]
    return [record[field] for record in records]


def _fields_where_they_are(documents: Documents, fields: tuple[str, ...]) -> Sifted:
    rows, kept = [], []
    bad: list[BadRecord] = []
    for n, (record, place) in enumerate(zip(documents.values[RECORD], documents.origin[:, 2].tolist(), strict=True)):
        try:
            rows.append([_found(record, field, place) for field in fields])
            kept.append(n)
        except Unreadable as error:
            bad.append(error.bad)
    values = {field: [row[f] for row in rows] for f, field in enumerate(fields)}
    return replace(documents.take(np.array(kept, np.int64)), values=values), bad


def _found(record: Record, field: str, place: int) -> Any:
    """The value of ``field``. Raises ``Unreadable`` if there is none."""
    try:
        return value_at(record, field)
    except KeyError:
        problem = (
            f"there is no field {field!r}; the record's fields: {names_in(record)}. Name the text field with "
            '`field = "..."` in the source\'s table'
        )
        raise Unreadable(BadRecord("field", place, problem)) from None


def _texts(documents: Documents, text: TextOf) -> Sifted:
    bad: list[BadRecord] = []
    taken = {str, type(None)} if text.takes_null else {str}
    for field in text.fields:
        if not {*map(type, documents.values[field])} <= taken:
            bad += [
                BadRecord("field", place, f"field {field!r} must be a string; it is {_described(value)}")
                for value, place in zip(documents.values[field], documents.origin[:, 2].tolist(), strict=True)
                if type(value) not in taken
            ]
    documents = without(documents, bad)
    documents = replace(documents, values={"text": text.joined(documents.values)})
    return _not_empty(documents, [*map(bool, documents.values["text"])]), bad


def _described(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__} ({str(value)[:40]!r})"


def _flat(documents: Documents, field: str) -> Sifted:
    """Lists of integers, as a user's function gives them, laid end to end."""
    flat, kept = [], []
    bad: list[BadRecord] = []
    lists = documents.values[field]
    for n, (value, place) in enumerate(zip(lists, documents.origin[:, 2].tolist(), strict=True)):
        if (ids := _integers(value)) is None:
            bad.append(BadRecord("ids", place, f"field {field!r} must be a list of token ids; it is {str(value)[:40]}"))
        else:
            flat.append(ids)
            kept.append(n)
    offsets = np.cumsum([0, *map(len, flat)], dtype=np.int64)
    tokens = {"ids": np.concatenate([np.zeros(0, np.int64), *flat])}
    return Documents({}, tokens, offsets, documents.origin[kept], documents.read), bad


def _integers(value: Any) -> np.ndarray | None:
    """int64 [tokens]; None for what is no list of integers. ``array`` takes no float and no null, but a bool."""
    if isinstance(value, np.ndarray):
        whole = value.ndim == 1 and (value.dtype.kind in "iu" or not len(value))
        return value.astype(np.int64) if whole else None
    if not isinstance(value, (list, tuple)) or bool in map(type, value):
        return None
    try:
        return np.frombuffer(array.array("q", value), np.int64)
    except (TypeError, OverflowError):
        return None


def _ids(documents: Documents, field: str, largest_id: int) -> Sifted:
    ids = documents.ids
    bad: list[BadRecord] = []
    if len(ids) and (ids.min() < 0 or ids.max() > largest_id):
        at = np.flatnonzero((ids < 0) | (ids > largest_id))
        holders, first = np.unique(np.searchsorted(documents.offsets, at, side="right") - 1, return_index=True)
        bad = [
            BadRecord(
                "ids", place, f"field {field!r} holds {number}, which is no token id: they are 0 to {largest_id:,}"
            )
            for place, number in zip(documents.origin[holders, 2].tolist(), ids[at[first]].tolist(), strict=True)
        ]
        documents = without(documents, bad)
    return replace(documents, values={}, tokens={"ids": documents.ids.astype(np.int32, copy=False)}), bad


def _of_length(documents: Documents, field: str, lengths: tuple[int, ...]) -> Sifted:
    """Those that have one of ``lengths``, or are empty."""
    own = np.diff(documents.offsets)
    wrong = np.flatnonzero(~np.isin(own, (0, *lengths)))
    allowed = " or ".join(f"{n:,}" for n in lengths)
    bad = [
        BadRecord("ids", place, f"field {field!r} holds {n:,} ids, and a ready-made row has {allowed}")
        for place, n in zip(documents.origin[wrong, 2].tolist(), own[wrong].tolist(), strict=True)
    ]
    return without(documents, bad), bad


def _not_empty(documents: Documents, full: Sequence[bool] | np.ndarray) -> Documents:
    """The documents that are ``full``, and how many are not."""
    kept = np.flatnonzero(full)
    read = replace(documents.read, empty=len(documents) - len(kept), documents=len(kept))
    return replace(documents.take(kept), read=read)
