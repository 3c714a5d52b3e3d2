"""Labels within the whole sequence, against TorchTitan 0.2.2's rule written out one token at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.ops.test_pack import PADDING, SEQ_LENS, Row, add_all, document, rows_of
from tests.strategies import Document, cuts, documents, tokens_of
from torchtitan_zephon.ops.pack import Pack, Packing
from torchtitan_zephon.records import IGNORE_LABEL, Documents


def packing(seq_len: int) -> Packing:
    return Packing(algorithm="wrap", label_shift="sequence", seq_len=seq_len, padding_id=PADDING)


def reference(items: list[Document], seq_len: int) -> tuple[list[Row], list[Row]]:
    """Full rows, and what a finite stream gives of the rest: at most one row, padded."""
    stream = [(token, d, i == 0) for d in items for i, token in enumerate(d.ids)]
    full, rest = [], []
    for begin in range(0, len(stream), seq_len + 1):
        taken = stream[begin : begin + seq_len + 1]
        row = Row()
        for k, (token, d, first) in enumerate(taken[:-1]):
            if first or k == 0:
                row.pieces.append((k, *d.origin))
            row.inputs.append(token)
            row.labels.append(taken[k + 1][0])
            row.positions.append(0 if first or k == 0 else row.positions[-1] + 1)
            row.filled += 1
        if row.filled == seq_len:
            full.append(row)
        elif row.filled:
            rest.append(row.pad(seq_len))
    return full, rest


@given(st.data(), SEQ_LENS)
@settings(max_examples=200)
def test_rows_are_the_reference_s_however_chunks_and_carries_fall(data: st.DataObject, seq_len: int) -> None:
    items = data.draw(documents(seq_len))
    full, rest = reference(items, seq_len)
    rows, carry, last = [], Documents.empty(), 0
    for chunk in data.draw(cuts(items)):
        packer = Pack(packing(seq_len), carry)
        rows += add_all(packer, [chunk])
        carry, last = packer.held, last + packer.last_tokens
        assert len(carry.ids) <= seq_len
        assert len(packer.flush()) == 0
    assert rows == full
    packer = Pack(packing(seq_len), carry)
    assert rows_of(packer.finish()) == rest
    assert rows_of(packer.finish()) == []
    tokens = sum(len(d.ids) for d in items)
    assert tokens == sum(row.filled for row in full + rest) + last + packer.last_tokens + packer.unused_tokens
    assert packer.unused_tokens == (tokens % (seq_len + 1) == 1)


@pytest.mark.parametrize("length", range(13))
def test_one_document_of_every_length_up_to_two_rows_and_a_bit(length: int) -> None:
    packer = Pack(packing(4), Documents.empty())
    full, rest = reference([document(length)], 4)
    assert add_all(packer, [[document(length)]]) == full
    assert rows_of(packer.finish()) == rest


def test_a_border_is_predicted_and_marked_by_its_position() -> None:
    rows = Pack(packing(5), Documents.empty()).add(tokens_of([document(3, first=10), document(9, 1, first=20)]))
    assert rows.columns["input"].tolist() == [[10, 11, 12, 20, 21], [23, 24, 25, 26, 27]]
    assert rows.columns["labels"].tolist() == [[11, 12, 20, 21, 22], [24, 25, 26, 27, 28]]
    assert rows.columns["positions"].tolist() == [[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]]
    assert not np.any(rows.columns["labels"] == IGNORE_LABEL)
