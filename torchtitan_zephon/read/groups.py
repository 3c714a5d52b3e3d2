"""The row groups of a Parquet source: where they lie, what they weigh, and batches of their columns.

Every footer is looked at once, and in it the wanted column only: what stands beside it may be encrypted or of a type
that nothing here knows. A file without rows decides nothing, whatever its columns are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import SourceError
from . import sizes
from .files import Manifest
from .footers import Footer, Footers, is_signed
from .ids import is_ids

_BATCH_ROWS = 4096
_BATCH_BYTES = 4 * 2**20
"""Where lengths are measured, a batch has at most so many rows, and about so many bytes as encoded."""


class Group(NamedTuple):
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


class RowGroups:
    """The row groups of one source that have rows, in order of files. Thread-safe.

    ``rows`` and ``sizes`` (bytes of text or ids, see ``sizes``): int64 [groups]. ``columns``: the names of the columns
    of every file, empty for one without rows. Raises ``SourceError`` for a file that is not as it must be.
    """

    def __init__(self, manifest: Manifest, field: str) -> None:
        self.holds_ids = False
        self.columns: list[tuple[str, ...]] = []
        self._manifest = manifest
        self._field = field
        self._footers = Footers(manifest)
        found: list[np.ndarray] = []
        for shard in range(len(manifest.shards)):
            if (groups := self._row_groups(shard, first=not found)) is not None:
                found.append(groups)
        if not found:
            raise SourceError(f"none of the {len(manifest.shards)} Parquet files in {str(manifest.root)!r} has a row.")
        table = np.concatenate(found)
        self._groups, stated, encoded = table[:, :4].copy(), table[:, 4], table[:, 5]
        self.rows = self._groups[:, 3]
        self.sizes = self._text_bytes(stated, encoded)

    def _row_groups(self, shard: int, first: bool) -> np.ndarray | None:
        """The row groups of a file that have rows: int64 [groups, 6], as in ``_Group``, then bytes stated (0: none)
        and encoded; None where no group has any.

        ``first`` says that no file before it has rows.
        """
        footer = self._footers.of(shard)
        groups = [footer.metadata.row_group(g) for g in range(footer.metadata.num_row_groups)]
        rows = [group.num_rows for group in groups]
        if not any(rows):
            self.columns.append(())
            return None
        names = tuple(footer.schema.names)
        self.columns.append(self.columns[-1] if self.columns and self.columns[-1] == names else names)
        path = self._manifest.path(shard)
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
        path = self._manifest.path(shard)
        try:
            if is_signed(path, footer.metadata):
                next(_batches(self._footers.open(shard), group, [self._leaf(footer)], 1))
        except (pa.ArrowException, OSError) as error:
            raise SourceError(
                f"{str(path)!r}: column {self._field!r} cannot be read: {error}. If it is encrypted: no key can be "
                "given, so write a plain copy of it."
            ) from error

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

    def at(self, piece: int) -> Group:
        """Where row group ``piece`` lies."""
        return Group(*self._groups[piece].tolist())

    def batches(self, at: Group, columns: tuple[str, ...], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """The rows of ``at`` in batches of ``columns``, which are in the file's order. Raises as Arrow does."""
        footer = self._footer(at, columns)
        leaves = [leaf for name in columns for leaf in footer.leaves[footer.schema.names.index(name)]]
        return _batches(self._footers.open(at.shard), at.number, leaves, batch_rows)

    def _footer(self, at: Group, columns: tuple[str, ...]) -> Footer:
        """That of the row group's file. Raises ``SourceError`` if the file was replaced and has no such group now."""
        footer = self._footers.of(at.shard)
        names = footer.schema.names
        if at.number >= footer.metadata.num_row_groups or any(names.count(name) != 1 for name in columns):
            raise self.ends_early(at)
        return footer

    @contextmanager
    def errors_at(self, at: Group) -> Iterator[None]:
        """What Arrow or the system says becomes a ``SourceError`` that names file and row group."""
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            path = str(self._manifest.path(at.shard))
            raise SourceError(f"{path!r}, row group {at.number}: {error}") from error

    def ends_early(self, at: Group) -> SourceError:
        """The error for a row group that is not what it was."""
        return SourceError(
            f"{str(self._manifest.path(at.shard))!r}, row group {at.number} ends early: the file was changed "
            "while the job runs."
        )

    def weigh(self, piece: int, borders: np.ndarray) -> np.ndarray:
        """Bytes of text or of ids in the rows [borders[i], borders[i + 1]) of ``piece``; int64 [ranges].

        The lengths of all rows up to the last border are decoded; no text is kept.
        """
        return self._weigh(piece, self._open_for_lengths(piece, None), borders)

    def _open_for_lengths(self, piece: int, opened: _Opened | None) -> _Opened:
        """The file of row group ``piece``; ``opened`` where it is that, read as this group needs."""
        at = self.at(piece)
        footer = self._footer(at, (self._field,))
        leaf = self._leaf(footer)
        repeats = not self.holds_ids and footer.metadata.row_group(at.number).column(leaf).has_dictionary_page
        if opened is not None and (opened.shard, opened.repeats) == (at.shard, repeats):
            return opened
        return _Opened(at.shard, repeats, footer, self._footers.open(at.shard, [leaf] if repeats else None))

    def _weigh(self, piece: int, opened: _Opened, borders: np.ndarray) -> np.ndarray:
        at, stop = self.at(piece), int(borders[-1])
        leaf = self._leaf(opened.footer)
        encoded = opened.footer.metadata.row_group(at.number).column(leaf).total_uncompressed_size
        batch_rows = min(_BATCH_ROWS, max(1, at.rows * _BATCH_BYTES // max(1, encoded)), max(1, stop))
        before = np.zeros(len(borders), np.int64)
        row = total = 0
        with self.errors_at(at):
            batches = _batches(opened.file, at.number, [leaf], batch_rows)
            while row < stop and (batch := next(batches, None)) is not None:
                cumulative = np.concatenate([[total], sizes.lengths(batch.column(0), self.holds_ids)]).cumsum()
                here = (borders > row) & (borders <= row + batch.num_rows)
                before[here] = cumulative[borders[here] - row]
                row, total = row + batch.num_rows, int(cumulative[-1])
        if row < stop:
            raise self.ends_early(at)
        return np.diff(before)


def _batches(file: pq.ParquetFile, group: int, leaves: list[int], batch_rows: int) -> Iterator[pa.RecordBatch]:
    return file.reader.iter_batches(  # type: ignore[no-any-return]
        batch_rows, row_groups=[group], column_indices=leaves, use_threads=False
    )
