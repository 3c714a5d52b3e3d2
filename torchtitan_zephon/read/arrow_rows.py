"""Some rows of some columns of an Arrow record batch, by reading just the bytes that they need.

Arrow itself decodes them: it is handed a stream of the schema, the dictionaries and the batch, whose body holds the
bytes that are needed and zeros elsewhere. Arrow looks at no zero, since the rows are cut out and the other columns are
left out; and the zeros take no memory, since the system gives pages when they are written to. Buffers that are
compressed can only be read whole.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from .arrow_messages import Batch, Span

Read = Callable[[int, int], bytes]
"""The bytes [start, stop) of a file; fewer are an error."""
_LONGEST_INLINE = 12
"""Bytes of a text that stand in its view itself."""


def rows_of(
    read: Read, head: bytes, span: Span, batch: Batch, schema: pa.Schema, columns: list[int], rows: tuple[int, int]
) -> pa.RecordBatch:
    """The rows [first, stop) of ``columns``, rising numbers in ``schema``.

    ``head``: all messages that the batch needs, and its own metadata; ``span`` says where its body lies. Raises
    ``ValueError``, ``IndexError``, ``pa.ArrowException``.
    """
    data = np.zeros(len(head) + span.body_bytes, np.uint8)
    data[: len(head)] = np.frombuffer(head, np.uint8)
    body = _Body(lambda start, stop: read(span.body + start, span.body + stop), batch, data[len(head) :])
    for number, field in enumerate(schema):
        body.fill(field.type, rows if number in columns else None)
    options = pa.ipc.IpcReadOptions(included_fields=columns, use_threads=False)
    found = pa.ipc.open_stream(pa.py_buffer(data), options=options).read_next_batch()
    found = found.slice(rows[0], rows[1] - rows[0])
    for column in found.columns:
        _check(column)
    return found


def _check(column: pa.Array) -> None:
    """Offsets and numbers that lead out of their buffers are refused; a text that is not UTF-8 is not, it is one bad
    record and told when it is decoded."""
    if isinstance(column, pa.StructArray):  # its own check is of more than its rows
        for child in column.flatten():
            _check(child)
        return
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        if (as_bytes := _BYTES.get(str(column.type))) is None:
            raise
        column.view(as_bytes()).validate(full=True)


_BYTES = {"string": pa.binary, "large_string": pa.large_binary}
if hasattr(pa, "binary_view"):
    _BYTES["string_view"] = pa.binary_view


Rows = tuple[int, int] | None
"""The rows [first, stop) of a column, or None of one that is not wanted."""


class _Body:
    """The body of a batch, to be filled column after column: each type has its nodes and buffers in a fixed order.

    ``inner``: of a column below lists, whose nulls and offsets are read whole, since Arrow checks all of it.
    """

    def __init__(self, read: Read, batch: Batch, data: np.ndarray) -> None:
        self._read, self._batch, self._data = read, batch, data
        self._buffer = self._view = 0

    def fill(self, kind: pa.DataType, rows: Rows, inner: bool = False) -> None:
        """Read what ``rows`` of the next column need."""
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        if pa.types.is_dictionary(kind):
            kind = kind.index_type
        name = str(kind)
        if pa.types.is_null(kind):
            return
        if pa.types.is_union(kind):
            self._whole([kind.field(i).type for i in range(kind.num_fields)], rows, 1 if kind.mode == "sparse" else 2)
            return
        if pa.types.is_run_end_encoded(kind):
            self._whole([kind.run_end_type, kind.value_type], rows, 0)
            return
        self._bits(rows, inner)  # of nulls
        size = 8 if name.startswith("large") else 4
        if pa.types.is_struct(kind):
            for i in range(kind.num_fields):
                self.fill(kind.field(i).type, rows, inner)
        elif name in ("string", "binary", "large_string", "large_binary"):
            self._next(self._offsets(rows, size, inner))
        elif name in ("string_view", "binary_view"):
            self._views(rows)
        elif pa.types.is_map(kind):
            self.fill(pa.struct([kind.key_field, kind.item_field]), self._offsets(rows, size, inner), inner=True)
        elif name.startswith("fixed_size_list<"):
            own = rows and (rows[0] * kind.list_size, rows[1] * kind.list_size)
            self.fill(kind.value_type, own, inner=True)
        elif name.startswith(("list_view<", "large_list_view<")):
            self.fill(kind.value_type, self._list_views(rows, size), inner=True)
        elif name.startswith(("list<", "large_list<")):
            self.fill(kind.value_type, self._offsets(rows, size, inner), inner=True)
        elif pa.types.is_boolean(kind):
            self._bits(rows, inner)
        else:
            self._numbers(rows, kind.bit_width // 8)

    def _whole(self, children: list[pa.DataType], rows: Rows, buffers: int) -> None:
        """A column that is read whole, with what lies below it."""
        batch, self._batch = self._batch, self._batch._replace(compressed=True)  # of which nothing is read in part
        for _ in range(buffers):
            self._next(rows)
        for kind in children:
            self.fill(kind, rows)
        self._batch = batch

    def _next(self, span: Rows) -> np.ndarray:
        """Read the bytes ``span`` of the next buffer: uint8 [bytes]. A compressed one is read whole, and none given."""
        begin, length = self._batch.buffers[self._buffer].tolist()
        whole = self._batch.compressed and span is not None
        start, stop = (0, length) if whole else span or (0, 0)
        self._buffer += 1
        if not 0 <= start <= stop <= length or begin < 0 or begin + length > len(self._data):
            raise ValueError(f"bytes {start} to {stop} are asked for of a buffer of {length} at {begin}")
        if start < stop:
            self._data[begin + start : begin + stop] = np.frombuffer(self._read(begin + start, begin + stop), np.uint8)
        return self._data[:0] if whole else self._data[begin + start : begin + stop]

    def _length(self) -> int:
        """Of the next buffer."""
        return int(self._batch.buffers[self._buffer, 1])

    def _bits(self, rows: Rows, inner: bool) -> None:
        length = self._length()
        if rows is None or not length:
            self._next(None)
        else:
            self._next((0, length) if inner else (rows[0] // 8, min(length, -(-rows[1] // 8))))

    def _numbers(self, rows: Rows, num_bytes: int) -> np.ndarray:
        return self._next(rows and (rows[0] * num_bytes, rows[1] * num_bytes))

    def _offsets(self, rows: Rows, num_bytes: int, inner: bool) -> Rows:
        """What the rows hold of the buffer or child behind the offsets."""
        length = self._length()
        if rows is None or not length:  # a column of no rows need not have one offset
            self._next(None)
            return rows and (0, 0)
        wanted = (0, length // num_bytes) if inner else (rows[0], rows[1] + 1)
        found = self._numbers(wanted, num_bytes).view(f"<i{num_bytes}")[rows[0] - wanted[0] :][: rows[1] + 1 - rows[0]]
        return (int(found[0]), int(found[-1])) if len(found) else (0, 0)

    def _list_views(self, rows: Rows, num_bytes: int) -> Rows:
        begins, sizes = (self._numbers(rows, num_bytes).view(f"<i{num_bytes}").astype(np.int64) for _ in range(2))
        begins, sizes = begins[sizes > 0], sizes[sizes > 0]
        return rows and ((int(begins.min()), int((begins + sizes).max())) if len(sizes) else (0, 0))

    def _views(self, rows: Rows) -> None:
        """Each view is a length and 12 bytes: the text, or 4 bytes of it, the number of a buffer and where it is."""
        views = self._numbers(rows, 16).view("<i4").reshape(-1, 4).astype(np.int64)
        views = views[views[:, 0] > _LONGEST_INLINE]
        more, self._view = int(self._batch.views[self._view]), self._view + 1
        for number in range(more):
            own = views[views[:, 2] == number]
            begin = own[:, 3]
            used = (int(begin.min()), int((begin + own[:, 0]).max())) if len(own) else (0, 0)
            self._next(rows and used)
