"""Documents that are rows already, such as those of a finished packing: each is one row, and none is cut or joined.

A document has ``seq_len`` + 1 tokens, or ``seq_len``: then its last token is a label only and the row's last position
is padding, which under causal attention trains the same. Other lengths are bad records and do not come here. Positions
count through the whole row.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .packers import NO_PIECE, NONE, Choice


class ReadyRows:
    """A row a document. ``carried`` is empty."""

    carries: ClassVar[bool] = False
    label_shifts: ClassVar[tuple[str, ...]] = ("document", "sequence")

    def __init__(self, seq_len: int, label_shift: str, carried: np.ndarray) -> None:
        pass

    def add(self, lengths: np.ndarray) -> Choice:
        """All of them."""
        rows, zeros = np.arange(len(lengths)), np.zeros(len(lengths), np.int64)
        return Choice(np.column_stack([rows, zeros, rows, zeros, lengths - 1]), NONE)

    def flush(self) -> Choice:
        """Nothing: no document is kept."""
        return Choice(NO_PIECE, NONE)

    finish = flush
