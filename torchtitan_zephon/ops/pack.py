"""Documents to rows of exactly ``seq_len`` tokens; the accumulators that decide.

What flows in: ``Documents`` of token ids, in order. What flows out: ``Rows``. Inputs are a document's tokens but
the last, labels its tokens but the first, so nothing is predicted across a border; positions
restart at 0 with each document and at the start of each row (TorchTitan 0.3.0's text loader).
``WrapAcross`` alone predicts the first token of a document from the last of the one before.

``Wrap`` cuts the joined stream every ``seq_len`` tokens. No padding, every token used; a document
may be cut in two. What is left, under one row, is carried: across chunks, flushes, checkpoints.
``FirstFit`` puts a document into the first open row with room. Documents stay whole (longer ones
are cut into full rows first) and a flush pads the open rows. Source: first-fit bin packing,
Johnson 1973; at most 1.7 times the optimum. It is a Python loop over documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..records import IGNORE_LABEL, Documents, Rows

OPEN_ROWS = 64
"""Rows that ``FirstFit`` keeps open; the fullest is closed and padded to open another."""


class Packer(Protocol):
    """The accumulator contract: ``add`` in order, ``flush`` back to the initial state."""

    carry: Documents
    last_tokens: int
    """Tokens so far that are a label and no input."""
    unused_tokens: int
    """Tokens so far that are neither: a document, or a lane's end, of one token has nothing to predict."""

    def add(self, tokens: Documents) -> Rows: ...
    def flush(self) -> Rows: ...
    def finish(self) -> Rows: ...


class Wrap:
    """Cut every ``seq_len`` tokens. ``carry`` holds the pieces of the unfinished row."""

    def __init__(self, seq_len: int, padding_id: int, carry: Documents) -> None:
        self.seq_len, self.padding_id, self.carry = seq_len, padding_id, carry
        self.last_tokens = self.unused_tokens = 0

    def add(self, tokens: Documents) -> Rows:
        """All rows that are now full."""
        single = int(np.count_nonzero(np.diff(tokens.offsets) == 1))
        self.last_tokens += len(tokens.ids) - tokens.num_inputs - single
        self.unused_tokens += single
        joined = _Joined.of(Documents.join(self.carry, tokens))
        rows = joined.total // self.seq_len
        self.carry = joined.rest(rows * self.seq_len)
        return joined.rows(np.arange(rows, dtype=np.int64) * self.seq_len, self.seq_len, self.seq_len, self.padding_id)

    def flush(self) -> Rows:
        """Nothing: the carry is part of the state, so that nothing is padded in mid-stream."""
        return no_rows(self.seq_len)

    def finish(self) -> Rows:
        """The carry as one padded row; the end of a finite stream."""
        joined, self.carry = _Joined.of(self.carry), Documents.empty()
        starts = np.zeros(int(joined.total > 0), dtype=np.int64)
        return joined.rows(starts, joined.total, self.seq_len, self.padding_id)


class WrapAcross:
    """Cut every ``seq_len`` + 1 tokens: inputs are all but the last, labels all but the first.

    The labels of TorchTitan 0.2.2's text loader, which knows no borders. One token a row is a label only.
    """

    def __init__(self, seq_len: int, padding_id: int, carry: Documents) -> None:
        self.seq_len, self.padding_id, self.carry = seq_len, padding_id, carry
        self.last_tokens = self.unused_tokens = 0

    def add(self, tokens: Documents) -> Rows:
        """All rows that are now full."""
        joined = Documents.join(self.carry, tokens)
        n, size = len(joined.ids) // (self.seq_len + 1), self.seq_len + 1
        self.last_tokens += n
        self.carry = _tail(joined, n * size)
        ids = joined.ids[: n * size].reshape(n, size)
        return self._rows(joined, ids[:, :-1].copy(), ids[:, 1:].copy())

    def flush(self) -> Rows:
        """Nothing: the carry is part of the state, so that nothing is padded in mid-stream."""
        return no_rows(self.seq_len)

    def finish(self) -> Rows:
        """The carry as one padded row; the end of a finite stream. A single token has no label and gives none."""
        joined, self.carry = self.carry, Documents.empty()
        filled = len(joined.ids) - 1
        self.last_tokens += filled >= 1
        self.unused_tokens += filled == 0
        if filled < 1:
            return no_rows(self.seq_len)
        row = padding_row(self.seq_len, self.padding_id)
        row.inputs[0, :filled], row.labels[0, :filled] = joined.ids[:-1], joined.ids[1:]
        rows = self._rows(joined, row.inputs, row.labels, filled)
        rows.filled[0] = filled
        return rows

    def _rows(self, joined: Documents, inputs: np.ndarray, labels: np.ndarray, filled: int = -1) -> Rows:
        """``Rows`` with positions and pieces from the borders in ``joined``; ``filled``: of a single, last row."""
        n, s = inputs.shape
        starts = joined.offsets[:-1][np.diff(joined.offsets) > 0]
        row, column = starts // (s + 1), starts % (s + 1)
        inside = (row < n) & (column < (s if filled < 0 else filled))  # a label only begins no piece
        begins = np.union1d(row[inside] * s + column[inside], np.arange(n, dtype=np.int64) * s)
        document = np.searchsorted(joined.offsets, begins // s * (s + 1) + begins % s, side="right") - 1
        positions = _positions(begins, n * s if filled < 0 else filled, n * s)
        pieces = np.column_stack([begins % s, joined.origin[document]])
        first_piece = np.searchsorted(begins, np.arange(n + 1) * s)
        return Rows(inputs, labels, positions.reshape(n, s), pieces, first_piece, np.full(n, s, np.int64))


class FirstFit:
    """Whole documents, first open row with room. Carries nothing across a flush."""

    def __init__(self, seq_len: int, padding_id: int) -> None:
        self.seq_len, self.padding_id, self.carry = seq_len, padding_id, Documents.empty()
        self.last_tokens = self.unused_tokens = 0
        self._open: list[_OpenRow] = []

    def add(self, tokens: Documents) -> Rows:
        """Rows that are full, or that were closed to make room, in the order of closing."""
        single = int(np.count_nonzero(np.diff(tokens.offsets) == 1))
        self.last_tokens += len(tokens.ids) - tokens.num_inputs - single
        self.unused_tokens += single
        closed: list[_OpenRow] = []
        offsets = tokens.offsets.tolist()
        for d in range(len(offsets) - 1):
            begin, end = offsets[d], offsets[d + 1] - 1  # the last token is a label only
            while end - begin > 0:
                length = min(end - begin, self.seq_len)
                self._place(_Piece(tokens, d, begin, length), closed)
                begin += length
        return self._rows(closed)

    def _place(self, piece: _Piece, closed: list[_OpenRow]) -> None:
        row = next((r for r in self._open if r.used + piece.length <= self.seq_len), None)
        if row is None:
            if len(self._open) == OPEN_ROWS:
                fullest = max(range(OPEN_ROWS), key=lambda i: self._open[i].used)
                closed.append(self._open.pop(fullest))
            row = _OpenRow([], 0)
            self._open.append(row)
        row.pieces.append(piece)
        row.used += piece.length
        if row.used == self.seq_len:
            self._open.remove(row)
            closed.append(row)

    def flush(self) -> Rows:
        """The open rows, padded, in the order they were opened."""
        rows, self._open = self._rows(self._open), []
        return rows

    finish = flush

    def _rows(self, closed: list[_OpenRow]) -> Rows:
        if not closed:
            return no_rows(self.seq_len)
        n, s = len(closed), self.seq_len
        inputs, labels = np.full((n, s), self.padding_id, np.int32), np.full((n, s), IGNORE_LABEL, np.int32)
        positions, pieces = np.zeros((n, s), np.int32), []
        first_piece, filled = np.zeros(n + 1, np.int64), np.zeros(n, np.int64)
        for r, row in enumerate(closed):
            at = 0
            for piece in row.pieces:
                ids, end = piece.tokens.ids, at + piece.length
                inputs[r, at:end] = ids[piece.begin : piece.begin + piece.length]
                labels[r, at:end] = ids[piece.begin + 1 : piece.begin + piece.length + 1]
                positions[r, at:end] = np.arange(piece.length)
                pieces.append((at, *piece.tokens.origin[piece.document].tolist()))
                at = end
            positions[r, at:] = np.arange(s - at)
            first_piece[r + 1], filled[r] = len(pieces), at
        return Rows(inputs, labels, positions, np.array(pieces, np.int64), first_piece, filled)


def _tail(tokens: Documents, begin: int) -> Documents:
    """``tokens`` from token ``begin`` on; the first document may be the end of one."""
    if begin == len(tokens.ids):
        return Documents.empty()
    d = int(np.searchsorted(tokens.offsets, begin, side="right")) - 1
    kept = np.diff(tokens.offsets[d:]) > 0
    offsets = np.append(tokens.offsets[d:-1][kept], len(tokens.ids)) - begin
    offsets[0] = 0
    return Documents({}, {"ids": tokens.ids[begin:].copy()}, offsets, tokens.origin[d:][kept])


@dataclass(slots=True)
class _Piece:
    tokens: Documents
    document: int
    begin: int
    length: int


@dataclass(slots=True, eq=False)
class _OpenRow:
    pieces: list[_Piece]
    used: int


@dataclass(slots=True)
class _Joined:
    """Documents laid end to end as inputs and labels; ``starts``: int64 [documents], of inputs."""

    tokens: Documents
    starts: np.ndarray
    total: int

    @classmethod
    def of(cls, tokens: Documents) -> _Joined:
        lengths = np.maximum(np.diff(tokens.offsets) - 1, 0)
        starts = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=starts[1:])
        return cls(tokens, starts[:-1], int(starts[-1]))

    def rest(self, used: int) -> Documents:
        """The documents from input position ``used`` on; the first may be the end of one."""
        t = self.tokens
        if used == self.total:
            return Documents.empty()
        d = int(np.searchsorted(self.starts, used, side="right")) - 1
        begin = int(t.offsets[d]) + used - int(self.starts[d])
        offsets = t.offsets[d:] - begin
        offsets[0] = 0
        kept = np.diff(offsets) > 1  # a document of under two tokens has no input to give any more
        if kept.all():
            return Documents({}, {"ids": t.ids[begin:].copy()}, offsets, t.origin[d:])
        lengths = np.diff(offsets)
        ids = t.ids[begin:][np.repeat(kept, lengths)]
        return Documents({}, {"ids": ids}, np.concatenate([[0], np.cumsum(lengths[kept])]), t.origin[d:][kept])

    def rows(self, row_starts: np.ndarray, filled: int, seq_len: int, padding_id: int) -> Rows:
        """Rows at ``row_starts``; all are full, except that a single one may have ``filled`` < seq_len."""
        n, t = len(row_starts), self.tokens
        if not n:
            return no_rows(seq_len)
        size, used = n * seq_len, (n - 1) * seq_len + filled
        empty = np.diff(t.offsets) == 0
        is_input, is_label = np.ones(len(t.ids), bool), np.ones(len(t.ids), bool)
        is_input[t.offsets[1:][~empty] - 1] = False
        is_label[t.offsets[:-1][~empty]] = False
        inputs, labels = t.ids[is_input][:used], t.ids[is_label][:used]
        if used < size:
            inputs = np.concatenate([inputs, np.full(size - used, padding_id, np.int32)])
            labels = np.concatenate([labels, np.full(size - used, IGNORE_LABEL, np.int32)])
        # A document of under two tokens has no input; of documents at one start the last is real.
        begins = np.union1d(self.starts[self.starts < used], row_starts)
        document = np.searchsorted(self.starts, begins, side="right") - 1
        positions = _positions(begins, used, size)
        pieces = np.column_stack([begins % seq_len, t.origin[document]])
        first_piece = np.searchsorted(begins, np.append(row_starts, size))
        fill = np.full(n, seq_len, np.int64)
        fill[-1] = filled
        shape = (n, seq_len)
        return Rows(inputs.reshape(shape), labels.reshape(shape), positions.reshape(shape), pieces, first_piece, fill)


def _positions(begins: np.ndarray, used: int, size: int) -> np.ndarray:
    """int32 [size]: each place's distance from the last of ``begins``; the padding from ``used`` on counts from 0."""
    borders = np.append(begins, used) if used < size else begins
    return np.arange(size, dtype=np.int32) - np.repeat(borders.astype(np.int32), np.diff(borders, append=size))


def no_rows(seq_len: int) -> Rows:
    """No row."""
    nothing = np.zeros((0, seq_len), np.int32)
    return Rows(nothing, nothing, nothing, np.zeros((0, 5), np.int64), np.zeros(1, np.int64), np.zeros(0, np.int64))


def padding_row(seq_len: int, padding_id: int) -> Rows:
    """One row of padding only, for lanes that ran dry before the others."""
    shape = (1, seq_len)
    return Rows(
        np.full(shape, padding_id, np.int32),
        np.full(shape, IGNORE_LABEL, np.int32),
        np.arange(seq_len, dtype=np.int32).reshape(shape),
        np.zeros((0, 5), np.int64),
        np.zeros(2, np.int64),
        np.zeros(1, np.int64),
    )
