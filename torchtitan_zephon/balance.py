"""What became of the records and tokens that were read: nothing is dropped in silence.

Each chunk says what was ``Read``. A lane sums that by source, and adds what it packed. Both add up: records read are
documents, empty, filtered and refused ones; tokens in are tokens out, last, unused and held ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Refused(NamedTuple):
    """Bad records of one kind that were left out: how many, and what and where the first one is, in words."""

    number: int
    first: str


@dataclass(slots=True)
class Read:
    """What was read of one source: ``records`` = ``documents`` + ``empty`` + ``filtered`` + those ``refused``.

    ``tokens``: of the documents. ``refused``: bad records by kind.
    """

    records: int = 0
    documents: int = 0
    empty: int = 0
    filtered: int = 0
    tokens: int = 0
    refused: dict[str, Refused] = field(default_factory=dict)

    @property
    def num_refused(self) -> int:
        """Bad records of all kinds."""
        return sum(of_kind.number for of_kind in self.refused.values())

    def add(self, other: Read) -> None:
        """Add ``other``; the first bad records stay the first."""
        for name in ("records", "documents", "empty", "filtered", "tokens"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for kind, (number, first) in other.refused.items():
            before = self.refused.get(kind, Refused(0, first))
            self.refused[kind] = before._replace(number=before.number + number)

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {of_kind.number:,}" for kind, of_kind in sorted(self.refused.items()))
        return (
            f"{self.records:,} records read = {self.documents:,} documents + {self.empty:,} empty + "
            f"{self.filtered:,} filtered + {self.num_refused:,} refused{f' ({kinds})' if kinds else ''}"
        )


@dataclass(slots=True)
class Balance:
    """What went in, by source, and what came out. After a finite pass no token is held."""

    sources: dict[str, Read] = field(default_factory=dict)
    last_tokens: int = 0
    tokens_out: int = 0
    unused_tokens: int = 0
    padded: int = 0
    sequences: int = 0

    @classmethod
    def of(cls, names: Iterable[str]) -> Balance:
        """Nothing read of the sources ``names``."""
        return cls({name: Read() for name in names})

    def add(self, other: Balance) -> None:
        """Add ``other`` to this balance, source by source and field by field."""
        for name, read in other.sources.items():
            self.sources.setdefault(name, Read()).add(read)
        for name in ("last_tokens", "tokens_out", "unused_tokens", "padded", "sequences"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def read(self) -> Read:
        """What was read of all sources."""
        total = Read()
        for read in self.sources.values():
            total.add(read)
        return total

    @property
    def tokens_held(self) -> int:
        """Tokens packed into no delivered sequence yet: carry, open bins, shuffle buffer, prefetch."""
        return self.read.tokens - self.last_tokens - self.unused_tokens - self.tokens_out

    def __str__(self) -> str:
        read = self.read
        by_source = "".join(f"; source {name!r}: {of}" for name, of in self.sources.items())
        return (
            f"{read}; {read.tokens:,} tokens in = {self.tokens_out:,} trained on + "
            f"{self.last_tokens:,} last tokens (labels only) + {self.unused_tokens:,} at a lane's end with nothing to "
            f"predict + {self.tokens_held:,} not delivered; "
            f"{self.padded:,} positions padded in {self.sequences:,} sequences"
            f"{by_source if len(self.sources) > 1 else ''}"
        )


class Figures(NamedTuple):
    """What a rank's lanes read and gave since the stream was started or restored, summed over them.

    ``ready``: sequences that could be handed out at once. Then by source, since step 1: ``source_tokens``, tokens
    packed; ``estimated_tokens``, what the estimate promised for the chunks that they come from;
    ``delivered_tokens`` and ``delivered_bytes``, tokens that the trainer has taken, and the planned bytes they come
    from; ``refused``, bad records left out. A lane that is shared counts whole on each of its ranks.
    """

    balance: Balance
    ready: int
    source_tokens: tuple[int, ...]
    estimated_tokens: tuple[int, ...]
    delivered_tokens: tuple[int, ...]
    delivered_bytes: tuple[float, ...]
    refused: tuple[int, ...]
