"""JSONL: byte ranges cut at line ends, so no index is needed.

A line belongs to the chunk that holds its first byte. A chunk therefore skips up to the first
line end at or after ``start - 1`` and reads on behind ``stop`` to finish its last line; a line
longer than several chunks leaves those in its middle empty. Lines are parsed one by one with
orjson: strict JSON, 260 MB a CPU second, and the exact place of a bad line is known. Of a line that is too long no more
is read than shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import SEEK_END
from typing import BinaryIO

import numpy as np
import orjson

from ..bad_records import BadRecord, Sifted
from ..errors import SourceError
from ..plan.chunking import Chunk, Pieces
from ..records import RECORD, Contents, Documents, Record, origin_of
from .files import Manifest, Shard
from .settings import SourceConfig
from .store import Store

_BOM = b"\xef\xbb\xbf"
_READ_ON_BYTES = 64 * 1024
_MOST_READ_BYTES = 4 * 2**20
"""A range of bytes above this is read in parts, which are ranges in the same sense."""
_LOOK_BYTES = 4096


class JsonlReader:
    """Reads the chunks of one JSONL source; stateless, so safe in any thread."""

    contents: Contents = "text"

    def __init__(self, manifest: Manifest, settings: SourceConfig, max_record_bytes: int) -> None:
        self.manifest = manifest
        self._most_bytes = max_record_bytes

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
        records: list[Record] = []
        places: list[int] = []
        bad: list[BadRecord] = []
        for start in range(chunk.start, chunk.stop, _MOST_READ_BYTES):
            stop = min(start + _MOST_READ_BYTES, chunk.stop)
            for at, line in _lines(self.manifest.store, shard, start, stop, self._most_bytes):
                record = _parsed(at, line, self._most_bytes)
                if isinstance(record, BadRecord):
                    bad.append(record)
                elif record is not None:
                    records.append(record)
                    places.append(at)
        return Documents.of_values({RECORD: records}, origin_of(chunk.source, chunk.piece, places)), bad

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


def _parsed(at: int, line: bytes | None, most: int) -> Record | BadRecord | None:
    """The record of a line; None if it is blank. ``line`` is None if it has more than ``most`` bytes."""
    if line is None:
        return BadRecord("size", at, f"the line has more than max_record_bytes = {most:,} bytes")
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        if not line.strip():
            return None
        where = f"(column {error.colno}); the line begins {line[:60]!r}"
        return BadRecord("line", at, f"not valid JSON: {error.msg} {where}")
    if type(record) is dict:
        return record
    return BadRecord("line", at, f"a line must be a JSON object; this one is {_kind(record)}")


def _lines(store: Store, shard: Shard, start: int, stop: int, most: int) -> Iterator[tuple[int, bytes | None]]:
    """Place and bytes of the lines whose first byte lies in [start, stop); one read, as a rule.

    A line of more than ``most`` bytes is None, and is not read to its end.
    """
    begin = max(start - 1, 0)
    own = stop - begin
    data = store.read(shard.name, begin, stop + _READ_ON_BYTES)
    if len(data) < own:
        raise _cut(store.path(shard.name), begin + len(data), shard.num_bytes)
    skip = 0
    if start:
        skip = data.find(b"\n", 0, own) + 1
        if not skip or skip == own:  # no line begins in this range
            return
    end, at = data.find(b"\n", own - 1), begin + skip
    lines = (data[skip:end] if end >= 0 else data[skip:]).split(b"\n")
    if at == 0 and lines[0].startswith(_BOM):
        at, lines[0] = 3, lines[0][3:]
    last = lines.pop()
    for line in lines:
        yield at, line if len(line) <= most else None
        at += len(line) + 1
    yield at, _whole(store, shard.name, begin + len(data), last, end >= 0, most)


def _whole(store: Store, name: str, at: int, line: bytes, ended: bool, most: int) -> bytes | None:
    """``line``, with the rest of it, which begins at ``at``, unless it has ``ended``; None if it is too long."""
    parts, held, block, end = [line], len(line), 2 * _READ_ON_BYTES, 0 if ended else -1
    while end < 0 and held <= most and (data := store.read(name, at, at + min(block, most + 1 - held))):
        end = data.find(b"\n")
        parts.append(data[:end] if end >= 0 else data)
        held, at, block = held + len(parts[-1]), at + len(data), min(2 * block, _MOST_READ_BYTES)
    return b"".join(parts) if held <= most else None


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
        raise _cut(file.name, end, size)
    return size


def _cut(path: str, end: int, size: int) -> SourceError:
    return SourceError(
        f"{path!r} ends at byte {end}, but had {size} bytes when the job "
        "began: the file was changed or cut while the job runs."
    )


def _kind(value: object) -> str:
    names = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "true or false"}
    return names.get(type(value), "null")
