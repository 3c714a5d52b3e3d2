"""What can be wrong with a job, a list of findings asked in order, before it starts.

``READING`` (of a loader's data) and ``RESUME`` (of a checkpoint) are these lists. The trainer raises the first error,
``torchtitan-zephon check`` tells all: the same questions, in the same order, with the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Finding(Generic[T]):
    """One thing that may be wrong with a ``T``.

    ``when``: whether it can be asked, by what is known already. ``look`` raises a ``ZephonError``, or adds to the ``T``
    what later findings ask for.
    """

    name: str
    when: Callable[[T], bool]
    look: Callable[[T], None]


def ask(findings: Iterable[Finding[T]], subject: T, problems: AbstractContextManager[Any]) -> None:
    """Ask all ``findings`` of ``subject`` that can be asked, each within ``problems``.

    ``Problems`` note every error; under ``nullcontext()`` the first is raised.
    """
    for finding in findings:
        if finding.when(subject):
            with problems:
                finding.look(subject)


def always(subject: object) -> bool:
    """For a finding that needs no other."""
    return True
