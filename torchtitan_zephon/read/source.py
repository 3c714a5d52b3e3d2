"""A source that is open for reading: its reader, and what every reader offers.

What flows in: a chunk. What flows out: its documents as they stand in the file, and the bad records beside them. A read
that fails for a moment is tried again; one that fails for good is a ``SourceError`` that names source and shard.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from ..bad_records import Sifted
from ..errors import SourceError
from ..plan.chunking import Chunk, Pieces
from ..records import Contents
from .files import Manifest, list_source
from .formats import reader_class
from .retry import with_retries
from .settings import SourceConfig

T = TypeVar("T")


class Reader(Protocol):
    """What a format must offer; one class a format, one file each. ``contents``: what the source's field holds;
    ``largest_id``: the largest number that its column or file of token ids can hold, None of text."""

    manifest: Manifest
    contents: Contents
    largest_id: int | None

    def pieces(self) -> Pieces: ...
    def shard_of(self, piece: int) -> int: ...
    def around(self, piece: int, unit: int, num_bytes: int) -> tuple[int, int]: ...
    def weigh(self, piece: int, borders: np.ndarray) -> np.ndarray: ...
    def read(self, chunk: Chunk, columns: frozenset[str] | None) -> Sifted: ...
    def span(self, chunk: Chunk) -> str: ...
    def describe(self, place: int) -> str: ...


@dataclass(frozen=True, slots=True)
class Source:
    """A named dataset that is open for reading."""

    name: str
    field: str
    reader: Reader

    def refuse_narrow_ids(self, largest_id: int) -> None:
        """Raise ``SourceError`` for token ids of a type that cannot hold those of the tokenizer."""
        holds = self.reader.largest_id
        if holds is not None and holds < largest_id:
            raise SourceError(
                f"source {self.name!r}: its token ids are of a type that ends at {holds:,}, and the tokenizer's ids "
                f"end at {largest_id:,}, so larger ones were cut to other ids, or they are of another tokenizer. Name "
                "the tokenizer that made them, or write them anew as uint32."
            )

    def where(self, chunk: Chunk) -> str:
        """In words, what ``chunk`` is a part of: source, file and place."""
        path = self.reader.manifest.path(self.reader.shard_of(chunk.piece))
        return f"source {self.name!r}, file {str(path)!r}, {self.reader.span(chunk)}"

    def around(self, piece: int, unit: int, num_bytes: int) -> tuple[int, int]:
        """The units of whole records: from the one that holds ``unit`` on, ``num_bytes`` or more of them."""
        return self._read(piece, f"the records at {unit:,}", lambda: self.reader.around(piece, unit, num_bytes))

    def weigh(self, piece: int, borders: np.ndarray) -> np.ndarray:
        """Planned bytes of what begins in each range [borders[i], borders[i + 1]) of ``piece``, int64 [ranges].

        Bytes of lines (JSONL), or of text or ids (Parquet), by looking and not by the mean of the piece.
        """
        return self._read(piece, "the sizes of records", lambda: self.reader.weigh(piece, borders))

    def read(self, chunk: Chunk, columns: frozenset[str] | None) -> Sifted:
        """The documents of ``chunk``, not checked yet, in file order.

        ``columns``: the fields that are wanted. Each is values of its name, or tokens "ids" where it holds token ids;
        or they are found in whole records (values ``RECORD``) where these cost no more. None asks for whole records,
        whose fields may be read when they are looked at.
        """
        return self._read(chunk.piece, self.reader.span(chunk), lambda: self.reader.read(chunk, columns))

    def _read(self, piece: int, what: str, read: Callable[[], T]) -> T:
        """``read()`` of a piece, tried again where it fails for a moment. Raises ``SourceError``."""
        manifest, shard = self.reader.manifest, self.reader.shard_of(piece)
        try:
            return with_retries(read, manifest.path(shard), what)
        except OSError as error:
            name = manifest.shards[shard].name
            raise SourceError(f"source {self.name!r}, shard {name!r}: cannot be read: {error}.") from error


def open_source(name: str, settings: SourceConfig) -> Source:
    """List, fingerprint and open the source ``name``. Raises ``SourceError``."""
    manifest = list_source(name, settings)
    reader = reader_class(name, manifest.format)(manifest, settings)
    return Source(name, settings.field, reader)
