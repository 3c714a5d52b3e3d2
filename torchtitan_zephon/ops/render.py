"""From documents and a packer's placement to rows: every column of the output.

What flows in: ``Documents`` and a placement (``packers.Choice``). What flows out: ``Rows`` with all of ``COLUMNS``.
A new column is one function, in a file of its own, and one line in that table. Inputs are a piece's tokens and
labels the tokens behind them, so a packer alone decides whether labels cross the borders of documents. Positions
restart at 0 with each piece: with each document and at the start of each row (TorchTitan 0.3.0's text loader).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from ..records import IGNORE_LABEL, Documents, Rows, Slices
from .packers import NO_PIECE


class Column(NamedTuple):
    """An output column, int32 [rows, seq_len].

    ``values``: from documents one value for each of their tokens, int32 [tokens], of which a piece takes those of its
    inputs; None numbers the places of a piece from 0, and those of the padding too. ``padding``: the value where there
    is no piece; "token" is the token that pads inputs.
    """

    name: str
    values: Callable[[Documents], np.ndarray] | None
    padding: int | Literal["token"]


def _input(documents: Documents) -> np.ndarray:
    return documents.ids


def _labels(documents: Documents) -> np.ndarray:
    return documents.ids[1:]


COLUMNS = (
    Column("input", _input, "token"),
    Column("labels", _labels, IGNORE_LABEL),
    Column("positions", None, 0),
)
"""Every column of a batch."""


def render(documents: Documents, placement: np.ndarray, padding_id: int, seq_len: int) -> Rows:
    """The rows that ``placement``, int64 [pieces, 5], makes of ``documents``. ``padding_id``: the input of padding."""
    return _rows(documents, placement, int(placement[-1, 0]) + 1 if len(placement) else 0, padding_id, seq_len)


def padding_rows(rows: int, padding_id: int, seq_len: int) -> Rows:
    """Rows of padding only, for lanes that ran dry before the others."""
    return _rows(Documents.empty(), NO_PIECE, rows, padding_id, seq_len)


def _rows(documents: Documents, placement: np.ndarray, rows: int, padding_id: int, seq_len: int) -> Rows:
    row, column, document, begin, lengths = placement.T
    first_piece = np.searchsorted(row, np.arange(rows + 1))
    filled = np.bincount(row, lengths, rows).astype(np.int64)
    starts = documents.offsets[document] + begin
    if len(short := np.flatnonzero(filled < seq_len)):  # padding is a piece too, of what stands before the documents
        starts = np.insert(starts + seq_len, first_piece[short + 1], 0)
        lengths = np.insert(lengths, first_piece[short + 1], seq_len - filled[short])
    slices = Slices(starts, lengths)
    columns = {}
    for name, values, padding in COLUMNS:
        if values is None:
            found = slices.count()
        else:
            flat = values(documents)
            if len(short):
                before = np.full(seq_len, padding_id if padding == "token" else padding, np.int32)
                flat = np.concatenate([before, flat])
            found = slices.of(flat)
        columns[name] = found.reshape(rows, seq_len)
    return Rows(columns, np.column_stack([column, documents.origin[document]]), first_piece, filled)
