"""The nouns that travel: documents, a chunk's packet of them, packed rows, sequences and batches.

Data travels in columns: a chunk's tokens are one flat integer array with offsets. Text travels
as Python strings between parser and tokenizer only, because both speak nothing else (measured:
parsing to ``str`` costs the same as to an Arrow column, and the tokenizer wants ``str``).
Provenance rides along as integers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from .balance import Read

IGNORE_LABEL = -100
"""Label of a position that is not trained on, as in PyTorch's cross entropy."""


LONG_SLICE = 256
"""From this mean length on copying slices is faster than looking up every value."""


class Slices:
    """Slices [starts[i], starts[i] + lengths[i]) to be taken of arrays, end to end. Both are int64 [slices].

    Nanoseconds a value, for slices of 270 values on average: 1.1 by a mask where they ascend, and else 2.6 by copying,
    or 3.6 and then 1.5 by an index.
    """

    def __init__(self, starts: np.ndarray, lengths: np.ndarray) -> None:
        self._lengths, self._total = lengths, int(lengths.sum())
        gaps = starts.copy()
        gaps[1:] -= starts[:-1] + lengths[:-1]
        self._mask = None
        if (gaps >= 0).all():
            counts = np.stack([gaps, lengths], axis=1).reshape(-1)
            self._mask = np.repeat(np.tile([False, True], len(starts)), counts)
        elif self._total > LONG_SLICE * len(starts):
            self._bounds = list(zip(starts.tolist(), (starts + lengths).tolist(), strict=True))
        else:
            self._index = np.repeat(starts - self._before(), lengths) + np.arange(self._total)

    def of(self, values: np.ndarray) -> np.ndarray:
        """The slices of ``values``, as a new array."""
        found: np.ndarray
        if self._mask is not None:
            found = values[: len(self._mask)][self._mask]
        elif self._total > LONG_SLICE * len(self._lengths):
            found = np.concatenate([values[start:stop] for start, stop in self._bounds])
        else:
            found = values.take(self._index)
        return found

    def count(self) -> np.ndarray:
        """The distance of each value from the beginning of its slice: int32 [values]."""
        return np.arange(self._total, dtype=np.int32) - np.repeat(self._before().astype(np.int32), self._lengths)

    def _before(self) -> np.ndarray:
        before: np.ndarray = np.cumsum(self._lengths) - self._lengths
        return before


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents in columns, or pieces of documents; before and after tokenising.

    values: a list a name, one value a document, such as {"text": [...]}. tokens: a flat array a name, one value a
    token, such as {"ids": int32 [tokens]}; empty before tokenising. offsets: int64 [documents + 1], where each
    document's tokens begin, and the end of the last. origin: int64 [documents, 4], columns source, shard, record
    (byte offset of the line, or row number of the file) and part (0). read: what the records of the chunk became.
    """

    values: dict[str, list[Any]]
    tokens: dict[str, np.ndarray]
    offsets: np.ndarray
    origin: np.ndarray
    read: Read = field(default_factory=Read)

    def __len__(self) -> int:
        return len(self.origin)

    @property
    def ids(self) -> np.ndarray:
        """The token ids: int32 [tokens]."""
        return self.tokens["ids"]

    @property
    def num_characters(self) -> int:
        """Of all the texts."""
        return sum(map(len, self.values["text"]))

    @property
    def num_inputs(self) -> int:
        """Positions these documents fill: all their tokens but each one's last."""
        return len(self.ids) - int(np.count_nonzero(np.diff(self.offsets)))

    @classmethod
    def of_values(cls, values: dict[str, list[Any]], origin: np.ndarray) -> Documents:
        """Records as they were read, without tokens."""
        return cls(values, {}, np.zeros(len(origin) + 1, np.int64), origin)

    @classmethod
    def empty(cls) -> Documents:
        """No document."""
        return cls({}, {"ids": np.zeros(0, np.int32)}, np.zeros(1, np.int64), np.zeros((0, 4), np.int64))

    @classmethod
    def join(cls, first: Documents, second: Documents) -> Documents:
        """The documents of ``first``, then those of ``second``; ``read`` is the second's."""
        if not len(first):
            return second
        if not len(second):
            return replace(first, read=second.read)
        return cls(
            {name: first.values[name] + values for name, values in second.values.items()},
            {name: np.concatenate([first.tokens[name], flat]) for name, flat in second.tokens.items()},
            np.concatenate([first.offsets, second.offsets[1:] + first.offsets[-1]]),
            np.concatenate([first.origin, second.origin]),
            second.read,
        )

    def take(self, numbers: Seq[int] | np.ndarray, used: int = 0) -> Documents:
        """The documents of these numbers, in this order: some of them, or all in another order.

        ``used``: tokens at the front of the first one that are left out.
        """
        which = np.asarray(numbers, np.int64)
        if not used and np.array_equal(which, np.arange(len(self))):
            return self
        starts, lengths = self.offsets[which], np.diff(self.offsets)[which]
        starts[:1] += used
        lengths[:1] -= used
        offsets = np.zeros(len(which) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        values = {name: [column[i] for i in which.tolist()] for name, column in self.values.items()}
        slices = Slices(starts, lengths)
        tokens = {name: slices.of(flat) for name, flat in self.tokens.items()}
        return Documents(values, tokens, offsets, self.origin[which], self.read)

    def cut(self, characters: int) -> Documents:
        """The beginnings of the texts, at most ``characters`` of each."""
        return replace(self, values={"text": [text[:characters] for text in self.values["text"]]})


@dataclass(frozen=True, slots=True)
class Packet:
    """All documents of a chunk, with the SHA-256 of their ids and offsets, which proves a replay.

    ``behind``: of a chunk of a tape, the tape's place behind it (``plan.slices.TapePlace``).
    """

    documents: Documents
    digest: bytes
    behind: tuple[int, ...] | None = None

    @classmethod
    def of(cls, documents: Documents, behind: tuple[int, ...] | None = None) -> Packet:
        """``documents``, which are tokenised, and their digest."""
        h = hashlib.sha256(documents.ids.data)
        h.update(documents.offsets.data)
        return cls(documents, h.digest(), behind)


@dataclass(frozen=True, slots=True)
class Rows:
    """Packed rows. columns: by name (``ops.render``), each int32 [rows, seq_len].

    pieces: int64 [pieces, 5]: first column of the row that the piece fills, then the document's origin: source,
    shard, record, part. first_piece: int64 [rows + 1], the pieces of each row. filled: int64 [rows], positions that
    are not padding.
    """

    columns: dict[str, np.ndarray]
    pieces: np.ndarray
    first_piece: np.ndarray
    filled: np.ndarray

    def __len__(self) -> int:
        return len(self.filled)

    def source_tokens(self, sources: int) -> np.ndarray:
        """Positions that each of ``sources`` sources fills of each row, float64 [rows, sources]. A row has a piece."""
        n, begins, first = len(self), self.pieces[:, 0], self.first_piece
        if not n:
            return np.zeros((0, sources))
        ends = np.empty_like(begins)
        ends[:-1] = begins[1:]
        ends[first[1:] - 1] = self.filled
        place = self.pieces[:, 1] + np.repeat(np.arange(0, n * sources, sources), first[1:] - first[:-1])
        return np.bincount(place, ends - begins, n * sources).reshape(n, sources)


class Sequence(NamedTuple):
    """One packed row of exactly ``seq_len`` tokens: a reference into ``Rows``."""

    rows: Rows
    row: int

    @property
    def filled(self) -> int:
        """Positions that are not padding."""
        return int(self.rows.filled[self.row])

    @property
    def pieces(self) -> np.ndarray:
        """Where its documents came from: int64 [pieces, 5], see ``Rows``."""
        return self.rows.pieces[self.rows.first_piece[self.row] : self.rows.first_piece[self.row + 1]]


@dataclass(frozen=True, slots=True)
class Batch:
    """One local batch. columns: by name, each int64 [local batch, seq_len].

    Labels are the next token inside the document (of the sequence, with ``label_shift`` "sequence"),
    or -100; positions restart with each document and at the start of a row. ``sequences`` gives the
    provenance. ``step`` counts from 1.
    """

    columns: dict[str, np.ndarray]
    sequences: list[Sequence]
    step: int

    @classmethod
    def of(cls, sequences: list[Sequence], step: int) -> Batch:
        """Copy ``sequences`` into one batch."""
        columns = {}
        for name, column in sequences[0].rows.columns.items():
            columns[name] = made = np.empty((len(sequences), column.shape[1]), np.int64)
            for i, (rows, r) in enumerate(sequences):
                made[i] = rows.columns[name][r]
        return cls(columns, sequences, step)

    @classmethod
    def of_rows(cls, rows: Rows, step: int) -> Batch:
        """All of ``rows`` as one batch."""
        columns = {name: column.astype(np.int64) for name, column in rows.columns.items()}
        return cls(columns, [Sequence(rows, r) for r in range(len(rows))], step)

    @property
    def input(self) -> np.ndarray:
        """Token ids, int64 [local batch, seq_len]."""
        return self.columns["input"]

    @property
    def labels(self) -> np.ndarray:
        """What is to be predicted, int64 [local batch, seq_len]; -100 where nothing is."""
        return self.columns["labels"]

    @property
    def positions(self) -> np.ndarray:
        """Places within each piece of a document, int64 [local batch, seq_len]."""
        return self.columns["positions"]


Record = dict[str, Any]
"""A record as a user's ``map`` and ``filter`` functions see it."""
Contents = Literal["text", "ids"]
"""What the field of a source holds."""
RECORD = "record"
"""The name of values that are whole records; there are no others beside them."""


def origin_of(source: int, shard: int, places: Seq[int] | np.ndarray) -> np.ndarray:
    """Where the records at ``places`` of a shard come from: int64 [records, 4], as in ``Documents``."""
    origin = np.zeros((len(places), 4), np.int64)
    origin[:, 0], origin[:, 1], origin[:, 2] = source, shard, places
    return origin
