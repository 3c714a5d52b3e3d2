"""The ring: what is written into a slot is what is read, other slots stay, and its memory has limits and no name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from torchtitan_zephon.ops.render import padding_rows
from torchtitan_zephon.records import Rows, Sequence
from torchtitan_zephon.run.ring import NAMES, SLOTS, Ring, allocate, slot_bytes


def rows_of(seed: int, count: int, seq_len: int, pieces_a_row: int) -> Rows:
    """Rows whose every number differs from seed to seed."""
    columns = np.arange(3 * count * seq_len, dtype=np.int32).reshape(3, count, seq_len) * 7 + seed
    pieces = np.arange(5 * count * pieces_a_row, dtype=np.int64).reshape(-1, 5) * 2**33 + seed
    first_piece = np.arange(count + 1, dtype=np.int64) * pieces_a_row
    return Rows(
        dict(zip(NAMES, columns, strict=True)), pieces, first_piece, np.full(count, seq_len - seed % 2, np.int64)
    )


def same(read: Rows, sequences: list[Sequence]) -> bool:
    columns = [np.stack([s.rows.columns[n][s.row] for s in sequences]) for n in NAMES]
    kinds = [c.dtype == np.int32 for c in read.columns.values()]
    pairs = zip(columns, read.columns.values(), strict=True)
    own = [Sequence(read, r) for r in range(len(read))]
    return (
        all(kinds)
        and all(np.array_equal(a, b) for a, b in pairs)
        and all(np.array_equal(a.pieces, b.pieces) for a, b in zip(own, sequences, strict=True))
        and [s.filled for s in own] == [s.filled for s in sequences]
    )


@pytest.mark.parametrize(("count", "seq_len"), [(1, 2), (3, 5), (2, 32), (8, 2048)])
@pytest.mark.parametrize("every_token_a_document", [False, True])
def test_every_slot_gives_back_what_was_written(count: int, seq_len: int, every_token_a_document: bool) -> None:
    descriptor, reader = allocate(count, seq_len)
    writer = Ring(descriptor, count, seq_len)  # as in the other process
    os.close(descriptor)
    for turn in range(3):
        written = []
        for slot in range(SLOTS):
            rows = rows_of(10 * turn + slot, count + 1, seq_len, seq_len if every_token_a_document else 1)
            sequences = [Sequence(rows, count - r) for r in range(count)]
            if not every_token_a_document and turn == 1:
                sequences[-1] = Sequence(padding_rows(1, 0, seq_len), 0)  # no piece at all
            writer.write(slot, sequences)
            written.append(sequences)
        read = [reader.read(slot) for slot in range(SLOTS)]
        for slot in range(SLOTS):  # a copy: what is written later leaves it alone
            writer.write(slot, [Sequence(rows_of(99, 1, seq_len, 1), 0)] * count)
        assert all(same(*pair) for pair in zip(read, written, strict=True))


def test_a_slot_takes_the_memory_of_what_is_in_it() -> None:
    descriptor, ring = allocate(8, 2048)
    assert os.fstat(descriptor).st_blocks == 0
    for slot in range(SLOTS):
        ring.write(slot, [Sequence(rows_of(slot, 8, 2048, 3), r) for r in range(8)])
    taken = 512 * os.fstat(descriptor).st_blocks
    os.close(descriptor)
    assert SLOTS * 12 * 8 * 2048 < taken < 1.1 * SLOTS * 12 * 8 * 2048 < SLOTS * slot_bytes(8, 2048) / 3


def test_memory_that_cannot_be_had_is_an_error_that_says_how_much_and_what_to_do() -> None:
    script = (
        "import resource; from torchtitan_zephon.run.ring import allocate\n"
        "from torchtitan_zephon import RunnerError\n"
        "import os; before = len(os.listdir('/proc/self/fd'))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))\n"
        "allocate(1, 512)\n"
        "try: allocate(8, 2048)\n"
        "except RunnerError as error: print(error)\n"
        "print(len(os.listdir('/proc/self/fd')) - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    message, leaked = done.stdout.splitlines()
    size = SLOTS * slot_bytes(8, 2048)
    assert message.startswith(f'runner = "process" shares {size:,} bytes')
    assert "File too large" in message
    assert 'a smaller local batch, or runner = "thread"' in message
    assert leaked == "1"  # the one that fits
