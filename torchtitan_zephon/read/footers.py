"""The footers of a source's Parquet files: parsed once a file, and kept within a bound.

A footer describes every column of every row group, so parsing it costs in proportion to their product: 7 ms for
1,050 row groups of 9 columns, 500 ms for 40,000. A row group is opened with the footer that is kept here. Parsed
footers take about 6.5 times their bytes in the file, so those used last are kept within ``KEPT_BYTES``; a footer that
was given up is parsed again. Columns are found by the numbers of their leaves, never by dotted path: ``text`` and a
column named ``text.x`` cannot be told apart by path.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import SEEK_END
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import SourceError
from .files import Manifest
from .kept import Kept
from .nested import num_leaves
from .store import Store

KEPT_BYTES = 16 * 2**20
"""Footers kept a source, in bytes of their files; the one used last is kept whatever its size."""
READ_BYTES = 2**20
"""Least that is read of a column at a time, and kept; pages above this are read whole."""
_ENCRYPTED_FOOTER = b"PARE"


class Footer(NamedTuple):
    """What a file's end says.

    ``signed``: the footer has more bytes than its contents, a signature, so some columns may be encrypted. Arrow ends
    the process when it is asked for the description of an encrypted column, so this is looked at first.
    """

    metadata: pq.FileMetaData
    schema: pa.Schema
    signed: bool


class Footers:
    """The files of one Parquet source. Thread-safe."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._kept = Kept(manifest, "the footer", self._parsed, _num_bytes, KEPT_BYTES)

    def of(self, shard: int) -> Footer:
        """The footer of file ``shard``, parsed again if the file has changed. Raises ``SourceError``."""
        with unreadable(self._manifest.store, self._manifest.shards[shard].name):
            return self._kept.of(shard)

    def _parsed(self, shard: int) -> Footer:
        store, name = self._manifest.store, self._manifest.shards[shard].name
        with unreadable(store, name), store.open_for_arrow(name) as source, pq.ParquetFile(source) as file:
            source.seek(source.size() - 8)
            signed = int.from_bytes(source.read(4), "little") != file.metadata.serialized_size
            _check_leaves(store.path(name), file)
            return Footer(file.metadata, file.schema_arrow, signed)

    def open(self, shard: int, dictionaries: list[int] | None = None) -> pq.ParquetFile:
        """File ``shard``, open; the leaves ``dictionaries`` are read as dictionaries. Raises ``SourceError``."""
        store, name = self._manifest.store, self._manifest.shards[shard].name
        footer = self.of(shard)
        with unreadable(store, name):
            return pq.ParquetFile(
                store.open_for_arrow(name),
                metadata=footer.metadata,
                read_dictionary=dictionaries,
                pre_buffer=False,  # else the column of a whole row group is held as long as it is read
                buffer_size=READ_BYTES,
            )


def _num_bytes(footer: Footer) -> int:
    """In its file."""
    return int(footer.metadata.serialized_size)


@contextmanager
def unreadable(store: Store, name: str) -> Iterator[None]:
    """What Arrow or the system says of a file becomes a ``SourceError`` that names the file."""
    path = store.path(name)
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if _magic(store, name) == _ENCRYPTED_FOOTER:
            raise SourceError(
                f"{path!r} is an encrypted Parquet file (its footer too), and no key can be given; write a plain "
                "copy of the columns that are needed."
            ) from error
        what = "is not a readable Parquet file" if getattr(error, "errno", None) is None else "cannot be read"
        raise SourceError(f"{path!r} {what}: {error}") from error


def _magic(store: Store, name: str) -> bytes:
    try:
        with store.open(name) as file:
            file.seek(-4, SEEK_END)
            return file.read()
    except OSError:
        return b""


def _check_leaves(path: str, file: pq.ParquetFile) -> None:
    """Raise ``SourceError`` for a nesting that is not known here."""
    found = sum(num_leaves(column.type) for column in file.schema_arrow)
    if found != file.metadata.num_columns:
        raise SourceError(
            f"{path!r}: its {file.metadata.num_columns} leaf columns do not add up from the types of its "
            f"columns ({found}), so none can be found for certain; write it anew with the columns that are needed."
        )
