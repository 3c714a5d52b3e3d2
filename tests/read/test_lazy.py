"""A lazy record is a dict in every way that a function can look at it, and reads only what is looked at."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from torchtitan_zephon.bad_records import Unreadable
from torchtitan_zephon.read.lazy import Columns, LazyRecord, lazy_records

PLAIN = {"id": 7, "text": "a text", "tags": ["x", "y"], "meta": {"lang": "de"}, "none": None}


def lazy(read: list[str], plain: dict[str, Any] = PLAIN) -> LazyRecord:
    """``plain`` as a record; the names of columns that are read are put into ``read``."""

    def load(name: str) -> list[pa.Array]:
        read.append(name)
        return [pa.array([plain[name]])]

    return lazy_records(list(plain), Columns({}, load, np.array([0]), 2**26), 1)[0]


LOOKS: dict[str, tuple[Callable[[Any], Any], set[str]]] = {
    "item": (lambda r: r["id"], {"id"}),
    "get": (lambda r: (r.get("text"), r.get("nowhere"), r.get("nowhere", 3), r.get("none", 4)), {"text", "none"}),
    "in": (lambda r: ("id" in r, "nowhere" in r), set()),
    "len": (lambda r: (len(r), bool(r)), set()),
    "iteration": (lambda r: (list(r), list(reversed(r)), list(r.keys()), sorted(r)), set()),
    "values": (lambda r: list(r.values()), set(PLAIN)),
    "items": (lambda r: list(r.items()), set(PLAIN)),
    "dict": (dict, set(PLAIN)),
    "unpacked": (lambda r: {**r, "text": "new", "more": 1}, set(PLAIN)),
    "keywords": (lambda r: (lambda **fields: fields)(**r), set(PLAIN)),
    "pop": (lambda r: (r.pop("id"), r.pop("nowhere", 5), list(r)), {"id"}),
    "popitem": (lambda r: (r.popitem(), dict(r)), set(PLAIN)),
    "setdefault": (lambda r: (r.setdefault("text", 1), r.setdefault("more", 2), r["more"]), {"text"}),
    "set": (lambda r: (r.__setitem__("text", "new"), r["text"]), set()),
    "update": (lambda r: (r.update(text="new"), r["text"]), set()),
    "delete": (lambda r: (r.__delitem__("text"), list(r)), set()),
    "clear": (lambda r: (r.clear(), len(r)), set()),
    "equality": (lambda r: (r == PLAIN, r != PLAIN, dict(PLAIN) == r, r == {}, r == 3), set(PLAIN)),
    "equal records": (lambda r: r == r.copy(), set(PLAIN)),
    "or": (lambda r: (r | {"text": "new"})["text"], set()),
    "or, all of it": (lambda r: dict(r | {"text": "new"}), set(PLAIN) - {"text"}),
    "or from the left": (lambda r: {"id": 0, "first": 1} | r, set(PLAIN)),
    "or in place": (lambda r: r.__ior__({"text": "new"})["text"], set()),
    "copy": (lambda r: (lambda c: (c.update(text="new"), c["text"], c["id"]))(r.copy()), {"id"}),
    "copy.copy": (lambda r: dict(copy.copy(r)), set(PLAIN)),
    "copy.deepcopy": (copy.deepcopy, set(PLAIN)),
    "a copy of its own type": (lambda r: type(r)(r).copy(), set(PLAIN)),
    "pickle": (lambda r: pickle.loads(pickle.dumps(r)), set(PLAIN)),
    "json": (lambda r: json.dumps(r), set(PLAIN)),
    "json, indented": (lambda r: json.dumps(r, indent=1, sort_keys=True), set(PLAIN)),
    "orjson of a dict": (lambda r: orjson.dumps(dict(r)), set(PLAIN)),
    "repr": (lambda r: (repr(r), str(r), f"{r}"), set(PLAIN)),
    "format": (lambda r: "{text}, {id}".format_map(r), {"text", "id"}),
    "a dict": (lambda r: isinstance(r, dict), set()),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_lazy_record_behaves_as_a_dict_and_reads_what_is_looked_at(look: str) -> None:
    read: list[str] = []
    call, expected = LOOKS[look]
    assert call(lazy(read)) == call(copy.deepcopy(PLAIN))
    assert set(read) == expected and len(read) == len(expected)


@pytest.mark.parametrize("call", [lambda r: r["nowhere"], lambda r: r.pop("nowhere")], ids=["item", "pop"])
def test_a_field_that_is_not_there_is_a_key_error(call: Callable[[Any], Any]) -> None:
    with pytest.raises(KeyError, match="nowhere"):
        call(lazy([]))


def test_patterns_match_a_lazy_record() -> None:
    read: list[str] = []
    match lazy(read):
        case {"id": 7, "meta": {"lang": lang}}:
            assert lang == "de" and set(read) == {"id", "meta"}
        case _:
            raise AssertionError


def test_a_lazy_record_cannot_be_a_key() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(lazy([]))


@pytest.mark.parametrize("options", [{}, {"default": str}])
def test_a_placeholder_never_gets_into_data(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        orjson.dumps(lazy([]), **options)


def test_a_column_is_read_once_for_all_records() -> None:
    read: list[str] = []
    columns = Columns({}, lambda name: read.append(name) or [pa.array([1, 2]), pa.array([3])], np.arange(3), 2**26)
    records = lazy_records(["a"], columns, 3)
    assert [r["a"] for r in records] == [1, 2, 3]
    assert read == ["a"]


def test_of_a_column_that_cannot_be_decoded_only_the_rows_at_fault_are_refused() -> None:
    dates = pa.array([0, 10**18, 1], pa.timestamp("s"))
    records = lazy_records(["d"], Columns({"d": [dates]}, lambda name: [], np.array([5, 6, 7]), 2**26), 3)
    assert records[0]["d"].year == records[2]["d"].year == 1970
    with pytest.raises(Unreadable, match=r"column 'd' cannot be decoded: \w+Error: ") as refusal:
        records[1]["d"]
    assert refusal.value.bad.place == 6


fields = st.dictionaries(st.text(max_size=3), st.none() | st.integers(-9, 9) | st.text(max_size=4), max_size=5)


@given(fields, fields)
def test_any_record_merged_with_any_other_is_as_of_dicts(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert {**lazy([], a), **lazy([], b)} == {**a, **b}
    assert dict(lazy([], a) | lazy([], b)) == a | b
    assert (lazy([], a) == lazy([], b)) == (a == b)
    assert list(lazy([], a) | b) == list(a | b)
