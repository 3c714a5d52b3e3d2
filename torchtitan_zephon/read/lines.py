"""Lines of a file that is read from the front. A line belongs to the slice that holds its first byte."""

from __future__ import annotations

from ..bad_records import BadRecord
from .packings import BLOCK_BYTES, Unpacked
from .sequential import Cut


def seek_line(stream: Unpacked, at: int) -> None:
    """Go to the first line that begins at ``at`` or behind it."""
    if stream.at >= at:
        return
    stream.skip(at - 1)
    while data := stream.read(BLOCK_BYTES):
        if (end := data.find(b"\n") + 1) > 0:
            stream.unread(data[end:])
            return


def take_lines(stream: Unpacked, stop: int, most: int) -> Cut:
    """The lines that begin before ``stop``. One of more than ``most`` bytes is passed over and never held."""
    at, parts = stream.at, []
    while stream.at < stop and (data := stream.read(stop - stream.at)):
        parts.append(data)
    data = b"".join(parts)
    begun = data.rfind(b"\n") + 1  # the last line, which may go on
    if begun == len(data):
        return Cut(at, data)
    parts, length = [data], len(data) - begun
    while rest := stream.read(BLOCK_BYTES):
        if end := rest.find(b"\n") + 1:
            stream.unread(rest[end:])
            rest = rest[:end]
        length += len(rest)
        if length > most:
            parts = [data[:begun]]
        else:
            parts.append(rest)
        if end:
            break
    return Cut(at, b"".join(parts), ((at + begun, length),) if length > most else ())


def too_long(place: int, most: int) -> BadRecord:
    """A record of more than ``most`` bytes."""
    return BadRecord("size", place, f"the record has more than max_record_bytes = {most:,} bytes")
