"""The field that is trained on: what is bad is given beside what is good, and empty documents are counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.strategies import texts_at
from torchtitan_zephon.bad_records import BadRecord, Unreadable
from torchtitan_zephon.ops import fields
from torchtitan_zephon.records import RECORD, Documents, origin_of


def records(*values: Any) -> Documents:
    return Documents.of_values({RECORD: [{"f": value} for value in values]}, origin_of(1, 2, range(len(values))))


def ids(lists: list[list[int]], kind: type) -> Documents:
    tokens = {"ids": np.array([i for some in lists for i in some], kind)}
    return Documents({}, tokens, np.cumsum([0, *map(len, lists)]), origin_of(0, 0, range(len(lists))))


def test_texts_are_kept_but_the_empty_and_those_that_are_none() -> None:
    documents, bad = fields.checked(records("a", "", None, 5, "b"), "f", "text")
    assert documents.values == {"text": ["a", "b"]}
    assert documents.origin.tolist() == [[1, 2, 0, 0], [1, 2, 4, 0]]
    assert (documents.read.empty, documents.read.documents) == (1, 2)
    assert [(record.kind, record.place) for record in bad] == [("field", 2), ("field", 3)]


@pytest.mark.parametrize("kind", [np.int16, np.int64, np.uint64])
def test_ids_of_any_width_become_int32(kind: type) -> None:
    documents, bad = fields.checked(ids([[1, 2], [], [3]], kind), "f", "ids")
    assert (documents.ids.tolist(), documents.ids.dtype, documents.offsets.tolist()) == ([1, 2, 3], np.int32, [0, 2, 3])
    assert documents.origin[:, 2].tolist() == [0, 2]
    assert (documents.read.empty, documents.read.documents, bad) == (1, 2, [])


def test_every_document_with_a_number_that_is_no_id_is_named_with_its_first() -> None:
    documents, bad = fields.checked(ids([[1], [2, -3, -4], [5], [2**31]], np.int64), "f", "ids")
    assert documents.ids.tolist() == [1, 5]
    assert [record.problem for record in bad] == [
        f"field 'f' holds {n}, which is no token id: they are 0 to 2,147,483,647" for n in (-3, 2**31)
    ]
    documents, bad = fields.checked(ids([[1], [2, 7, 6], [5]], np.int64), "f", "ids", 5)
    assert documents.ids.tolist() == [1, 5] and "holds 7, which is no token id: they are 0 to 5" in bad[0].problem


def test_lists_that_functions_made_become_ids_whatever_holds_them() -> None:
    documents, bad = fields.checked(records([1, 2], (3,), np.array([4], np.int16), [], [True], "5", [1.5]), "f", "ids")
    assert (documents.ids.tolist(), documents.offsets.tolist()) == ([1, 2, 3, 4], [0, 2, 3, 4])
    assert documents.read.empty == 1
    assert [record.place for record in bad] == [4, 5, 6]


def test_a_field_that_cannot_be_read_is_the_bad_record_it_says() -> None:
    class Refusing(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise Unreadable(BadRecord("column", 7, "cannot be decoded"))

    documents = Documents.of_values({RECORD: [Refusing(f="x"), {"f": "y"}, {"g": 1}]}, origin_of(0, 0, [7, 8, 9]))
    found, bad = fields.checked(documents, "f", "text")
    assert found.values == {"text": ["y"]}
    assert [(record.place, record.problem) for record in bad[:1]] == [(7, "cannot be decoded")]
    assert bad[1].problem.startswith("there is no field 'f'; the record's fields: 'g'.")


def test_no_document_stays_none() -> None:
    documents, bad = fields.checked(Documents.of_values({"f": []}, origin_of(0, 0, [])), "f", "text")
    assert len(documents) == 0 and bad == []
    assert len(fields.checked(texts_at([], []), "text", "text")[0]) == 0
