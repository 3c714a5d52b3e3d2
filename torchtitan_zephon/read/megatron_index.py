"""An ``.idx`` of Megatron: where each document of the ``.bin`` beside it begins.

The layout is that of ``IndexedDataset`` in ``megatron.core``: a header, then by sequence its length and where it
begins, then by document its first sequence. A document may have several sequences (sentences), which lie side by side.
An index is looked up in blocks of 64 KiB and never read whole, since that of a large corpus has gigabytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..errors import SourceError

MAGIC = b"MMIDIDX\x00\x00"
HEADER_BYTES = len(MAGIC) + 8 + 1 + 8 + 8
"""Magic word, version, type of the ids, number of sequences, number of documents and one more."""
_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
_BLOCK_NUMBERS, _MOST_BLOCKS = 8192, 64

Read = Callable[[int, int], bytes]
"""The bytes [start, stop) of the index; fewer are an error."""


class Header(NamedTuple):
    """``pointers``, ``firsts``: at which bytes of the index it says where sequences begin, and the documents' first
    sequences."""

    dtype: np.dtype[np.generic]
    sequences: int
    documents: int
    pointers: int
    firsts: int


def header_of(path: str, head: bytes, num_bytes: int) -> Header:
    """The header of an index of ``num_bytes`` bytes. Raises ``SourceError``."""
    if len(head) < HEADER_BYTES or not head.startswith(MAGIC):
        raise SourceError(f"{path!r} begins with {head[:9]!r}, and an index of Megatron with {MAGIC!r}. Copy it anew.")
    code = head[len(MAGIC) + 8]
    dtype = np.dtype(_TYPES.get(code, "V1"))
    if dtype.kind not in "iu":
        raise SourceError(f"{path!r} says that it indexes {dtype.name} (type {code}), and token ids are integers.")
    sequences, firsts = np.frombuffer(head, "<u8", 2, len(MAGIC) + 9).tolist()
    pointers = HEADER_BYTES + 4 * sequences
    found = Header(dtype, sequences, firsts - 1, pointers, pointers + 8 * sequences)
    stated = found.firsts + 8 * firsts
    if num_bytes not in (stated, stated + sequences):  # a byte a sequence more where there are several modes
        raise SourceError(f"{path!r} has {num_bytes:,} bytes, and {stated:,} by its header: it was cut. Copy it anew.")
    return found


class Begins:
    """Where documents begin, in bytes of the ``.bin``: looked up by number, as in a list.

    ``disagree`` makes the error for an index that is not that of its ``.bin``, of what is wrong with it.
    """

    def __init__(self, header: Header, read: Read, disagree: Callable[[str], SourceError]) -> None:
        self.header, self._read, self._disagree = header, read, disagree
        self._block = functools.lru_cache(_MOST_BLOCKS)(self._read_block)

    def __len__(self) -> int:
        return max(0, self.header.documents)

    def __getitem__(self, document: int) -> int:
        return self._number(self.header.pointers, self._number(self.header.firsts, document))

    def range(self, first: int, stop: int) -> np.ndarray:
        """Where the documents [first, stop) begin: int64 [documents]."""
        sequences = self._numbers(self.header.firsts, first, stop)
        if not len(sequences):
            return sequences
        begin, end = int(sequences[0]), int(sequences[-1]) + 1
        if not 0 <= begin < end <= self.header.sequences or (np.diff(sequences) < 0).any():
            raise self._disagree("its documents are in no order")
        found: np.ndarray = self._numbers(self.header.pointers, begin, end)[sequences - begin]
        return found

    def check(self, num_bytes: int) -> None:
        """Raise ``SourceError`` if the last sequence and document do not end where a ``.bin`` of so many bytes does."""
        h, end = self.header, 0
        if h.sequences:
            length = np.frombuffer(self._read(h.pointers - 4, h.pointers), "<i4")
            end = self._number(h.pointers, h.sequences - 1) + int(length[0]) * h.dtype.itemsize
        if end != num_bytes:
            raise self._disagree(f"its sequences end at byte {end:,}")
        if h.documents < 0 or self._number(h.firsts, h.documents) != h.sequences or self._number(h.firsts, 0):
            raise self._disagree("its documents are not those of its sequences")

    def _number(self, base: int, n: int) -> int:
        if not 0 <= n < self._count(base):
            raise self._disagree("its documents are in no order")
        return int(self._block(base, n // _BLOCK_NUMBERS)[n % _BLOCK_NUMBERS])

    def _count(self, base: int) -> int:
        return self.header.sequences if base == self.header.pointers else self.header.documents + 1

    def _read_block(self, base: int, block: int) -> np.ndarray:
        return self._numbers(base, block * _BLOCK_NUMBERS, min(self._count(base), (block + 1) * _BLOCK_NUMBERS))

    def _numbers(self, base: int, first: int, stop: int) -> np.ndarray:
        return np.frombuffer(self._read(base + 8 * first, base + 8 * stop), "<i8")
