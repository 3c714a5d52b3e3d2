"""Errors travel between processes: the same class, text and attributes; what cannot travel, as text."""

from __future__ import annotations

import pickle

import pytest

from torchtitan_zephon import (
    ConfigError,
    FunctionError,
    RecipeChangedError,
    RecordError,
    RunnerError,
    SourceError,
    StateError,
    TokenizerError,
    ZephonError,
)
from torchtitan_zephon.errors import ReplayError
from torchtitan_zephon.run.messages import Failed

PLAIN = (ZephonError, ConfigError, SourceError, TokenizerError, FunctionError, RunnerError, StateError, ReplayError)
ERRORS = [
    *(kind("what, which, why") for kind in PLAIN),
    RecordError("not valid JSON", source="wiki", shard="a/0.jsonl", place="line at byte 7"),
    RecipeChangedError("another recipe", ["seed: 1 -> 2"]),
]


def every_kind(kind: type[ZephonError] = ZephonError) -> set[type[ZephonError]]:
    return {kind}.union(*(every_kind(k) for k in kind.__subclasses__() if k.__module__ == "torchtitan_zephon.errors"))


def test_the_errors_tried_below_are_all_there_are() -> None:
    assert {type(error) for error in ERRORS} == every_kind()


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_an_error_of_ours_arrives_as_it_was_with_the_traceback_as_a_note(error: ZephonError) -> None:
    try:
        raise error from KeyError("the cause")
    except ZephonError as raised:
        failed = Failed.of(raised)
    attributes = dict(error.__dict__)
    arrived = pickle.loads(pickle.dumps(failed)).rebuilt()
    assert type(arrived) is type(error)
    assert (str(arrived), arrived.args) == (str(error), error.args)
    [note] = arrived.__dict__.pop("__notes__")
    assert arrived.__dict__ == attributes
    assert "KeyError: 'the cause'" in note
    assert "test_messages.py" in note


def test_another_error_arrives_as_text_with_its_traceback() -> None:
    try:
        raise MemoryError("no room")
    except MemoryError as raised:
        arrived = Failed.of(raised).rebuilt()
    assert type(arrived) is RunnerError
    assert "MemoryError: no room" in str(arrived)
    assert "test_messages.py" in str(arrived)
