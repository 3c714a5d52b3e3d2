"""Rows of a table in Arrow's columns, as documents: what Parquet and Arrow files have in common.

The fields' columns are text, or one of lists of token ids, and go on as such. A user's function gets whole records,
whose columns are decoded when it asks for them (``lazy.py``); a column that was asked for once is read with the others
from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from ..bad_records import BadRecord, Sifted, Unreadable, without
from ..errors import SourceError
from ..records import RECORD, Contents, Documents
from .ids import laid_out, readable
from .lazy import Columns, are_large, decoded, lazy_records, too_large
from .nested import column_at, top_of
from .retry import with_retries


class Rows(Protocol):
    """Some rows of a file. ``names``: all its columns. ``origin``: int64 [rows, 4], as in ``Documents``."""

    path: str
    names: tuple[str, ...]
    origin: np.ndarray

    def batches(self, columns: tuple[str, ...], alone: bool = False) -> list[pa.RecordBatch]:
        """These columns; of one that is a path, such as ``meta.text``, no more than the column that it leads into.

        ``alone``: no others will be read like this. Raises ``SourceError``.
        """


@dataclass(slots=True)
class Decoder:
    """From rows to documents. ``most_bytes``: of one value. ``asked``: columns that functions asked for. A note that
    two threads write at once may be lost, and is made again."""

    fields: tuple[str, ...]
    contents: Contents
    most_bytes: int
    asked: frozenset[str] = frozenset()

    def documents(self, rows: Rows, columns: frozenset[str] | None) -> Sifted:
        """These columns of the rows, or whole records."""
        if columns is None:
            return self._records(rows), []
        fields = tuple(field for field in self.fields if field in columns)
        batches = rows.batches(fields)
        documents, bad = Documents.of_values({}, rows.origin), list[BadRecord]()
        places = rows.origin[:, 2]
        for field in fields:
            arrays = [readable(column_at(batch, field)) for batch in batches]
            if self.contents == "ids":
                ids, offsets, nulls = laid_out(arrays)
                documents = replace(documents, tokens={"ids": ids}, offsets=offsets)
                problem = f"field {field!r} is null, or holds one"
                bad += [BadRecord("ids", place, problem) for place in places[nulls].tolist()]
                large = places[are_large(arrays, self.most_bytes)]
                bad += [too_large(field, place, self.most_bytes) for place in large.tolist()]
            else:
                documents.values[field] = decoded(field, arrays, places, self.most_bytes)
                bad += [value for value in documents.values[field] if type(value) is BadRecord]
        return without(documents, bad), bad

    def _records(self, rows: Rows) -> Documents:
        tops = {top_of(rows.names, field) for field in self.fields}
        own = tuple(name for name in rows.names if name in tops)
        columns = tuple(name for name in rows.names if name in self.asked | tops and rows.names.count(name) == 1)
        try:
            batches = rows.batches(columns)
        except SourceError:  # of a column that the functions of these rows may not ask for
            columns = own
            batches = rows.batches(columns)

        def arrays(name: str) -> list[pa.Array]:
            found = [batch.column(name) for batch in batches]
            return [*map(readable, found)] if name in own else found

        read = {name: arrays(name) for name in columns}
        found = Columns(read, lambda name: self._column(rows, name), rows.origin[:, 2], self.most_bytes)
        return Documents.of_values({RECORD: list(lazy_records(rows.names, found, len(rows.origin)))}, rows.origin)

    def _column(self, rows: Rows, name: str) -> list[pa.Array]:
        """A column that a function has asked for."""
        first, last = rows.origin[0, 2], rows.origin[-1, 2]
        what = f"column {name!r} of rows {first} to {last}"
        if (count := rows.names.count(name)) > 1:
            problem = f"{what}: there are {count} columns of this name, so a function can have none"
            raise Unreadable(BadRecord("file", int(first), problem))
        try:
            batches = with_retries(lambda: rows.batches((name,), alone=True), rows.path, what)
        except SourceError as error:
            cause = error.__cause__
            if cause is None or getattr(cause, "errno", None) is not None:
                raise  # the file and not the column
            problem = f"{what} cannot be read, and a function asks for it: {cause}"
            raise Unreadable(BadRecord("file", int(first), problem)) from cause
        self.asked |= {name}
        return [batch.column(0) for batch in batches]
