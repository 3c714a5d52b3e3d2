"""Packing against a reference that is slow and obviously right: plain lists, one token at a time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.strategies import Document, cuts, documents, tokens_of
from torchtitan_zephon.ops import first_fit as first_fit_module
from torchtitan_zephon.ops.pack import Pack, Packing
from torchtitan_zephon.ops.render import padding_rows, render
from torchtitan_zephon.records import IGNORE_LABEL, Documents, Rows

PADDING = 7
SEQ_LENS = st.integers(2, 9)


def packing(seq_len: int, algorithm: str = "wrap") -> Packing:
    return Packing(algorithm=algorithm, label_shift="document", seq_len=seq_len, padding_id=PADDING)


def wrap(seq_len: int, carry: Documents | None = None) -> Pack:
    return Pack(packing(seq_len), Documents.empty() if carry is None else carry)


def first_fit(seq_len: int) -> Pack:
    return Pack(packing(seq_len, "first_fit"), Documents.empty())


@dataclass
class Row:
    """One row of the reference. ``pieces``: first column, source, shard, record, part."""

    inputs: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    pieces: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    filled: int = 0

    def put(self, document: Document, i: int, starts_piece: bool) -> None:
        """Token ``i`` of ``document`` as an input, the next as its label."""
        if starts_piece:
            self.pieces.append((len(self.inputs), *document.origin))
        self.inputs.append(document.ids[i])
        self.labels.append(document.ids[i + 1])
        self.positions.append(0 if starts_piece else self.positions[-1] + 1)
        self.filled += 1

    def pad(self, seq_len: int) -> Row:
        """Fill up with padding, whose positions count from 0 as a document's do."""
        missing = seq_len - self.filled
        self.inputs += [PADDING] * missing
        self.labels += [IGNORE_LABEL] * missing
        self.positions += list(range(missing))
        return self


def wrap_reference(items: list[Document], seq_len: int) -> list[Row]:
    """All rows; the last may be under ``seq_len`` long, and is what is carried."""
    rows: list[Row] = []
    for document in items:
        for i in range(len(document.ids) - 1):
            new_row = not rows or rows[-1].filled == seq_len
            if new_row:
                rows.append(Row())
            rows[-1].put(document, i, starts_piece=new_row or i == 0)
    return rows


def first_fit_reference(items: list[Document], seq_len: int, most_open: int) -> tuple[list[Row], list[Row]]:
    """Closed rows in the order of closing, and the open ones in the order of opening."""
    closed: list[Row] = []
    open_rows: list[Row] = []
    for document in items:
        inputs = range(len(document.ids) - 1)
        for begin in range(0, len(inputs), seq_len):
            piece = inputs[begin : begin + seq_len]
            fitting = [r for r in open_rows if r.filled + len(piece) <= seq_len]
            if not fitting and len(open_rows) == most_open:
                fullest = sorted(open_rows, key=lambda r: -r.filled)[0]
                open_rows = [r for r in open_rows if r is not fullest]
                closed.append(fullest)
            if not fitting:
                fitting = [Row()]
                open_rows.append(fitting[0])
            for i in piece:
                fitting[0].put(document, i, starts_piece=i == begin)
            if fitting[0].filled == seq_len:
                open_rows = [r for r in open_rows if r is not fitting[0]]
                closed.append(fitting[0])
    return [r.pad(seq_len) for r in closed], [r.pad(seq_len) for r in open_rows]


def rows_of(rows: Rows) -> list[Row]:
    """``rows`` as the reference has them."""
    assert rows.columns["input"].dtype == rows.columns["labels"].dtype == rows.columns["positions"].dtype == np.int32
    assert rows.columns["input"].shape == rows.columns["labels"].shape == rows.columns["positions"].shape
    return [
        Row(
            rows.columns["input"][r].tolist(),
            rows.columns["labels"][r].tolist(),
            rows.columns["positions"][r].tolist(),
            [tuple(p) for p in rows.pieces[rows.first_piece[r] : rows.first_piece[r + 1]].tolist()],
            int(rows.filled[r]),
        )
        for r in range(len(rows))
    ]


def add_all(packer: Pack, chunks: list[list[Document]]) -> list[Row]:
    return [row for chunk in chunks for row in rows_of(packer.add(tokens_of(chunk)))]


def useful(items: list[Document]) -> int:
    """Tokens that are an input: all but the last of each document."""
    return sum(max(0, len(d.ids) - 1) for d in items)


def document(length: int, record: int = 0, first: int = 100) -> Document:
    return Document(list(range(first, first + length)), (0, 0, record, 0))


@given(st.data(), SEQ_LENS)
@settings(max_examples=200)
def test_wrap_gives_the_rows_of_the_reference(data: st.DataObject, seq_len: int) -> None:
    items = data.draw(documents(seq_len))
    packer = wrap(seq_len)
    rows = add_all(packer, data.draw(cuts(items)))
    expected = wrap_reference(items, seq_len)
    unfinished = [expected.pop()] if expected and expected[-1].filled < seq_len else []
    assert rows == expected
    check_carry(packer.held, unfinished, seq_len)
    assert len(packer.flush()) == 0
    assert rows_of(packer.finish()) == [row.pad(seq_len) for row in unfinished]
    assert rows_of(packer.finish()) == []


def check_carry(carry: Documents, unfinished: list[Row], seq_len: int) -> None:
    """The carry holds the inputs and labels of the unfinished row, piece by piece, and no row of tokens more."""
    pieces = [
        (carry.ids[a:b].tolist(), tuple(origin))
        for (a, b), origin in zip(itertools.pairwise(carry.offsets.tolist()), carry.origin.tolist(), strict=True)
        if b - a > 1
    ]
    assert [i for ids, _ in pieces for i in ids[:-1]] == [i for row in unfinished for i in row.inputs]
    assert [i for ids, _ in pieces for i in ids[1:]] == [i for row in unfinished for i in row.labels]
    assert [origin for _, origin in pieces] == [p[1:] for row in unfinished for p in row.pieces]
    assert carry.offsets[0] == 0
    assert carry.offsets[-1] == len(carry.ids)


@given(st.data(), SEQ_LENS)
def test_wrap_rows_do_not_depend_on_how_documents_are_cut_into_chunks(data: st.DataObject, seq_len: int) -> None:
    items = data.draw(documents(seq_len))
    one, other = (wrap(seq_len) for _ in range(2))
    assert add_all(one, data.draw(cuts(items))) == add_all(other, data.draw(cuts(items)))
    assert rows_of(one.finish()) == rows_of(other.finish())


@given(st.data(), SEQ_LENS)
def test_wrap_goes_on_from_a_carry_as_if_it_had_not_stopped(data: st.DataObject, seq_len: int) -> None:
    chunks = data.draw(cuts(data.draw(documents(seq_len))))
    whole = wrap(seq_len)
    expected = add_all(whole, chunks)
    rows, carry = [], Documents.empty()
    for chunk in chunks:
        packer = wrap(seq_len, carry)
        rows += add_all(packer, [chunk])
        carry = packer.held
    assert rows == expected


def test_a_carry_does_not_grow_with_documents_that_have_no_input() -> None:
    packer = wrap(8)
    packer.add(tokens_of([document(4)]))
    for _ in range(100):
        packer.add(tokens_of([document(1), document(0)]))
    assert len(packer.held.ids) <= 8
    assert len(packer.held.origin) == 1


@given(st.data(), SEQ_LENS, st.sampled_from([1, 2, 3, first_fit_module.OPEN_ROWS]))
@settings(max_examples=200)
def test_first_fit_gives_the_rows_of_the_reference(data: st.DataObject, seq_len: int, most_open: int) -> None:
    items = data.draw(documents(seq_len))
    with mock.patch.object(first_fit_module, "OPEN_ROWS", most_open):
        packer = first_fit(seq_len)
        rows = add_all(packer, data.draw(cuts(items)))
    closed, still_open = first_fit_reference(items, seq_len, most_open)
    assert rows == closed
    assert rows_of(packer.flush()) == still_open
    assert len(packer.flush()) == 0
    assert len(packer.held.ids) == 0


def test_first_fit_keeps_64_rows_open() -> None:
    items = [document(4, record) for record in range(70)]  # 3 inputs each, so no two fit a row of 5
    packer = first_fit(5)
    assert len(packer.add(tokens_of(items))) == 6
    assert len(packer.flush()) == 64


@given(st.data(), SEQ_LENS, st.sampled_from(["wrap", "first_fit"]))
def test_every_token_but_the_last_of_a_document_is_an_input_once(
    data: st.DataObject, seq_len: int, algorithm: str
) -> None:
    items = data.draw(documents(seq_len))
    packer = wrap(seq_len) if algorithm == "wrap" else first_fit(seq_len)
    rows = add_all(packer, data.draw(cuts(items))) + rows_of(packer.finish())
    pairs = [pair for row in rows for pair in zip(row.inputs[: row.filled], row.labels[: row.filled], strict=True)]
    assert sorted(pairs) == sorted(pair for d in items for pair in itertools.pairwise(d.ids))
    assert sum(row.filled for row in rows) == useful(items)
    for row in rows:
        assert set(row.labels[row.filled :]) <= {IGNORE_LABEL}


@pytest.mark.parametrize("lengths", [[], [0], [1], [2], [0, 1, 2], [1, 1, 1], [5], [9], [13], [5, 5], [6, 1, 4], [41]])
@pytest.mark.parametrize("algorithm", ["wrap", "first_fit"])
def test_documents_of_chosen_lengths_fill_rows_of_four(lengths: list[int], algorithm: str) -> None:
    items = [document(n, record=k, first=100 * (k + 1)) for k, n in enumerate(lengths)]
    if algorithm == "wrap":
        packer = wrap(4)
        expected = wrap_reference(items, 4)
        full, rest = [r for r in expected if r.filled == 4], [r.pad(4) for r in expected if r.filled < 4]
    else:
        packer = first_fit(4)
        full, rest = first_fit_reference(items, 4, 64)
    assert add_all(packer, [items]) == full
    assert rows_of(packer.finish()) == rest


def test_a_document_that_ends_at_a_row_end_leaves_no_carry() -> None:
    packer = wrap(4)
    assert len(packer.add(tokens_of([document(9)]))) == 2
    assert len(packer.held.ids) == len(packer.held.origin) == 0


def test_a_row_as_it_stands_on_paper() -> None:
    rows = wrap(6).add(tokens_of([Document([1, 2, 3], (0, 0, 5, 0)), document(6, 9)]))
    assert rows.columns["input"].tolist() == [[1, 2, 100, 101, 102, 103]]
    assert rows.columns["labels"].tolist() == [[2, 3, 101, 102, 103, 104]]
    assert rows.columns["positions"].tolist() == [[0, 1, 0, 1, 2, 3]]
    assert rows.pieces.tolist() == [[0, 0, 0, 5, 0], [2, 0, 0, 9, 0]]


def test_a_padding_row_is_masked_whole() -> None:
    assert rows_of(padding_rows(1, PADDING, 4)) == [Row().pad(4)]
    assert rows_of(render(Documents.empty(), np.zeros((0, 5), np.int64), PADDING, 4)) == []


@given(st.data())
def test_a_carry_is_under_a_row_of_inputs(data: st.DataObject) -> None:
    packer = wrap(5)
    for chunk in data.draw(cuts(data.draw(documents(5)))):
        packer.add(tokens_of([d for d in chunk if len(d.ids) > 1]))
        assert len(packer.held.ids) - len(packer.held.origin) < 5
