"""A field that is absent from a sealed state while it is empty. ``test_state`` tests all other refusals."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from torchtitan_zephon import StateError
from torchtitan_zephon.sealed import COUNT, TABLE, from_table, kinds, seal, stored, stored_if_any, to_table, unseal


@dataclass(frozen=True)
class Older:
    """What an older version knows."""

    n: int = stored(COUNT)


@dataclass(frozen=True)
class Newer:
    """The same with a field that was added."""

    n: int = stored(COUNT)
    more: dict[str, int] = stored_if_any(TABLE)


def sealed(value: object) -> bytes:
    return seal(3, to_table(value))


def unsealed(data: bytes) -> Newer:
    return from_table(Newer, unseal(data, 3, kinds(Newer), "the state"))


def test_an_empty_optional_field_changes_no_byte_and_a_full_one_comes_back() -> None:
    assert sealed(Newer(1)) == sealed(Older(1))
    for value in (Newer(1), Newer(1, {"a": 2})):
        assert unsealed(sealed(value)) == value


def test_an_optional_field_of_another_kind_or_that_stands_there_empty_is_refused_by_name() -> None:
    for wrong in ({}, [], None, [1], 3):
        with pytest.raises(StateError, match=r"'more' is a \w+, not a table that is not empty"):
            unsealed(seal(3, {"n": 1, "more": wrong}))


def test_a_version_that_does_not_know_the_field_refuses_it_by_name() -> None:
    with pytest.raises(StateError, match="unknown field 'more'"):
        unseal(sealed(Newer(1, {"a": 2})), 3, kinds(Older), "the state")
