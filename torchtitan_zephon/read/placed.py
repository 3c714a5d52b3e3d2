"""Files whose records stand one after the other, at places that the file itself tells: cut by bytes, like JSONL.

A record belongs to the chunk that holds its first byte. So the pieces are the files and their sizes are known from the
listing: nothing is read at the start, whatever the number of files. Where the records of a file begin is looked up
when a chunk of it is read. A place is a number that grows along the file (a record's number, or a token's), and a
reader says by ``Places`` which byte it stands for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from ..bad_records import Sifted
from ..errors import SourceError
from ..plan.chunking import Chunk, Pieces
from ..records import RECORD, Contents, Documents, Record, origin_of
from .files import Manifest
from .formats import formats
from .lines import too_long
from .settings import SourceConfig

MOST_LOOKED_INTO = 512


class Places(Protocol):
    """Where the records of one file begin."""

    def after(self, byte: int) -> int:
        """The place of the first record that begins at ``byte`` or behind it; that of the end if there is none."""

    def holding(self, byte: int) -> int:
        """The place of the record that holds ``byte``."""

    def byte(self, place: int) -> int:
        """Where the record at ``place`` begins; of the end, the size of the file."""


class Begins(Protocol):
    """Where records begin, by number; rising."""

    def __len__(self) -> int: ...
    def __getitem__(self, number: int, /) -> int: ...


class Numbered(NamedTuple):
    """Records that are found by number, and the size of their file."""

    begins: Begins
    size: int

    def after(self, byte: int) -> int:
        """As ``Places``."""
        return len(self.begins) if byte >= self.size else bisect_left(self.begins, byte)

    def holding(self, byte: int) -> int:
        """As ``Places``."""
        return max(0, bisect_right(self.begins, byte) - 1)

    def byte(self, place: int) -> int:
        """As ``Places``."""
        return int(self.begins[place]) if place < len(self.begins) else self.size


class PlacedReader(ABC):
    """A reader of such files; a format says where records begin, and reads a range of them."""

    contents: Contents = "text"
    largest_id: int | None = None
    least_bytes = 0
    """Of a file that is whole."""

    def __init__(self, manifest: Manifest, settings: SourceConfig, max_record_bytes: int) -> None:
        self.manifest = manifest
        self._field, self._most_bytes = settings.text.fields[0], max_record_bytes
        for shard in manifest.shards:
            if shard.num_bytes < self.least_bytes:
                raise SourceError(
                    f"{manifest.store.path(shard.name)!r} has {shard.num_bytes} bytes, and {self.least_bytes} are the "
                    f"least of a {formats()[manifest.format].title} file: it was cut. Write it anew, or leave it out."
                )

    def first_look(self) -> range:
        """The files that are looked into at the start: all, or some evenly spread; the others when they are read."""
        return range(0, len(self.manifest.shards), -(-len(self.manifest.shards) // MOST_LOOKED_INTO))

    @abstractmethod
    def places(self, shard: int) -> Places:
        """Where the records of file ``shard`` begin. Raises ``SourceError``."""

    @abstractmethod
    def records(self, chunk: Chunk, first: int, stop: int, columns: frozenset[str] | None) -> Sifted:
        """The records of ``chunk``, which are at the places [first, stop), or these columns of them."""

    def describe(self, place: int) -> str:
        """In words, where in its shard a record lies."""
        return f"record {place:,}"

    def pieces(self) -> Pieces:
        """One piece a file; its units are bytes."""
        sizes = np.array([s.num_bytes for s in self.manifest.shards], dtype=np.int64)
        return Pieces(sizes=sizes, units=sizes, runs_of_one=True)

    def shard_of(self, piece: int) -> int:
        """Pieces are shards."""
        return piece

    def around(self, piece: int, unit: int, num_bytes: int) -> tuple[int, int]:
        """The bytes of whole records: from the one that holds byte ``unit`` on, ``num_bytes`` or more of them."""
        places, size = self.places(piece), self.manifest.shards[piece].num_bytes
        start = min(unit, places.byte(places.holding(unit)))
        return start, places.byte(places.after(min(max(unit + 1, start + num_bytes), size)))

    def weigh(self, piece: int, borders: np.ndarray) -> np.ndarray:
        """Bytes of the records that begin in [borders[i], borders[i + 1]); int64 [ranges]."""
        places = self.places(piece)
        return np.diff(np.array([places.byte(places.after(border)) for border in borders.tolist()], np.int64))

    def read(self, chunk: Chunk, columns: frozenset[str] | None) -> Sifted:
        """The records of ``chunk``, or these columns of them. One that is too large is passed over and not read."""
        places = self.places(chunk.piece)
        first, stop = places.after(chunk.start), places.after(chunk.stop)
        large = list[int]()
        if places.byte(stop) - places.byte(first) > self._most_bytes:
            large = [place for place in _each(places, first, stop) if _num_bytes(places, place) > self._most_bytes]
        documents, bad = self.records(chunk, first, large[0] if large else stop, columns)
        for place, end in pairwise([*large, stop]):
            after, more = self.records(chunk, _next(places, place), end, columns)
            documents, bad = Documents.join(documents, after), [*bad, too_long(place, self._most_bytes), *more]
        return documents, bad

    def span(self, chunk: Chunk) -> str:
        """In words, where in its shard a chunk lies."""
        return f"bytes {chunk.start:,} to {chunk.stop:,}"

    def path(self, shard: int) -> str:
        """Of a file, for messages."""
        return self.manifest.store.path(self.manifest.shards[shard].name)

    def bytes_of(self, shard: int, start: int, stop: int) -> bytes:
        """The bytes [start, stop) of a shard. Raises ``SourceError`` if it ends before."""
        return self.part_of(self.manifest.shards[shard].name, start, stop)

    def part_of(self, name: str, start: int, stop: int) -> bytes:
        """The same of any file of the source."""
        data = self.manifest.store.read(name, start, stop)
        if len(data) < stop - start:
            raise SourceError(
                f"{self.manifest.store.path(name)!r} ends at byte {start + len(data):,}, and {stop:,} are needed: it "
                "was cut, or changed while the job runs. Write it anew, or leave it out."
            )
        return data


def whole_records(chunk: Chunk, first: int, records: list[Record]) -> Documents:
    """Records as they are, at the places from ``first`` on."""
    origin = origin_of(chunk.source, chunk.piece, range(first, first + len(records)))
    return Documents.of_values({RECORD: records}, origin)


def documents_of(
    chunk: Chunk, ids: np.ndarray, offsets: np.ndarray, places: np.ndarray, field: str, columns: frozenset[str] | None
) -> Documents:
    """Documents of token ids, laid end to end; as whole records, each an array in ``field``, where no columns are."""
    origin = origin_of(chunk.source, chunk.piece, places)
    if columns is None:
        records = [{field: part} for part in np.split(ids, offsets[1:])[: len(places)]]
        return Documents.of_values({RECORD: records}, origin)
    return replace(Documents.of_values({}, origin), tokens={"ids": ids}, offsets=offsets)


def _next(places: Places, place: int) -> int:
    """The place of the record behind that at ``place``."""
    return max(place + 1, places.after(places.byte(place) + 1))


def _num_bytes(places: Places, place: int) -> int:
    return places.byte(_next(places, place)) - places.byte(place)


def _each(places: Places, first: int, stop: int) -> Iterator[int]:
    while first < stop:
        yield first
        first = _next(places, first)
