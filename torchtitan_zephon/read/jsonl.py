"""JSONL: byte ranges cut at line ends, so no index is needed.

A line belongs to the chunk that holds its first byte. A chunk therefore skips up to the first
line end at or after ``start - 1`` and reads on behind ``stop`` to finish its last line; a line
longer than several chunks leaves those in its middle empty. Lines are parsed one by one with
orjson: strict JSON, 260 MB a CPU second, and the exact place of a bad line is known.
"""

from __future__ import annotations

from io import SEEK_END, FileIO
from pathlib import Path

import numpy as np
import orjson

from ..bad_records import BadRecord, Sifted, no_field
from ..errors import SourceError
from ..plan.chunking import Chunk, Pieces
from ..records import RECORD, Contents, Documents, Record, origin_of
from .files import Manifest

_BOM = b"\xef\xbb\xbf"
_READ_ON_BYTES = 64 * 1024
_LOOK_BYTES = 4096


class JsonlReader:
    """Reads the chunks of one JSONL source; stateless, so safe in any thread."""

    contents: Contents = "text"

    def __init__(self, manifest: Manifest, field: str) -> None:
        self.manifest = manifest

    def pieces(self) -> Pieces:
        """One piece a file; its units are bytes."""
        sizes = np.array([s.num_bytes for s in self.manifest.shards], dtype=np.int64)
        return Pieces(sizes=sizes, units=sizes, runs_of_one=True)

    def shard_of(self, piece: int) -> int:
        """Pieces are shards."""
        return piece

    def read(self, chunk: Chunk, columns: frozenset[str] | None) -> Sifted:
        """The records of ``chunk``, or these fields of them; blank lines are no records."""
        shard = self.manifest.shards[chunk.piece]
        data, at = _lines(self.manifest.path(chunk.piece), chunk.start, chunk.stop, shard.num_bytes)
        records: list[Record] = []
        places: list[int] = []
        bad: list[BadRecord] = []
        wanted = columns or frozenset()
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
                if type(record) is not dict:
                    bad.append(BadRecord("line", at, f"a line must be a JSON object; this one is {_kind(record)}"))
                elif wanted <= record.keys():
                    records.append(record)
                    places.append(at)
                else:
                    bad.append(no_field(min(wanted - record.keys()), record, at))
            at += len(line) + 1
        values = {RECORD: records} if columns is None else {name: [r[name] for r in records] for name in columns}
        return Documents.of_values(values, origin_of(chunk.source, chunk.piece, places)), bad

    def around(self, piece: int, unit: int, num_bytes: int) -> tuple[int, int]:
        """The byte range of whole lines: from the one that holds byte ``unit`` on, ``num_bytes`` or more of them."""
        size = self.manifest.shards[piece].num_bytes
        with open(self.manifest.path(piece), "rb", buffering=0) as file:
            start = _line_holding(file, unit)
            return start, _line_start(file, min(max(unit + 1, start + num_bytes), size), size)

    def weigh(self, piece: int, borders: np.ndarray) -> np.ndarray:
        """Bytes of the lines whose first byte lies in [borders[i], borders[i + 1]); int64 [ranges].

        ``borders`` do not fall. Only the file's bytes from a border to the next line end are read.
        """
        starts, start = [], 0
        with open(self.manifest.path(piece), "rb", buffering=0) as file:
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


def _lines(path: Path, start: int, stop: int, size: int) -> tuple[bytes, int]:
    """The whole lines whose first byte lies in [start, stop), and the offset of the first."""
    with open(path, "rb") as f:
        begin = max(start - 1, 0)
        f.seek(begin)
        data = f.read(stop - begin)
        if len(data) < stop - begin:
            raise _cut(path, begin + len(data), size)
        skip = 0
        if start:
            skip = data.find(b"\n") + 1
            if not skip or skip == len(data):  # no line begins in this chunk
                return b"", start
        parts = [data[skip:]]
        at_end = data.endswith(b"\n")
        block = _READ_ON_BYTES
        while not at_end and (more := f.read(block)):
            end = more.find(b"\n")
            at_end = end >= 0
            parts.append(more[:end] if at_end else more)
            block *= 2
    return b"".join(parts), begin + skip


def _line_holding(file: FileIO, at: int) -> int:
    """The first byte of the line that holds byte ``at``."""
    block, end = _READ_ON_BYTES, at
    while end:
        begin = max(0, end - block)
        file.seek(begin)
        if (found := file.read(end - begin).rfind(b"\n")) >= 0:
            return begin + found + 1
        end, block = begin, block * 2
    return 0


def _line_start(file: FileIO, border: int, size: int) -> int:
    """Where the first line begins at or behind ``border`` > 0; ``size`` if there is none."""
    at, block = border - 1, _LOOK_BYTES
    file.seek(at)
    while data := file.read(block):
        if (end := data.find(b"\n")) >= 0:
            return min(at + end + 1, size)
        at += len(data)
        block = min(2 * block, _READ_ON_BYTES)
    if (end := file.seek(0, SEEK_END)) < size:
        raise _cut(Path(file.name), end, size)
    return size


def _cut(path: Path, end: int, size: int) -> SourceError:
    return SourceError(
        f"{str(path)!r} ends at byte {end}, but had {size} bytes when the job "
        "began: the file was changed or cut while the job runs."
    )


def _kind(value: object) -> str:
    names = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "true or false"}
    return names.get(type(value), "null")
