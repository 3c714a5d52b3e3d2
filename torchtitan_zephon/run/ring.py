"""Local batches from one process to another: a few slots of memory that both have mapped.

What flows in: the sequences of a local batch, written into a slot as columns. What flows out: their
``Rows``, copied out of the slot. Nothing is pickled; who may touch a slot is said elsewhere, by
messages: conserved is slots = free + being written + written and not yet read.

The memory has no name and lies in no file system: it goes when the last process that maps it ends,
however it ends, and the size of /dev/shm does not bound it. A page costs nothing before it is first
written, so a slot is as large as the worst case (every token a document of its own: 52 bytes a
token), while 12 bytes a token and 40 a document are what it takes.
"""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

import numpy as np

from ..errors import RunnerError
from ..ops.render import COLUMNS
from ..records import Rows, Sequence

SLOTS = 3
"""One that the trainer reads, one that waits, one being written."""
NAMES = tuple(column.name for column in COLUMNS)


class _Slot(NamedTuple):
    """Views of one slot. columns: int32 [columns, rows, seq_len]; the others as in ``Rows``."""

    first_piece: np.ndarray
    filled: np.ndarray
    columns: np.ndarray
    pieces: np.ndarray


class Ring:
    """``SLOTS`` slots of ``rows`` x ``seq_len`` in the memory behind a file descriptor, which may then be closed."""

    def __init__(self, descriptor: int, rows: int, seq_len: int) -> None:
        size = slot_bytes(rows, seq_len)
        memory = mmap.mmap(descriptor, SLOTS * size)
        self._slots = [_views(memory, k * size, rows, seq_len) for k in range(SLOTS)]

    def write(self, slot: int, sequences: list[Sequence]) -> None:
        """Fill a free slot with one local batch."""
        first_piece, filled, columns, pieces = self._slots[slot]
        end = first_piece[0] = 0
        for r, sequence in enumerate(sequences):
            own = sequence.pieces
            for column, name in zip(columns, NAMES, strict=True):
                column[r] = sequence.rows.columns[name][sequence.row]
            pieces[end : end + len(own)] = own
            first_piece[r + 1] = end = end + len(own)
            filled[r] = sequence.filled

    def read(self, slot: int) -> Rows:
        """Copy out what ``write`` put in."""
        first_piece, filled, columns, pieces = self._slots[slot]
        own = dict(zip(NAMES, columns.copy(), strict=True))
        return Rows(own, pieces[: first_piece[-1]].copy(), first_piece.copy(), filled.copy())


def allocate(rows: int, seq_len: int) -> tuple[int, Ring]:
    """A ``Ring`` in new memory, and the file descriptor to share it by. Raises ``RunnerError`` if there is none."""
    size = SLOTS * slot_bytes(rows, seq_len)
    descriptor = -1
    try:
        descriptor = os.memfd_create("torchtitan_zephon")
        os.ftruncate(descriptor, size)
        return descriptor, Ring(descriptor, rows, seq_len)
    except (OSError, OverflowError) as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise RunnerError(
            f'runner = "process" shares {size:,} bytes with its process ({SLOTS} local batches of {rows} x {seq_len} '
            f'tokens at worst), which cannot be had: {error}. Use a smaller local batch, or runner = "thread".'
        ) from None


def slot_bytes(rows: int, seq_len: int) -> int:
    """Bytes of address space a slot takes, a whole number of pages."""
    tokens = rows * seq_len
    size = 8 * (rows + 1) + 8 * rows + _even(4 * len(NAMES) * tokens) + 40 * tokens
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _views(memory: mmap.mmap, start: int, rows: int, seq_len: int) -> _Slot:
    """A slot's columns, one behind the other; pieces last, as their number varies."""
    tokens = rows * seq_len
    filled = start + 8 * (rows + 1)
    columns = filled + 8 * rows
    pieces = columns + _even(4 * len(NAMES) * tokens)
    return _Slot(
        np.frombuffer(memory, np.int64, rows + 1, start),
        np.frombuffer(memory, np.int64, rows, filled),
        np.frombuffer(memory, np.int32, len(NAMES) * tokens, columns).reshape(len(NAMES), rows, seq_len),
        np.frombuffer(memory, np.int64, 5 * tokens, pieces).reshape(tokens, 5),
    )


def _even(size: int) -> int:
    return -(-size // 8) * 8
