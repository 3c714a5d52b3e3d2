"""A document goes into the first open row with room. Documents stay whole; longer ones are cut into full rows first.

A flush pads the open rows. Source: first-fit bin packing, Johnson 1973; at most 1.7 times the optimum. It is a Python
loop over documents.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .packers import NONE, Choice

OPEN_ROWS = 64
"""Rows that are kept open; the fullest is closed and padded to open another."""


class _OpenRow:
    """``pieces``: document, begin and length of each; ``used``: their tokens."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, int, int]] = []
        self.used = 0


class FirstFit:
    """Whole documents, first open row with room. ``carried`` is empty."""

    carries: ClassVar[bool] = False
    label_shifts: ClassVar[tuple[str, ...]] = ("document",)

    def __init__(self, seq_len: int, label_shift: str, carried: np.ndarray) -> None:
        self._seq_len = seq_len
        self._open: list[_OpenRow] = []
        self._held = len(carried)

    def add(self, lengths: np.ndarray) -> Choice:
        """Rows that are full, or that were closed to make room, in the order of closing."""
        closed: list[_OpenRow] = []
        for document, length in enumerate(lengths.tolist(), self._held):
            for begin in range(0, length - 1, self._seq_len):  # the last token is a label only
                self._place((document, begin, min(length - 1 - begin, self._seq_len)), closed)
        kept = sorted({document for row in self._open for document, _, _ in row.pieces})
        choice = Choice(_placement(closed), np.array(kept, np.int64), unused=int(np.count_nonzero(lengths == 1)))
        number = {document: k for k, document in enumerate(kept)}
        for row in self._open:
            row.pieces = [(number[document], begin, length) for document, begin, length in row.pieces]
        self._held = len(kept)
        return choice

    def flush(self) -> Choice:
        """The open rows, padded, in the order they were opened."""
        rows, self._open, self._held = self._open, [], 0
        return Choice(_placement(rows), NONE)

    finish = flush

    def _place(self, piece: tuple[int, int, int], closed: list[_OpenRow]) -> None:
        row = next((r for r in self._open if r.used + piece[2] <= self._seq_len), None)
        if row is None:
            if len(self._open) == OPEN_ROWS:
                fullest = max(range(OPEN_ROWS), key=lambda i: self._open[i].used)
                closed.append(self._open.pop(fullest))
            row = _OpenRow()
            self._open.append(row)
        row.pieces.append(piece)
        row.used += piece[2]
        if row.used == self._seq_len:
            self._open.remove(row)
            closed.append(row)


def _placement(rows: list[_OpenRow]) -> np.ndarray:
    found = []
    for r, row in enumerate(rows):
        column = 0
        for piece in row.pieces:
            found.append((r, column, *piece))
            column += piece[2]
    return np.array(found, np.int64).reshape(-1, 5)
