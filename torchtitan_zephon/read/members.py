"""How large a member of a packed file is, seen from its headers: so one that nobody wants is passed over unread.

Two kinds of files say it: those of bgzip, which writes gzip members of up to 64 KiB with their packed size in front and
their unpacked size behind; and zstd frames that state their content size, as ``zstd`` does where it knows it.
Sources: the SAM format specification (BGZF), RFC 8878 (Zstandard).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Peek = Callable[[int, int], bytes]
"""(offset, size) -> bytes of the file, counted from the member's beginning; fewer at the file's end."""


class Sizes(NamedTuple):
    """Bytes of a member, and of what is in it."""

    packed: int
    unpacked: int


def gzip_sizes(peek: Peek, most: int) -> Sizes | None:
    """Of a gzip member as bgzip writes it; None for another, and for one that holds more than ``most`` bytes."""
    head = peek(0, 18)
    if len(head) < 18 or not head[3] & 4 or head[12:16] != b"BC\2\0":
        return None
    packed = 1 + int.from_bytes(head[16:18], "little")
    unpacked = int.from_bytes(peek(packed - 4, 4), "little")
    return Sizes(packed, unpacked) if unpacked <= most else None


def zstd_sizes(peek: Peek, most: int) -> Sizes | None:
    """Of a zstd frame that states its content size; None for another, and for one that holds more than ``most``."""
    head = peek(0, 18)
    if head[1:4] == b"*M\x18" and len(head) >= 8:  # a frame to skip
        return Sizes(8 + int.from_bytes(head[4:8], "little"), 0)
    flags = head[4]
    single, checked = flags >> 5 & 1, flags >> 2 & 1
    of_dictionary, of_size = (0, 1, 2, 4)[flags & 3], (single, 2, 4, 8)[flags >> 6]
    at = 6 - single + of_dictionary
    unpacked = int.from_bytes(head[at : at + of_size], "little") + 256 * (of_size == 2)
    if not of_size or unpacked > most:
        return None
    at += of_size
    while len(block := peek(at, 3)) == 3:
        header = int.from_bytes(block, "little")
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        at += 3 + (1 if kind == 1 else size)
        if last:
            return Sizes(at + 4 * checked, unpacked)
    return None
