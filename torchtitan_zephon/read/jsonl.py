"""JSONL: byte ranges cut at line ends, so no index is needed.

A line belongs to the chunk that holds its first byte. A chunk therefore skips up to the first
line end at or after ``start - 1`` and reads on behind ``stop`` to finish its last line; a line
longer than several chunks leaves those in its middle empty. Lines are parsed one by one with
orjson: strict JSON, 260 MB a CPU second, and the exact place of a bad line is known.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa

from ..errors import SourceError
from ..plan.chunking import Chunk, Pieces
from ..records import Record
from . import BadRecord
from .files import Manifest
from .retry import with_retries

_BOM = b"\xef\xbb\xbf"
_READ_ON_BYTES = 64 * 1024


class JsonlReader:
    """Reads the chunks of one JSONL source; stateless, so safe in any thread."""

    holds_ids = False

    def __init__(self, manifest: Manifest, field: str) -> None:
        self.manifest = manifest

    def pieces(self) -> Pieces:
        """One piece a file; its units are bytes."""
        sizes = np.array([s.num_bytes for s in self.manifest.shards], dtype=np.int64)
        return Pieces(sizes=sizes, units=sizes, runs_of_one=True)

    def shard_of(self, piece: int) -> int:
        """Pieces are shards."""
        return piece

    def read(self, chunk: Chunk, whole_records: bool) -> tuple[list[Record], np.ndarray]:
        """The records of ``chunk`` and the byte offset of each line, int64 [records].

        Blank lines are no records. Raises ``BadRecord`` with the byte offset of a malformed line.
        """
        shard = self.manifest.shards[chunk.piece]
        path = self.manifest.path(chunk.piece)
        data, at = with_retries(lambda: _lines(path, chunk.start, chunk.stop, shard.num_bytes), path, self.span(chunk))
        records: list[Record] = []
        places: list[int] = []
        for line in data.split(b"\n"):
            if at == 0 and line.startswith(_BOM):
                line, at = line[3:], 3
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                if line.strip():
                    raise BadRecord(
                        f"not valid JSON: {error.msg} (column {error.colno}); the line begins {line[:60]!r}", at
                    ) from None
                record = None
            if type(record) is dict:
                records.append(record)
                places.append(at)
            elif line.strip():
                raise BadRecord(f"a line must be a JSON object; this one is {_kind(record)}", at)
            at += len(line) + 1
        return records, np.array(places, dtype=np.int64)

    def read_ids(self, chunk: Chunk) -> tuple[list[pa.Array], np.ndarray]:
        """Not offered: lists of numbers in JSON are no fast way to hold tokens."""
        raise AssertionError("a JSONL source holds text")

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
            raise SourceError(
                f"{str(path)!r} ends at byte {begin + len(data)}, but had {size} bytes when the job "
                "began: the file was changed or cut while the job runs."
            )
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


def _kind(value: object) -> str:
    names = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "true or false"}
    return names.get(type(value), "null")
