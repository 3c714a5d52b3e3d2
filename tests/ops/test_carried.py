"""Documents that a stage holds across a flush: the same in a checkpoint and out of it, and nothing else is taken."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.strategies import Document, documents, tokens_of
from torchtitan_zephon.balance import Read
from torchtitan_zephon.ops.carried import from_plain, to_plain
from torchtitan_zephon.records import Documents

NAMES = ("news", "web", "wiki")
ONE = {"ids": "AAAA", "offsets": [0, 1], "sources": ["web"], "origin": [[0, 0, 0, 0]]}


def same(a: Documents, b: Documents) -> bool:
    """Equality of ids, offsets and origin, and of their types."""
    columns = [(getattr(a, name), getattr(b, name)) for name in ("ids", "offsets", "origin")]
    return all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in columns)


held = documents(9, most=6).filter(bool)


@given(held)
def test_documents_come_back_through_json(items: list[Document]) -> None:
    plain = to_plain(tokens_of(items), NAMES)
    again = json.loads(json.dumps(plain))
    assert again == plain
    assert same(from_plain(again, NAMES), tokens_of(items))


@given(held, st.sets(st.sampled_from(["a", "o", "what", "z"])))
def test_sources_are_known_by_name_whatever_others_there_are(items: list[Document], others: set[str]) -> None:
    names = sorted({*NAMES, *others})
    found = from_plain(to_plain(tokens_of(items), NAMES), names)
    assert [names[s] for s in found.origin[:, 0]] == [NAMES[d.origin[0]] for d in items]


def test_a_source_that_is_none_any_more_is_refused() -> None:
    assert len(from_plain(ONE, NAMES)) == 1
    with pytest.raises(ValueError, match="no documents that a stage held"):
        from_plain(ONE, ("news", "wiki"))


@pytest.mark.parametrize("token", [0, 1, 255, 256, 65_535, 65_536, 2**24 - 1])
def test_a_token_of_any_vocabulary_survives(token: int) -> None:
    items = tokens_of([Document([token, 1, token], (1, 2, 2**40, 0))])
    assert same(from_plain(to_plain(items, NAMES), NAMES), items)


def test_a_token_that_takes_more_than_three_bytes_is_never_written_as_another() -> None:
    with pytest.raises(AssertionError):  # `Tokenize` has refused it before
        to_plain(tokens_of([Document([2**24, 1], (0, 0, 0, 0))]), NAMES)


def test_what_was_read_is_not_written() -> None:
    items = tokens_of([Document([5, 6], (1, 0, 0, 0))])
    before = to_plain(items, NAMES)
    items.read.add(Read(records=5))
    assert to_plain(items, NAMES) == before


@pytest.mark.parametrize(
    "plain",
    [
        None,
        7,
        "text",
        [],
        {},
        {name: value for name, value in ONE.items() if name != "origin"},
        {name: value for name, value in ONE.items() if name != "sources"},
        {**ONE, "more": 1},
        {**ONE, "offsets": [0, 2]},
        {**ONE, "offsets": []},
        {**ONE, "offsets": ["a"]},
        {**ONE, "offsets": [0, 2**64]},
        {**ONE, "offsets": [0, 10**30]},
        {**ONE, "offsets": [0.5, 1]},
        {**ONE, "offsets": [False, True]},
        {**ONE, "offsets": {"0": 1}},
        {**ONE, "ids": "AAA"},
        {**ONE, "ids": "AAAAAAA="},
        {**ONE, "ids": "????"},
        {**ONE, "ids": "AA?AA"},
        {**ONE, "ids": "\ud800"},
        {**ONE, "ids": 5},
        {**ONE, "ids": ["AAAA"]},
        {**ONE, "origin": []},
        {**ONE, "origin": [[0, 0, 0]]},
        {**ONE, "origin": [0, 0, 0, 0]},
        {**ONE, "origin": {"a": 1}},
        {**ONE, "origin": [[0, 0, 2**63, 0]]},
        {**ONE, "origin": [[0, -1, 0, 0]]},
        {**ONE, "origin": [[-1, 0, 0, 0]]},
        {**ONE, "origin": [[1, 0, 0, 0]]},
        {**ONE, "origin": [[2**62, 0, 0, 0]]},
        {**ONE, "sources": []},
        {**ONE, "sources": ["books"]},
        {**ONE, "sources": [["web"]]},
        {**ONE, "sources": "web"},
        {**ONE, "sources": ["web", "wiki"]},
        {**ONE, "sources": ["web", "web"]},
        {**ONE, "ids": "", "offsets": [0], "origin": []},
        {**ONE, "ids": "AAAAAAAA", "offsets": [0, 2, 1, 2], "origin": [[0] * 4] * 3},
        {**ONE, "ids": "AAAAAAAA", "offsets": [0, 2, 1], "origin": [[0] * 4] * 2},
        {**ONE, "ids": "AAAAAAAA", "offsets": [1, 2]},
    ],
    ids=str,
)
def test_what_no_stage_has_held_is_refused(plain: Any) -> None:
    with pytest.raises(ValueError, match="these are no documents that a stage held"):
        from_plain(plain, NAMES)
