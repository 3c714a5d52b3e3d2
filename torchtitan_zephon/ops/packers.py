"""Which tokens of which documents fill which row: what a packer is told and what it answers.

A packer only chooses. It is told the lengths of documents, in order, and answers with a ``Choice``. It sees no token
and makes no column: ``render`` does that for all of them. A new packer is one file, and its name in ``pack.PACKERS``.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol

import numpy as np

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
    """The contract. ``lengths``: tokens of the new documents, int64 [documents].

    Made with seq_len, label_shift, and the lengths of the documents that were carried. ``carries``: whether it keeps
    documents across a flush. ``label_shifts``: those that its rows make sense with.
    """

    carries: ClassVar[bool]
    label_shifts: ClassVar[tuple[str, ...]]

    def __init__(self, seq_len: int, label_shift: str, carried: np.ndarray) -> None: ...
    def add(self, lengths: np.ndarray) -> Choice: ...
    def flush(self) -> Choice: ...
    def finish(self) -> Choice: ...
