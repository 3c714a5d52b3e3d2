"""Files of lines: byte ranges cut at line ends, so no index is needed.

A line belongs to the chunk that holds its first byte. A chunk therefore skips up to the first
line end at or after ``start - 1`` and reads on behind ``stop`` to finish its last line; a line
longer than several chunks leaves those in its middle empty. Of a line that is too long no more is read than shows it.
What a line is, JSON or text, is said by the format.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from io import SEEK_END
from typing import BinaryIO

import numpy as np

from ..bad_records import BadRecord, Sifted
from ..plan.chunking import Chunk, Pieces
from ..records import RECORD, Contents, Documents, Record, origin_of
from .files import Manifest, Shard
from .lines import seek_line, take_lines, too_long
from .packings import Unpacked, changed
from .sequential import Cut
from .settings import SourceConfig
from .store import Store

_BOM = b"\xef\xbb\xbf"
_READ_ON_BYTES = 32 * 1024
"""Read behind a chunk for the rest of its last line: 1/8 of a chunk of 256 KiB, and enough for most web pages."""
_MOST_READ_BYTES = 4 * 2**20
"""A range of bytes above this is read in parts, which are ranges in the same sense."""
_LOOK_BYTES = 4096


class LineReader(ABC):
    """Reads the chunks of one source; stateless, so safe in any thread."""

    contents: Contents = "text"
    largest_id: int | None = None

    def __init__(self, manifest: Manifest, settings: SourceConfig, max_record_bytes: int) -> None:
        self.manifest, self.field = manifest, settings.text.fields[0]
        self._most = max_record_bytes

    @abstractmethod
    def record(self, line: bytes, at: int) -> Record | BadRecord | None:
        """The record of the line at byte ``at``; None if it is blank."""

    def pieces(self) -> Pieces:
        """One piece a file; its units are bytes."""
        sizes = np.array([s.num_bytes for s in self.manifest.shards], dtype=np.int64)
        return Pieces(sizes=sizes, units=sizes, runs_of_one=True)

    def shard_of(self, piece: int) -> int:
        """Pieces are shards."""
        return piece

    def read(self, chunk: Chunk, columns: frozenset[str] | None) -> Sifted:
        """The records of ``chunk``, whole, as a line is parsed whole; blank lines are no records."""
        shard = self.manifest.shards[chunk.piece]
        cuts = (
            _lines(self.manifest.store, shard, start, min(start + _MOST_READ_BYTES, chunk.stop), self._most)
            for start in range(chunk.start, chunk.stop, _MOST_READ_BYTES)
        )
        return _parsed(chunk, cuts, self._most, self.record)

    def around(self, piece: int, unit: int, num_bytes: int) -> tuple[int, int]:
        """The byte range of whole lines: from the one that holds byte ``unit`` on, ``num_bytes`` or more of them."""
        size = self.manifest.shards[piece].num_bytes
        with self.manifest.store.open(self.manifest.shards[piece].name) as file:
            start = _line_holding(file, unit)
            return start, _line_start(file, min(max(unit + 1, start + num_bytes), size), size)

    def weigh(self, piece: int, borders: np.ndarray) -> np.ndarray:
        """Bytes of the lines whose first byte lies in [borders[i], borders[i + 1]); int64 [ranges].

        ``borders`` do not fall. Only the file's bytes from a border to the next line end are read.
        """
        starts, start = [], 0
        with self.manifest.store.open(self.manifest.shards[piece].name) as file:
            for border in borders.tolist():
                if border > start:  # else no line begins from the border before to `start`
                    start = _line_start(file, border, self.manifest.shards[piece].num_bytes)
                starts.append(start)
        return np.diff(np.array(starts, dtype=np.int64))

    def span(self, chunk: Chunk) -> str:
        """In words, where in its shard a chunk lies."""
        return f"bytes {chunk.start:,} to {chunk.stop:,}"

    def describe(self, place: int) -> str:
        """In words, where in its shard a record lies."""
        return f"line at byte {place}"


class LineCutter(ABC):
    """The lines of files that are read from the front."""

    contents: Contents = "text"

    def __init__(self, manifest: Manifest, settings: SourceConfig, max_record_bytes: int) -> None:
        self.field, self._most = settings.text.fields[0], max_record_bytes

    @abstractmethod
    def record(self, line: bytes, at: int) -> Record | BadRecord | None:
        """The record of the line at unpacked byte ``at``; None if it is blank."""

    def seek(self, stream: Unpacked, at: int) -> None:
        """Go to the first line that begins at ``at`` or behind it."""
        seek_line(stream, at)

    def take(self, stream: Unpacked, stop: int) -> Cut:
        """The lines that begin before ``stop``."""
        return take_lines(stream, stop, self._most)

    def parse(self, chunk: Chunk, cut: Cut, columns: frozenset[str] | None) -> Sifted:
        """The records of ``cut``, whole."""
        return _parsed(chunk, [cut], self._most, self.record)

    def describe(self, place: int) -> str:
        """In words, where in its shard a record lies."""
        return f"line at unpacked byte {place}"


def _parsed(
    chunk: Chunk, cuts: Iterable[Cut], most: int, parse: Callable[[bytes, int], Record | BadRecord | None]
) -> Sifted:
    """The records of ``chunk`` in whole lines; blank lines are no records. ``most``: bytes of a line."""
    records: list[Record] = []
    places: list[int] = []
    bad: list[BadRecord] = []
    for at, data, large in cuts:
        bad += [too_long(place, most) for place, _ in large]
        for line in data.split(b"\n"):
            if at == 0 and line.startswith(_BOM):
                line, at = line[3:], 3
            record = parse(line, at) if len(line) <= most else too_long(at, most)
            if isinstance(record, dict):
                records.append(record)
                places.append(at)
            elif record is not None:
                bad.append(record)
            at += len(line) + 1
    return Documents.of_values({RECORD: records}, origin_of(chunk.source, chunk.piece, places)), bad


def _lines(store: Store, shard: Shard, start: int, stop: int, most: int) -> Cut:
    """The lines whose first byte lies in [start, stop); one read, as a rule.

    A last line of more than ``most`` bytes is not read to its end.
    """
    begin = max(start - 1, 0)
    own = stop - begin
    data = store.read(shard.name, begin, stop + _READ_ON_BYTES)
    if len(data) < own:
        raise changed(store.path(shard.name), begin + len(data), shard.num_bytes)
    skip = 0
    if start:
        skip = data.find(b"\n", 0, own) + 1
        if not skip or skip == own:  # no line begins in this range
            return Cut(start, b"")
    if (end := data.find(b"\n", own - 1)) >= 0:
        return Cut(begin + skip, data[skip:end])
    parts = [data[skip:]]
    last = data.rfind(b"\n", skip) + 1 or skip  # where the line begins that goes on
    length, at, block = len(data) - last, begin + len(data), 2 * _READ_ON_BYTES
    while end < 0 and length <= most and (rest := store.read(shard.name, at, at + min(block, most + 1 - length))):
        end = rest.find(b"\n")
        parts.append(rest[:end] if end >= 0 else rest)
        length, at, block = length + len(parts[-1]), at + len(rest), min(2 * block, _MOST_READ_BYTES)
    if length > most:
        return Cut(begin + skip, data[skip:last], ((begin + last, length),))
    return Cut(begin + skip, b"".join(parts))


def _line_holding(file: BinaryIO, at: int) -> int:
    """The first byte of the line that holds byte ``at``."""
    block, end = _READ_ON_BYTES, at
    while end:
        begin = max(0, end - block)
        file.seek(begin)
        if (found := file.read(end - begin).rfind(b"\n")) >= 0:
            return begin + found + 1
        end, block = begin, min(2 * block, _MOST_READ_BYTES)
    return 0


def _line_start(file: BinaryIO, border: int, size: int) -> int:
    """Where the first line begins at or behind ``border`` > 0; ``size`` if there is none."""
    at, block = border - 1, _LOOK_BYTES
    file.seek(at)
    while data := file.read(block):
        if (end := data.find(b"\n")) >= 0:
            return min(at + end + 1, size)
        at += len(data)
        block = min(2 * block, _READ_ON_BYTES)
    if (end := file.seek(0, SEEK_END)) < size:
        raise changed(file.name, end, size)
    return size
