"""JSONL: byte ranges cut at line ends, so no index is needed.

A line belongs to the chunk that holds its first byte. A chunk therefore skips up to the first
line end at or after ``start - 1`` and reads on behind ``stop`` to finish its last line; a line
longer than several chunks leaves those in its middle empty. Lines are parsed one by one with
orjson: strict JSON, 260 MB a CPU second, and the exact place of a bad line is known.
"""

from __future__ import annotations

from io import SEEK_END
from typing import BinaryIO

import numpy as np
import orjson

from ..bad_records import BadRecord, Sifted
from ..errors import SourceError
from ..plan.chunking import Chunk, Pieces
from ..records import RECORD, Contents, Documents, Record, origin_of
from .files import Manifest
from .settings import SourceConfig
from .store import Store

_BOM = b"\xef\xbb\xbf"
_READ_ON_BYTES = 64 * 1024
_LOOK_BYTES = 4096


class JsonlReader:
    """Reads the chunks of one JSONL source; stateless, so safe in any thread."""

    contents: Contents = "text"
    largest_id = None

    def __init__(self, manifest: Manifest, settings: SourceConfig) -> None:
        self.manifest = manifest

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
        data, at = _lines(self.manifest.store, shard.name, chunk.start, chunk.stop, shard.num_bytes)
        records: list[Record] = []
        places: list[int] = []
        bad: list[BadRecord] = []
        for line in data.split(b"\n"):
            if at == 0 and line.startswith(_BOM):
                line, at = line[3:], 3
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                if line.strip():
                    where = f"(column {error.colno}); the line begins {line[:60]!r}"
                    bad.append(BadRecord("line", at, f"not valid JSON: {error.msg} {where}"))
            else:
                if type(record) is dict:
                    records.append(record)
                    places.append(at)
                else:
                    bad.append(BadRecord("line", at, f"a line must be a JSON object; this one is {_kind(record)}"))
            at += len(line) + 1
        documents = Documents.of_values({RECORD: records}, origin_of(chunk.source, chunk.piece, places))
        return documents, bad

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


def _lines(store: Store, name: str, start: int, stop: int, size: int) -> tuple[bytes, int]:
    """The whole lines whose first byte lies in [start, stop), and the offset of the first; one read, as a rule."""
    begin = max(start - 1, 0)
    own = stop - begin
    data = store.read(name, begin, stop + _READ_ON_BYTES)
    if len(data) < own:
        raise _cut(store.path(name), begin + len(data), size)
    skip = 0
    if start:
        skip = data.find(b"\n", 0, own) + 1
        if not skip or skip == own:  # no line begins in this chunk
            return b"", start
    end = data.find(b"\n", own - 1)
    parts, at, block = [data[skip:end] if end >= 0 else data[skip:]], begin + len(data), 2 * _READ_ON_BYTES
    while end < 0 and (data := store.read(name, at, at + block)):
        end = data.find(b"\n")
        parts.append(data[:end] if end >= 0 else data)
        at, block = at + len(data), 2 * block
    return b"".join(parts), begin + skip


def _line_holding(file: BinaryIO, at: int) -> int:
    """The first byte of the line that holds byte ``at``."""
    block, end = _READ_ON_BYTES, at
    while end:
        begin = max(0, end - block)
        file.seek(begin)
        if (found := file.read(end - begin).rfind(b"\n")) >= 0:
            return begin + found + 1
        end, block = begin, block * 2
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
