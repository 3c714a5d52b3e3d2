"""The row groups of a Parquet source: where they lie, what they weigh, and batches of their columns.

Every footer is looked at once, and in it the wanted columns only: what stands beside them may be encrypted or of a type
that nothing here knows. A file without rows decides nothing, whatever its columns are.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import SourceError
from ..progress import Progress
from ..records import Contents
from ..text_of import TextOf
from . import sizes
from .files import Manifest
from .footers import Footer, Footers
from .ids import contents_of, largest_of, mixed
from .nested import column_at, leaves_of, times_in, type_at
from .retry import with_retries

_BATCH_ROWS = 4096
_BATCH_BYTES = 4 * 2**20
"""Where lengths are measured, a batch has at most so many rows, and about so many bytes as encoded."""


class Group(NamedTuple):
    """A row group that has rows: row group ``number`` of file ``shard``, where ``first`` is its first row.

    ``encoded``: bytes of the wanted columns before compression. ``repeats``: 1 if one has a dictionary, so that a text
    which stands there often is there once.
    """

    shard: int
    number: int
    first: int
    rows: int
    encoded: int
    repeats: int


class RowGroups:
    """The row groups of one source that have rows, in order of files. Thread-safe.

    ``rows``: int64 [groups]. ``columns``: the names of the columns of every file, empty for one without rows. Raises
    ``SourceError`` for a file that is not as it must be.
    """

    def __init__(self, manifest: Manifest, text: TextOf) -> None:
        self.contents: Contents = "text"
        self.largest_id: int | None = None
        self.columns: list[tuple[str, ...]] = []
        self._manifest = manifest
        self._text = text
        self._footers = Footers(manifest)
        found: list[np.ndarray] = []
        shards = range(len(manifest.shards))
        with Progress("reading the footers of Parquet files", len(shards), "files") as progress:
            for shard in shards:
                if (groups := self._row_groups(shard, first=not found)) is not None:
                    found.append(groups)
                progress.done()
        table = np.concatenate([np.zeros((0, 7), np.int64), *found])
        self._groups, self._stated = table[:, :-1].copy(), table[:, -1]
        self.rows = self._groups[:, 3]

    def _row_groups(self, shard: int, first: bool) -> np.ndarray | None:
        """The row groups of a file that have rows: int64 [groups, 7], as in ``Group``, then the bytes that the footer
        states (0: none); None where no group has rows.

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
        contents = contents_of(str(path), footer.schema, self._text)
        if not first and contents != self.contents:
            raise mixed(str(path), footer.schema, self._text, self.contents)
        self.contents = contents
        if ids := contents == "ids":
            self.largest_id = max(self.largest_id or 0, largest_of(type_at(footer.schema, self._text.fields[0])))
        self._refuse_encrypted(shard, footer, next(g for g, n in enumerate(rows) if n))
        leaves = self._leaves(footer)
        before = np.cumsum([0, *rows]).tolist()
        found = []
        for g, group in enumerate(groups):
            if rows[g]:
                columns = [group.column(leaf) for leaf in leaves]
                encoded = sum(column.total_uncompressed_size for column in columns)
                repeats = not ids and any(column.has_dictionary_page for column in columns)
                stated = [sizes.stated_bytes(column, ids) or 0 for column in columns]
                found.append((shard, g, before[g], rows[g], encoded, repeats, sum(stated) if all(stated) else 0))
        return np.array(found, dtype=np.int64)

    def _refuse_encrypted(self, shard: int, footer: Footer, group: int) -> None:
        path = self._manifest.path(shard)
        try:
            if footer.signed:
                next(_batches(self._footers.open(shard), [group], self._leaves(footer), 1))
        except (pa.ArrowException, OSError) as error:
            raise SourceError(
                f"{path!r}: column {self._text} cannot be read: {error}. If it is encrypted: no key can be "
                "given, so write a plain copy of it."
            ) from error

    def _leaves(self, footer: Footer) -> list[int]:
        """A leaf of each wanted column: a text's only one, or that of the ids in a list."""
        return [leaves_of(footer.schema, field).start for field in self._text.fields]

    def _as_dictionaries(self, shard: int) -> list[int]:
        """The leaves to read as dictionaries: Arrow cannot do that for fields of columns."""
        footer = self._footers.of(shard)
        pairs = zip(self._text.fields, self._leaves(footer), strict=True)
        return [leaf for field, leaf in pairs if field in footer.schema.names]

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """Bytes of text or of ids in every row group, int64 [groups]; some are measured where no footer states them."""
        stated = self._stated
        unknown = np.flatnonzero(stated == 0)
        shards, rows, encoded = (self._groups[:, c] for c in (0, 3, 4))
        picked = sizes.sample(shards[unknown], rows[unknown], encoded[unknown])
        pieces = unknown[picked.groups]
        known_rows, known_bytes = np.where(stated, rows, 0), stated.copy()
        known_rows[pieces] = picked.rows
        for _, together in itertools.groupby(
            pieces.tolist(),  # those of a file in one go, unless one is measured in part
            lambda p: (self._groups[p, 0], self._groups[p, 5], None if known_rows[p] == rows[p] else p),
        ):
            run = list(together)
            groups, borders = [self.at(p) for p in run], np.cumsum([0, *known_rows[run]])
            path = self._manifest.path(groups[0].shard)
            what = f"the lengths in row group {groups[0].number}"
            known_bytes[run] = with_retries(functools.partial(self._weigh, groups, borders), path, what)
        known = np.flatnonzero(known_rows)
        return sizes.fill(rows, known, known_rows[known], known_bytes[known])

    def at(self, piece: int) -> Group:
        """Where row group ``piece`` lies."""
        return Group(*self._groups[piece].tolist())

    def batches(self, at: Group, columns: tuple[str, ...], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """The rows of ``at`` in batches of ``columns``, which are in the file's order. Raises as Arrow does."""
        footer = self._footer(at, columns)
        leaves = sorted({leaf for name in columns for leaf in leaves_of(footer.schema, name)})
        return _batches(self._footers.open(at.shard), [at.number], leaves, batch_rows)

    def _footer(self, at: Group, columns: tuple[str, ...]) -> Footer:
        """That of the row group's file. Raises ``SourceError`` if the file was replaced and has no such group now."""
        footer = self._footers.of(at.shard)
        there = at.number < footer.metadata.num_row_groups
        if not there or any(times_in(footer.schema, name) != 1 for name in columns):
            raise self.ends_early(at)
        return footer

    @contextmanager
    def errors_at(self, at: Group) -> Iterator[None]:
        """What Arrow or the system says becomes a ``SourceError`` that names file and row group."""
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            path = self._manifest.path(at.shard)
            raise SourceError(f"{path!r}, row group {at.number}: {error}") from error

    def ends_early(self, at: Group) -> SourceError:
        """The error for a row group that is not what it was."""
        return SourceError(
            f"{self._manifest.path(at.shard)!r}, row group {at.number} ends early: the file was changed "
            "while the job runs."
        )

    def weigh(self, piece: int, borders: np.ndarray) -> np.ndarray:
        """Bytes of text or of ids in the rows [borders[i], borders[i + 1]) of ``piece``; int64 [ranges].

        The lengths of all rows up to the last border are decoded; no text is kept.
        """
        return self._weigh([self.at(piece)], borders)

    def _weigh(self, groups: list[Group], borders: np.ndarray) -> np.ndarray:
        """The same for rows that are counted from the first of ``groups``, which are of one file and alike."""
        at, stop = groups[0], int(borders[-1])
        fields, leaves = self._text.fields, self._leaves(self._footer(at, self._text.fields))
        rows, encoded = sum(g.rows for g in groups), sum(g.encoded for g in groups)
        batch_rows = min(_BATCH_ROWS, max(1, rows * _BATCH_BYTES // max(1, encoded)), max(1, stop))
        before = np.zeros(len(borders), np.int64)
        row = total = 0
        with self.errors_at(at):
            file = self._footers.open(at.shard, self._as_dictionaries(at.shard) if at.repeats else None)
            batches = _batches(file, [g.number for g in groups], leaves, batch_rows)
            while row < stop and (batch := next(batches, None)) is not None:
                lengths = sum(sizes.lengths(column_at(batch, field), self.contents == "ids") for field in fields)
                cumulative = np.concatenate([[total], lengths]).cumsum()
                here = (borders > row) & (borders <= row + batch.num_rows)
                before[here] = cumulative[borders[here] - row]
                row, total = row + batch.num_rows, int(cumulative[-1])
        if row < stop:
            raise self.ends_early(at)
        return np.diff(before)


def _batches(file: pq.ParquetFile, groups: list[int], leaves: list[int], batch_rows: int) -> Iterator[pa.RecordBatch]:
    return file.reader.iter_batches(  # type: ignore[no-any-return]
        batch_rows, row_groups=groups, column_indices=leaves, use_threads=False
    )
