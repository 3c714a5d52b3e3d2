"""Documents in columns: another order, and two of them joined."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, strategies as st

from tests.strategies import Document, documents, texts_at, tokens_of
from torchtitan_zephon.records import Documents


def rows(documents: Documents) -> list[Document]:
    """The documents one by one."""
    spans = itertools.pairwise(documents.offsets.tolist())
    places = documents.origin.tolist()
    return [Document(documents.ids[a:b].tolist(), tuple(place)) for (a, b), place in zip(spans, places, strict=True)]


@given(st.data())
def test_documents_in_another_order_keep_their_ids_and_origins(data: st.DataObject) -> None:
    items = data.draw(documents(6))
    order = data.draw(st.permutations(range(len(items))))
    found = tokens_of(items).take(np.array(order, np.int64))
    assert rows(found) == [items[i] for i in order]
    assert found.ids.dtype == np.int32 and found.offsets.dtype == found.origin.dtype == np.int64


def test_texts_in_another_order_keep_their_origins() -> None:
    found = texts_at([(0, 1, 10, 0), (0, 1, 20, 0), (0, 1, 30, 0)], ["a", "bc", "d"]).take(np.array([2, 0, 1]))
    assert found.values == {"text": ["d", "a", "bc"]}
    assert found.origin[:, 2].tolist() == [30, 10, 20]
    assert found.cut(1).values == {"text": ["d", "a", "b"]}


@given(documents(6), documents(6))
def test_joined_documents_stand_one_behind_the_other(first: list[Document], second: list[Document]) -> None:
    assert rows(Documents.join(tokens_of(first), tokens_of(second))) == first + second
    assert rows(Documents.join(Documents.empty(), tokens_of(second))) == second
