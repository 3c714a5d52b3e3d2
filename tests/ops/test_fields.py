"""The field that is trained on: what is bad is given beside what is good, and empty documents are counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.strategies import texts_at
from torchtitan_zephon.bad_records import BadRecord, Unreadable
from torchtitan_zephon.ops import fields
from torchtitan_zephon.records import RECORD, Documents, origin_of
from torchtitan_zephon.text_of import text_of

F = text_of("f")


def records(*values: Any) -> Documents:
    return Documents.of_values({RECORD: [{"f": value} for value in values]}, origin_of(1, 2, range(len(values))))


def ids(lists: list[list[int]], kind: type) -> Documents:
    tokens = {"ids": np.array([i for some in lists for i in some], kind)}
    return Documents({}, tokens, np.cumsum([0, *map(len, lists)]), origin_of(0, 0, range(len(lists))))


def test_texts_are_kept_but_the_empty_and_those_that_are_none() -> None:
    documents, bad = fields.checked(records("a", "", None, 5, "b"), F, "text")
    assert documents.values == {"text": ["a", "b"]}
    assert documents.origin.tolist() == [[1, 2, 0, 0], [1, 2, 4, 0]]
    assert (documents.read.empty, documents.read.documents) == (1, 2)
    assert [(record.kind, record.place) for record in bad] == [("field", 2), ("field", 3)]


@pytest.mark.parametrize("kind", [np.int16, np.int64, np.uint64])
def test_ids_of_any_width_become_int32(kind: type) -> None:
    documents, bad = fields.checked(ids([[1, 2], [], [3]], kind), F, "ids")
    assert (documents.ids.tolist(), documents.ids.dtype, documents.offsets.tolist()) == ([1, 2, 3], np.int32, [0, 2, 3])
    assert documents.origin[:, 2].tolist() == [0, 2]
    assert (documents.read.empty, documents.read.documents, bad) == (1, 2, [])


def test_every_document_with_a_number_that_is_no_id_is_named_with_its_first() -> None:
    documents, bad = fields.checked(ids([[1], [2, -3, -4], [5], [2**31]], np.int64), F, "ids")
    assert documents.ids.tolist() == [1, 5]
    assert [record.problem for record in bad] == [
        f"field 'f' holds {n}, which is no token id: they are 0 to 2,147,483,647" for n in (-3, 2**31)
    ]
    documents, bad = fields.checked(ids([[1], [2, 7, 6], [5]], np.int64), F, "ids", fields.IdLimits(5))
    assert documents.ids.tolist() == [1, 5] and "holds 7, which is no token id: they are 0 to 5" in bad[0].problem


def test_lists_that_functions_made_become_ids_whatever_holds_them() -> None:
    documents, bad = fields.checked(records([1, 2], (3,), np.array([4], np.int16), [], [True], "5", [1.5]), F, "ids")
    assert (documents.ids.tolist(), documents.offsets.tolist()) == ([1, 2, 3, 4], [0, 2, 3, 4])
    assert documents.read.empty == 1
    assert [record.place for record in bad] == [4, 5, 6]


def test_a_field_that_cannot_be_read_is_the_bad_record_it_says() -> None:
    class Refusing(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise Unreadable(BadRecord("column", 7, "cannot be decoded"))

    documents = Documents.of_values({RECORD: [Refusing(f="x"), {"f": "y"}, {"g": 1}]}, origin_of(0, 0, [7, 8, 9]))
    found, bad = fields.checked(documents, F, "text")
    assert found.values == {"text": ["y"]}
    assert [(record.place, record.problem) for record in bad[:1]] == [(7, "cannot be decoded")]
    assert bad[1].problem.startswith("there is no field 'f'; the record's fields: 'g'.")


def test_no_document_stays_none() -> None:
    documents, bad = fields.checked(Documents.of_values({"f": []}, origin_of(0, 0, [])), F, "text")
    assert len(documents) == 0 and bad == []
    assert len(fields.checked(texts_at([], []), text_of("text"), "text")[0]) == 0


def test_several_fields_are_joined_by_blank_lines_without_those_that_are_null_or_empty() -> None:
    rows = [{"title": "T", "meta": {"text": "a"}}, {"title": None, "meta": {"text": "b"}}, {"title": "", "meta": None}]
    documents = Documents.of_values({RECORD: [*rows, {"title": "T"}]}, origin_of(0, 0, range(4)))
    found, bad = fields.checked(documents, text_of(["title", "meta.text"]), "text")
    assert found.values == {"text": ["T\n\na", "b"]}
    assert found.read.empty == 1
    assert [(record.place, record.kind) for record in bad] == [(3, "field")]
    assert "no field 'meta.text'; the record's fields: 'title'." in bad[0].problem


def test_a_template_takes_no_null_and_writes_its_braces() -> None:
    rows: list[dict[str, Any]] = [{"q": "1+1?", "a": {"b": "2"}, "a.b": "two"}, {"q": None, "a": {"b": "x"}}]
    documents = Documents.of_values({RECORD: rows}, origin_of(0, 0, range(2)))
    found, bad = fields.checked(documents, text_of("text", "{{Q}} {q}\n{a.b}{q}"), "text")
    assert found.values == {"text": ["{Q} 1+1?\ntwo1+1?"]}  # the field whose name holds the dot wins
    assert [record.problem for record in bad] == ["field 'q' must be a string; it is null"]


def test_values_that_a_reader_gives_by_name_are_joined_too() -> None:
    documents = Documents.of_values({"b": ["1", "2"], "a.c": ["x", None]}, origin_of(0, 0, range(2)))
    assert fields.checked(documents, text_of(["a.c", "b"]), "text")[0].values == {"text": ["x\n\n1", "2"]}


@pytest.mark.parametrize("at", ["a", "a.b", "a.b.c", "z.b", "."])
def test_a_path_that_leads_nowhere_names_the_fields_there_are(at: str) -> None:
    documents = Documents.of_values({RECORD: [{"x": 1, "a": {"d": {"e": "s"}}}]}, origin_of(0, 0, [0]))
    _, [bad] = fields.checked(documents, text_of(at), "text")
    if at == "a":
        assert bad.problem.startswith("field 'a' must be a string; it is a dict")
    else:
        assert f"no field {at!r}; the record's fields: 'a', 'a.d', 'a.d.e', 'x'." in bad.problem


def test_ready_made_rows_of_another_length_are_bad_records() -> None:
    lists = [[1, 2, 3], [1, 2, 3, 4], [], [1, 2], [1, 2, 3, 4, 5]]
    documents, bad = fields.checked(ids(lists, np.int64), F, "ids", fields.IdLimits(9, (3, 4)))
    assert documents.offsets.tolist() == [0, 3, 7]
    assert [record.problem for record in bad] == [
        f"field 'f' holds {n} ids, and a ready-made row has 3 or 4" for n in (2, 5)
    ]
    assert documents.read.empty == 1
