"""The joined documents, cut every ``seq_len`` inputs: no padding, every token used; a document may be cut in two.

What is left, under one row, is kept across chunks, flushes and checkpoints.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .packers import NO_PIECE, NONE, Choice


class Wrap:
    """Cut every ``seq_len`` inputs; keep the documents of the unfinished row.

    ``border`` is 1 where labels stay within documents: the last token of each is a label only. It is 0 where labels
    cross the borders (TorchTitan 0.2.2's text loader, which knows none): then one token a row is a label only.
    """

    carries: ClassVar[bool] = True
    label_shifts: ClassVar[tuple[str, ...]] = ("document", "sequence")

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
