"""A source that is open for reading: its reader, and what every reader offers.

What flows in: a chunk. What flows out: its documents as they stand in the file, and the bad records beside them. A read
that fails for a moment is tried again; one that fails for good is a ``SourceError`` that names source and shard.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from ..bad_records import DEFAULTS, Sifted
from ..errors import SourceError
from ..plan.chunking import Chunk, Pieces
from ..plan.slices import NEXT
from ..records import Contents
from ..text_of import TextOf
from .files import Manifest, list_source
from .formats import formats, loaded
from .packings import packing_of
from .retry import with_retries
from .sequential import Cut, SequentialReader
from .settings import SourceConfig
from .stores.settings import LOCAL, StorageSettings

T = TypeVar("T")


class Reader(Protocol):
    """What a format must offer; one class a format, one file each. ``contents``: what the source's field holds.
    ``largest_id``: the largest number that its type of token ids can hold; None of text.

    Made with a manifest, the source's settings, and the most bytes that a record may have. What is larger is a bad
    record of the kind "size", and is not read into memory as far as the format lets that be seen before.
    """

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
    text: TextOf
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
        if chunk.piece == NEXT:
            return f"source {self.name!r}, the next slice of its files"
        path = self.reader.manifest.path(self.reader.shard_of(chunk.piece))
        return f"source {self.name!r}, file {path!r}, {self.reader.span(chunk)}"

    def look_at(self, piece: int) -> None:
        """Raise ``SourceError`` unless the file of ``piece`` is there; a list of another rank is compared with it."""
        manifest = self.reader.manifest
        name = manifest.shards[self.reader.shard_of(piece)].name
        self.tried(piece, "the version", lambda: manifest.store.version(name))

    def around(self, piece: int, unit: int, num_bytes: int) -> tuple[int, int]:
        """The units of whole records: from the one that holds ``unit`` on, ``num_bytes`` or more of them."""
        return self.tried(piece, f"the records at {unit:,}", lambda: self.reader.around(piece, unit, num_bytes))

    def weigh(self, piece: int, borders: np.ndarray) -> np.ndarray:
        """Planned bytes of what begins in each range [borders[i], borders[i + 1]) of ``piece``, int64 [ranges].

        Bytes of lines (JSONL), or of text or ids (Parquet), by looking and not by the mean of the piece.
        """
        return self.tried(piece, "the sizes of records", lambda: self.reader.weigh(piece, borders))

    def read(self, chunk: Chunk, columns: frozenset[str] | None, cut: Cut | None = None) -> Sifted:
        """The documents of ``chunk``, not checked yet, in file order. ``cut``: what was read of it, if it was.

        ``columns``: the fields that are wanted, as ``TextOf`` names them. Each is values of that name, or tokens "ids"
        where it holds token ids; or they are found in whole records (values ``RECORD``) where these cost no more. None
        asks for whole records, whose fields may be read when they are looked at.
        """
        if cut is not None:
            assert isinstance(self.reader, SequentialReader)
            return self.reader.cutter.parse(chunk, cut, columns)
        return self.tried(chunk.piece, self.reader.span(chunk), lambda: self.reader.read(chunk, columns))

    def lengths(self) -> np.ndarray:
        """Unpacked bytes of each piece of a sequential source, int64 [pieces]: all of it is unpacked."""
        reader = self.reader
        assert isinstance(reader, SequentialReader)
        pieces = range(len(reader.manifest.shards))
        return np.array([self.tried(p, "its length", partial(reader.length, p)) for p in pieces], np.int64)

    def tried(self, piece: int, what: str, read: Callable[[], T]) -> T:
        """``read()`` of a piece, tried again where it fails for a moment. Raises ``SourceError``."""
        manifest, shard = self.reader.manifest, self.reader.shard_of(piece)
        try:
            return with_retries(read, manifest.path(shard), what)
        except OSError as error:
            name = manifest.shards[shard].name
            raise SourceError(f"source {self.name!r}, shard {name!r}: cannot be read: {error}.") from error


def source_of(name: str, settings: SourceConfig, max_record_bytes: int, manifest: Manifest) -> Source:
    """The source ``name``, whose files are those of ``manifest``. Raises ``SourceError``."""
    try:
        return Source(name, settings.text, _reader(name, manifest, settings, max_record_bytes))
    except OSError as error:
        raise SourceError(f"source {name!r}: a file of it cannot be read: {error}.") from error


Opening = Callable[[str, SourceConfig, int, StorageSettings], Source]
"""How a source is opened, given its name, settings, the most bytes of a record, and how remote files are reached."""


def open_source(
    name: str,
    settings: SourceConfig,
    max_record_bytes: int = DEFAULTS.max_record_bytes,
    storage: StorageSettings = LOCAL,
) -> Source:
    """List, fingerprint and open the source ``name``. Raises ``SourceError``."""
    return source_of(name, settings, max_record_bytes, list_source(name, settings, storage))


def _reader(name: str, manifest: Manifest, settings: SourceConfig, max_record_bytes: int) -> Reader:
    """What reads the files: at any place, or if one of them is packed, all of them from the front."""
    of = formats()[manifest.format]
    if of.reader and not any(packing_of(shard.name) for shard in manifest.shards):
        reader: Reader = loaded(name, of, of.reader)(manifest, settings, max_record_bytes)
        return reader
    return SequentialReader(manifest, loaded(name, of, of.cutter)(manifest, settings, max_record_bytes))
