"""A user's ``map`` and ``filter`` functions, run on the records of a chunk one by one.

What flows in: documents that are whole records. What flows out: the records that the functions made of them, without
those that a filter dropped, and the bad ones. Records appear as Python objects only here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ..bad_records import BadRecord, Sifted, Unreadable
from ..errors import ZephonError
from ..records import RECORD, Documents, Record


@dataclass(frozen=True, slots=True)
class Function:
    """A user's ``map`` (record -> record) or ``filter`` (record -> bool). ``identity`` is recipe."""

    kind: Literal["map", "filter"]
    call: Callable[[Record], Any]
    identity: str


def apply(functions: tuple[Function, ...], documents: Documents) -> Sifted:
    """``documents`` behind all ``functions``; those filtered out are counted."""
    records: list[Record] = []
    kept: list[int] = []
    bad: list[BadRecord] = []
    for n, (record, place) in enumerate(zip(documents.values[RECORD], documents.origin[:, 2].tolist(), strict=True)):
        made = _made(functions, record, place)
        if isinstance(made, BadRecord):
            bad.append(made)
        elif made is not None:
            records.append(made)
            kept.append(n)
    read = replace(documents.read, filtered=len(documents) - len(kept) - len(bad))
    return replace(documents.take(np.array(kept, np.int64)), values={RECORD: records}, read=read), bad


def _made(functions: tuple[Function, ...], record: Record, place: int) -> Record | BadRecord | None:
    """What ``functions`` make of ``record``; None if one filters it out."""
    for f in functions:
        try:
            result = f.call(record)
        except Unreadable as error:
            return error.bad
        except ZephonError:
            raise
        except Exception as error:
            problem = f"{f.kind} function {f.identity} failed with {type(error).__name__}: {error}"
            return BadRecord("function", place, problem, error)
        if f.kind == "map":
            if not isinstance(result, dict):
                must = f"map function {f.identity} must return a record (a dict); it returned {type(result).__name__}"
                return BadRecord("result", place, must)
            record = result
        elif not result:
            return None
    return record
