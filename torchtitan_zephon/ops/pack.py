"""Documents to rows of exactly ``seq_len`` tokens: the accumulator around a packer.

What flows in: ``Documents`` in order. What flows out: ``Rows``. The packer chooses (``packers``), ``render`` makes the
columns, and what is here holds the documents that still have tokens to place: the carry.
"""

from __future__ import annotations

import numpy as np

from ..records import Documents, Rows
from .packers import PACKERS, Choice
from .render import render


class Pack:
    """One lane's packing. Conserved: tokens in = inputs of rows + last + unused + carried.

    ``last_tokens``: tokens so far that are a label and no input. ``unused_tokens``: those that are neither; a
    document, or a lane's end, of one token has nothing to predict.
    """

    def __init__(self, algorithm: str, label_shift: str, padding_id: int, seq_len: int, carry: Documents) -> None:
        self.carry = carry
        self.last_tokens = self.unused_tokens = 0
        self._padding_id, self._seq_len = padding_id, seq_len
        self._packer = PACKERS[algorithm](seq_len, label_shift, np.diff(carry.offsets))

    def add(self, documents: Documents) -> Rows:
        """All rows that are now full."""
        choice = self._packer.add(np.diff(documents.offsets))
        return self._placed(Documents.join(self.carry, documents), choice)

    def flush(self) -> Rows:
        """What must leave where a segment ends; the rest is carried."""
        return self._placed(self.carry, self._packer.flush())

    def finish(self) -> Rows:
        """Everything left, the last row padded; the end of a finite stream."""
        return self._placed(self.carry, self._packer.finish())

    def _placed(self, documents: Documents, choice: Choice) -> Rows:
        rows = render(documents, choice.placement, self._padding_id, self._seq_len)
        self.carry = documents.select(choice.kept, choice.used)
        dropped = len(documents.ids) - len(self.carry.ids) - int(choice.placement[:, 4].sum())
        self.unused_tokens += choice.unused
        self.last_tokens += dropped - choice.unused
        return rows
