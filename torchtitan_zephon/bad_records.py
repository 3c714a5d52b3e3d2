"""Records that cannot become documents, as values: found where they are read or changed, judged in one place.

A reader or a stage raises nothing for a bad record. It gives the good documents and, beside them, what is wrong with
the others; ``documents.py`` decides what follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

from .balance import Read, Refused
from .errors import SourceError
from .records import Documents
from .settings import setting

Kind = Literal["line", "column", "field", "ids", "size", "result", "function", "file"]
"""No JSON object; a value that cannot be decoded; a field that is missing or of the wrong type; no list of token ids,
or no ready-made row of them; a record that is too large; what a map function returned is no record; a user's function
failed; a column that cannot be read at all, of which no record is to blame, so that it is always an error."""
FEWEST_RECORDS = 1000
"""Records of a source that a lane has read before their bad fraction is judged."""


@dataclass(frozen=True, kw_only=True)
class BadRecordSettings:
    """What follows from a bad record.

    The first two are not compared at a resume: what was delivered is the same under both, and a run that a bad record
    ended can continue without it.
    """

    on_bad_record: Literal["error", "skip"] = setting(
        "error",
        "A bad record (no valid JSON, no text, a failing function, too large) ends the run (`error`), or is left out, "
        "counted and logged (`skip`). Damaged files and failing storage are always errors. A resume may change it.",
        in_identity=False,
    )
    max_bad_fraction: float = setting(
        0.01,
        "With `skip`, the run ends where a segment ends and a lane has left out more than this part of a source's "
        f"records, from {FEWEST_RECORDS:,} records on. A resume may change it.",
        low=0,
        high=1,
        in_identity=False,
    )
    max_record_bytes: int = setting(
        32 * 2**20,
        "A record above this is a bad one, found before it fills the memory: bytes of the record as it stands in the "
        "file (JSONL, CSV), or of its text or ids (Parquet). The longest books have about 20 MB.",
        low=1,
        in_identity="unless_default",
    )


DEFAULTS: Final = BadRecordSettings()


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


class Counted(NamedTuple):
    """Of one source in one lane since the stream began, as far as bad records are left out: records read, and refused.

    ``refused``: by kind.
    """

    read: int = 0
    refused: dict[str, int] = {}

    def plus(self, read: Read) -> Counted:
        """The same behind what was ``read``."""
        more = {kind: self.refused.get(kind, 0) + of_kind.number for kind, of_kind in read.refused.items()}
        return Counted(self.read + read.records, {**self.refused, **more})

    @property
    def num_refused(self) -> int:
        """Bad records of all kinds."""
        return sum(self.refused.values())


def check_fraction(most: float, where: str, counted: Counted, examples: dict[str, Refused]) -> None:
    """Raise ``SourceError`` if more than the fraction ``most`` of the records was refused. ``examples``: by kind."""
    bad = counted.num_refused
    if counted.read < FEWEST_RECORDS or bad <= most * counted.read:
        return
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(counted.refused.items()))
    shown = "".join(f"\n    {kind}: {examples[kind].first}" for kind in sorted(examples))
    raise SourceError(
        f"{where}: {bad:,} of {counted.read:,} records were left out as bad ({kinds}), which is more than "
        f"max_bad_fraction = {most!r} of them. The first ones:{shown}\n"
        "Look whether the source's `field` is the right one. Else mend its files, or raise max_bad_fraction and resume."
    )
