"""Parquet: row groups, and row ranges of those far above the chunk size.

Its column is text, or lists of token ids. Only that column is decoded, unless a user's function
wants whole records. A row range is read by streaming its row group's batches from the start; a
lane takes neighbouring ranges one after the other, and the open stream is kept for the next (at
most ``OPEN_STREAMS`` a source), so that a row group is decoded about once a run and not once a
chunk. A miss costs time, never bytes. Footers are kept for the same reason (``footers``).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import SourceError
from ..plan.chunking import Chunk, Pieces
from ..records import Record
from . import BadRecord, sizes
from .files import Manifest
from .footers import Footer, Footers, is_signed
from .ids import is_ids

OPEN_STREAMS = 64
_BATCH_ROWS = 256
_LENGTHS_BATCH_ROWS = 4096
_LENGTHS_BATCH_BYTES = 4 * 2**20
"""Where only lengths are wanted, a batch has at most so many rows, and about so many bytes as encoded."""

_Stream = Iterator[pa.RecordBatch]


class _Group(NamedTuple):
    """A row group that has rows: row group ``number`` of file ``shard``, where ``first`` is its first row."""

    shard: int
    number: int
    first: int
    rows: int


class _Opened(NamedTuple):
    """A file open for lengths; ``repeats``: its column is read as a dictionary, so a repeated text costs little."""

    shard: int
    repeats: bool
    footer: Footer
    file: pq.ParquetFile


class ParquetReader:
    """Reads the chunks of one Parquet source. Thread-safe: a stream is used by one thread at a time."""

    def __init__(self, manifest: Manifest, field: str) -> None:
        self.manifest = manifest
        self._field = field
        self.holds_ids = False
        self._footers = Footers(manifest)
        self._streams: OrderedDict[tuple[int, int, bool], tuple[_Stream, pa.RecordBatch | None]] = OrderedDict()
        self._lock = threading.Lock()
        found: list[np.ndarray] = []
        for shard in range(len(manifest.shards)):
            if (groups := self._row_groups(shard, first=not found)) is not None:
                found.append(groups)
        if not found:
            raise SourceError(f"none of the {len(manifest.shards)} Parquet files in {str(manifest.root)!r} has a row.")
        columns = np.concatenate(found)
        self._groups, stated, encoded = columns[:, :4].copy(), columns[:, 4], columns[:, 5]
        self._sizes = self._text_bytes(stated, encoded)

    def _row_groups(self, shard: int, first: bool) -> np.ndarray | None:
        """The row groups of a file that have rows: int64 [groups, 6], as in ``_Group``, then bytes stated (0: none)
        and encoded; None where no group has any.

        A file without rows decides nothing, whatever its columns are. ``first`` says that none before it has rows.
        """
        footer = self._footers.of(shard)
        groups = [footer.metadata.row_group(g) for g in range(footer.metadata.num_row_groups)]
        rows = [group.num_rows for group in groups]
        if not any(rows):
            return None
        path = self.manifest.path(shard)
        ids = self._holds_ids(path, footer.schema)
        if not first and ids != self.holds_ids:
            raise SourceError(
                f"{str(path)!r}: column {self._field!r} holds {footer.schema.field(self._field).type}, and the files "
                f"before it {'token ids' if self.holds_ids else 'text'}; a source is one or the other."
            )
        self.holds_ids = ids
        self._refuse_encrypted(shard, footer, next(g for g, n in enumerate(rows) if n))
        leaf = self._leaf(footer)
        before = np.cumsum([0, *rows]).tolist()
        found = [
            (shard, g, before[g], rows[g], sizes.stated_bytes(column, ids) or 0, column.total_uncompressed_size)
            for g, column in ((g, groups[g].column(leaf)) for g, n in enumerate(rows) if n)
        ]
        return np.array(found, dtype=np.int64)

    def _holds_ids(self, path: Path, schema: pa.Schema) -> bool:
        """Whether the column holds token ids and not text; ``SourceError`` if it is neither."""
        if self._field not in schema.names:
            raise SourceError(
                f"{str(path)!r} has no column {self._field!r}; its columns: "
                f'{", ".join(map(repr, schema.names))}. Name the text column with `field = "..."`.'
            )
        if schema.names.count(self._field) > 1:
            raise SourceError(f"{str(path)!r} has {schema.names.count(self._field)} columns named {self._field!r}.")
        kind = schema.field(self._field).type
        text = kind.value_type if pa.types.is_dictionary(kind) else kind
        if pa.types.is_string(text) or pa.types.is_large_string(text) or pa.types.is_string_view(text):
            return False
        if not is_ids(kind):
            raise SourceError(
                f"{str(path)!r}: column {self._field!r} holds {kind}, neither text (string) nor token ids (list, "
                "large_list or fixed_size_list of integers)."
            )
        return True

    def _refuse_encrypted(self, shard: int, footer: Footer, group: int) -> None:
        path = self.manifest.path(shard)
        try:
            if is_signed(path, footer.metadata):
                next(self._stream(self._footers.open(shard), group, [self._leaf(footer)], 1))
        except (pa.ArrowException, OSError) as error:
            raise SourceError(
                f"{str(path)!r}: column {self._field!r} cannot be read ({error}). If it is encrypted: no key can be "
                "given, so write a plain copy of it."
            ) from error

    def _footer(self, at: _Group) -> Footer:
        """That of the row group's file. Raises ``SourceError`` if the file was replaced and has no such group now."""
        footer = self._footers.of(at.shard)
        if at.number >= footer.metadata.num_row_groups or footer.schema.names.count(self._field) != 1:
            raise self._ends_early(at)
        return footer

    def _leaf(self, footer: Footer) -> int:
        """The column's only leaf: a text's, or that of the ids in a list."""
        column: int = footer.schema.names.index(self._field)
        return footer.leaves[column].start

    def _text_bytes(self, stated: np.ndarray, encoded: np.ndarray) -> np.ndarray:
        """Bytes of text or of ids in every row group, int64 [groups]; where no footer says, some are measured."""
        unknown = np.flatnonzero(stated == 0)
        shards, rows = self._groups[:, 0], self._groups[:, 3]
        picked = sizes.sample(shards[unknown], rows[unknown], encoded[unknown])
        known_rows, known_bytes, opened = np.where(stated, rows, 0), stated.copy(), None
        for piece, measured in zip(unknown[picked.groups].tolist(), picked.rows.tolist(), strict=True):
            opened = self._open_for_lengths(piece, opened)
            known_rows[piece] = measured
            known_bytes[piece] = self._weigh(piece, opened, np.array([0, measured]))[0]
        known = np.flatnonzero(known_rows)
        return sizes.fill(rows, known, known_rows[known], known_bytes[known])

    def pieces(self) -> Pieces:
        """One piece a row group that has rows; its units are rows."""
        return Pieces(sizes=self._sizes, units=self._groups[:, 3], runs_of_one=False)

    def shard_of(self, piece: int) -> int:
        """The file that row group ``piece`` lies in."""
        return int(self._groups[piece, 0])

    def around(self, piece: int, unit: int, num_bytes: int) -> tuple[int, int]:
        """The rows from ``unit`` on that hold about ``num_bytes`` of text, by the mean of the row group."""
        rows = int(self._groups[piece, 3])
        return unit, min(rows, unit + max(1, num_bytes * rows // int(self._sizes[piece])))

    def weigh(self, piece: int, borders: np.ndarray) -> np.ndarray:
        """Bytes of text or of ids in the rows [borders[i], borders[i + 1]) of ``piece``; int64 [ranges].

        The lengths of all rows up to the last border are decoded; no text is kept.
        """
        return self._weigh(piece, self._open_for_lengths(piece, None), borders)

    def _open_for_lengths(self, piece: int, opened: _Opened | None) -> _Opened:
        """The file of row group ``piece``; ``opened`` where it is that, read as this group needs."""
        at = self._at(piece)
        footer = self._footer(at)
        leaf = self._leaf(footer)
        repeats = not self.holds_ids and footer.metadata.row_group(at.number).column(leaf).has_dictionary_page
        if opened is not None and (opened.shard, opened.repeats) == (at.shard, repeats):
            return opened
        return _Opened(at.shard, repeats, footer, self._footers.open(at.shard, [leaf] if repeats else None))

    def _weigh(self, piece: int, opened: _Opened, borders: np.ndarray) -> np.ndarray:
        at, stop = self._at(piece), int(borders[-1])
        leaf = self._leaf(opened.footer)
        encoded = opened.footer.metadata.row_group(at.number).column(leaf).total_uncompressed_size
        batch_rows = min(_LENGTHS_BATCH_ROWS, max(1, at.rows * _LENGTHS_BATCH_BYTES // max(1, encoded)), max(1, stop))
        before = np.zeros(len(borders), np.int64)
        row = total = 0
        with self._errors_at(at):
            batches = self._stream(opened.file, at.number, [leaf], batch_rows)
            while row < stop and (batch := next(batches, None)) is not None:
                cumulative = np.concatenate([[total], sizes.lengths(batch.column(0), self.holds_ids)]).cumsum()
                here = (borders > row) & (borders <= row + batch.num_rows)
                before[here] = cumulative[borders[here] - row]
                row, total = row + batch.num_rows, int(cumulative[-1])
        if row < stop:
            raise self._ends_early(at)
        return np.diff(before)

    def read(self, chunk: Chunk, whole_records: bool) -> tuple[list[Record], np.ndarray]:
        """The records of ``chunk`` and their row numbers in the file, int64 [records]."""
        batches, places = self._batches(chunk, whole_records)
        try:
            return [record for batch in batches for record in batch.to_pylist()], places
        except UnicodeDecodeError as error:
            rows = f"rows {places[0]} to {places[-1]}"
            raise BadRecord(f"a text in {rows} is not valid UTF-8: {error}", int(places[0])) from None

    def read_ids(self, chunk: Chunk) -> tuple[list[pa.Array], np.ndarray]:
        """The token ids of ``chunk``, a list a row, in arrays of many rows; and the row numbers, int64 [rows]."""
        batches, places = self._batches(chunk, False)
        return [batch.column(0) for batch in batches], places

    def _batches(self, chunk: Chunk, whole_records: bool) -> tuple[list[pa.RecordBatch], np.ndarray]:
        at, wanted = self._at(chunk.piece), chunk.stop - chunk.start
        with self._lock:
            stream, held = self._streams.pop((chunk.piece, chunk.start, whole_records), (None, None))
        with self._errors_at(at):
            if stream is None:
                stream = self._open(at, whole_records)
                held = self._skip(stream, chunk.start)
            batches, held = self._take(stream, held, wanted)
        if sum(batch.num_rows for batch in batches) < wanted:
            raise self._ends_early(at)
        if chunk.stop < at.rows:
            with self._lock:
                self._streams[chunk.piece, chunk.stop, whole_records] = (stream, held)
                if len(self._streams) > OPEN_STREAMS:
                    self._streams.popitem(last=False)
        return batches, np.arange(at.first + chunk.start, at.first + chunk.stop, dtype=np.int64)

    def _at(self, piece: int) -> _Group:
        return _Group(*self._groups[piece].tolist())

    @contextmanager
    def _errors_at(self, at: _Group) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            path = str(self.manifest.path(at.shard))
            raise SourceError(f"{path!r}, row group {at.number}: {error}") from error

    def _ends_early(self, at: _Group) -> SourceError:
        return SourceError(
            f"{str(self.manifest.path(at.shard))!r}, row group {at.number} ends early: the file was changed "
            "while the job runs."
        )

    def _open(self, at: _Group, whole_records: bool) -> _Stream:
        footer = self._footer(at)
        leaves = list(range(footer.metadata.num_columns)) if whole_records else [self._leaf(footer)]
        return self._stream(self._footers.open(at.shard), at.number, leaves, _BATCH_ROWS)

    @staticmethod
    def _stream(file: pq.ParquetFile, group: int, leaves: list[int], batch_rows: int) -> _Stream:
        return file.reader.iter_batches(  # type: ignore[no-any-return]
            batch_rows, row_groups=[group], column_indices=leaves, use_threads=False
        )

    @staticmethod
    def _skip(stream: _Stream, rows: int) -> pa.RecordBatch | None:
        """Pass over ``rows`` rows; returns the rest of the batch in which they ended."""
        for batch in stream if rows else ():
            if rows < batch.num_rows:
                return batch.slice(rows)
            rows -= batch.num_rows
            if not rows:
                return None
        return None

    @staticmethod
    def _take(
        stream: _Stream, held: pa.RecordBatch | None, rows: int
    ) -> tuple[list[pa.RecordBatch], pa.RecordBatch | None]:
        """``rows`` rows, first from ``held`` and then from ``stream``; and what is left over of the last batch."""
        batches = []
        while rows and (batch := next(stream, None) if held is None else held) is not None:
            batches.append(batch.slice(0, rows))
            held = batch.slice(rows) if rows < batch.num_rows else None
            rows -= batches[-1].num_rows
        return batches, held

    def describe(self, place: int) -> str:
        """In words, where in its shard a record lies."""
        return f"row {place}"
