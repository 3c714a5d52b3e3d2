"""Records that cannot become documents, as values: found where they are read or changed, judged in one place.

A reader or a stage raises nothing for a bad record. It gives the good documents and, beside them, what is wrong with
the others; ``documents.py`` decides what follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from .records import Documents

Kind = Literal["size", "line", "column", "field", "ids", "result", "function"]
"""A record that is too long; no JSON object; a column that cannot be read; a field that is missing or of the wrong
type; numbers that are no token ids; what a map function returned is no record; a user's function failed."""


@dataclass(frozen=True, slots=True)
class BadRecord:
    """What is wrong with the record at ``place`` of its shard (as in ``origin``), in words without a full stop.

    ``cause``: the exception of a user's function that failed.
    """

    kind: Kind
    place: int
    problem: str
    cause: Exception | None = None


Sifted = tuple[Documents, list[BadRecord]]
"""The good documents, and the records that are none."""


class Unreadable(Exception):
    """Raised through a user's function that asks for a value of its record which cannot be read."""

    def __init__(self, bad: BadRecord) -> None:
        super().__init__(bad.problem)
        self.bad = bad


def without(documents: Documents, bad: list[BadRecord]) -> Documents:
    """``documents`` but those at the places of ``bad``."""
    if not bad:
        return documents
    places = {record.place for record in bad}
    good = [place not in places for place in documents.origin[:, 2].tolist()]
    return documents.take(np.flatnonzero(good))
