"""Which tokens of which documents fill which row: the packers, which only choose.

A packer is told the lengths of documents, in order, and answers with a ``Choice``. It sees no token and makes no
column: ``render`` does that for all of them. A new packer is one class and one line in ``PACKERS``.

``Wrap`` cuts the joined documents every ``seq_len`` inputs. No padding, every token used; a document may be cut in
two. What is left, under one row, is kept across chunks, flushes and checkpoints.
``FirstFit`` puts a document into the first open row with room. Documents stay whole (longer ones are cut into full
rows first) and a flush pads the open rows. Source: first-fit bin packing, Johnson 1973; at most 1.7 times the optimum.
It is a Python loop over documents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

OPEN_ROWS = 64
"""Rows that ``FirstFit`` keeps open; the fullest is closed and padded to open another."""
NONE = np.zeros(0, np.int64)
NO_PIECE = np.zeros((0, 5), np.int64)


class Choice(NamedTuple):
    """What a packer decides. Documents are numbered from 0: those kept before, then the new ones.

    placement: int64 [pieces, 5], columns row, column, document, begin, length, in order of rows and columns; a row
    has one piece or more. ``begin`` and ``length`` are the piece's input tokens within the document as it is held.
    kept: int64 [documents], ascending; documents of which tokens are still to be placed. ``used``: tokens at the front
    of the first one kept that are no longer needed. ``unused``: tokens now dropped that are neither input nor label.
    """

    placement: np.ndarray
    kept: np.ndarray
    used: int = 0
    unused: int = 0


class Packer(Protocol):
    """The contract. ``lengths``: tokens of the new documents, int64 [documents]."""

    def add(self, lengths: np.ndarray) -> Choice: ...
    def flush(self) -> Choice: ...
    def finish(self) -> Choice: ...


class Wrap:
    """Cut every ``seq_len`` inputs; keep the documents of the unfinished row.

    ``border`` is 1 where labels stay within documents: the last token of each is a label only. It is 0 where labels
    cross the borders (TorchTitan 0.2.2's text loader, which knows none): then one token a row is a label only.
    """

    def __init__(self, seq_len: int, label_shift: str, carried: np.ndarray) -> None:
        self._seq_len, self._border = seq_len, int(label_shift == "document")
        self._stride = seq_len + 1 - self._border
        self._lengths = carried

    def add(self, lengths: np.ndarray) -> Choice:
        """All rows that are now full."""
        self._lengths = np.concatenate([self._lengths, lengths])
        units = np.maximum(self._lengths - self._border, 0)
        rows = int(units.sum()) // self._stride
        unused = int(np.count_nonzero(lengths == 1)) if self._border else 0
        return self._cut(units, rows * self._stride, unused)

    def flush(self) -> Choice:
        """Nothing: what is kept is part of the state, so that nothing is padded in mid-stream."""
        return Choice(NO_PIECE, np.arange(len(self._lengths)))

    def finish(self) -> Choice:
        """The rest as one padded row; the end of a finite stream. A single token has no label and gives none."""
        units = np.maximum(self._lengths - self._border, 0)
        inputs = int(units.sum()) + self._border - 1
        placement = self._cut(units, inputs, 0).placement if inputs > 0 else NO_PIECE
        self._lengths = NONE
        return Choice(placement, NONE, unused=int(inputs == 0 and not self._border))

    def _cut(self, units: np.ndarray, stop: int, unused: int) -> Choice:
        """Rows of the first ``stop`` units, a unit being a token that needs a place; int64 [documents] of them."""
        ends = np.cumsum(units)
        starts = ends - units
        begins = np.union1d(starts[(units > 0) & (starts < stop)], np.arange(0, stop, self._stride))
        begins = begins[begins % self._stride < self._seq_len]  # the last place of a stride is a label only
        row, column = np.divmod(begins, self._stride)
        # A document without a unit starts where the next one does: of several, the last is the one that is cut.
        document = np.searchsorted(starts, begins, side="right") - 1
        end = np.minimum(np.append(begins[1:], stop), row * self._stride + self._seq_len)
        placement = np.column_stack([row, column, document, begins - starts[document], end - begins])
        kept = np.flatnonzero((ends > stop) & (units > 0))
        self._lengths, used = self._lengths[kept], 0
        if len(kept):
            used = max(0, stop - int(starts[kept[0]]))
            self._lengths[0] -= used
        return Choice(placement, kept, used, unused)


class _OpenRow:
    """``pieces``: document, begin and length of each; ``used``: their tokens."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, int, int]] = []
        self.used = 0


class FirstFit:
    """Whole documents, first open row with room. Keeps nothing across a flush, so ``carried`` is empty."""

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


PACKERS: dict[str, Callable[[int, str, np.ndarray], Packer]] = {"wrap": Wrap, "first_fit": FirstFit}
"""By the name that a recipe gives; made with seq_len, label_shift, and the lengths of the documents carried."""
