"""From a source and a chunk to texts or token ids: the reader, the user's functions, the field.

What flows in: a chunk. What flows out: its ``Documents``, or an error that carries source, shard and
place. Every record is accounted for: a document, empty, or filtered by a user's function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from ..errors import FunctionError, RecordError, SourceError, ZephonError
from ..plan.chunking import Chunk, Pieces
from ..records import Balance, Documents, Record
from . import BadRecord
from .files import Manifest
from .ids import array_of, ids_of
from .retry import with_retries

T = TypeVar("T")


class Reader(Protocol):
    """What a format must offer; one class a format, one file each."""

    manifest: Manifest
    holds_ids: bool

    def pieces(self) -> Pieces: ...
    def shard_of(self, piece: int) -> int: ...
    def around(self, piece: int, unit: int, num_bytes: int) -> tuple[int, int]: ...
    def weigh(self, piece: int, borders: np.ndarray) -> np.ndarray: ...
    def read(self, chunk: Chunk, whole_records: bool) -> tuple[list[Record], np.ndarray]: ...
    def read_ids(self, chunk: Chunk) -> tuple[list[pa.Array], np.ndarray]: ...
    def span(self, chunk: Chunk) -> str: ...
    def describe(self, place: int) -> str: ...


@dataclass(frozen=True, slots=True)
class Function:
    """A user's ``map`` (record -> record) or ``filter`` (record -> bool). ``identity`` is recipe."""

    kind: Literal["map", "filter"]
    call: Callable[[Record], Any]
    identity: str


@dataclass(frozen=True, slots=True)
class Source:
    """A named dataset that is open for reading."""

    name: str
    field: str
    reader: Reader

    @property
    def holds_ids(self) -> bool:
        """Its documents are token ids already, not text."""
        return self.reader.holds_ids

    def where(self, chunk: Chunk) -> str:
        """In words, what ``chunk`` is a part of: source, file and place."""
        path = self.reader.manifest.path(self.reader.shard_of(chunk.piece))
        return f"source {self.name!r}, file {str(path)!r}, {self.reader.span(chunk)}"

    def around(self, piece: int, unit: int, num_bytes: int) -> tuple[int, int]:
        """The units of whole records: from the one that holds ``unit`` on, ``num_bytes`` or more of them."""
        return self._read(piece, f"the records at {unit:,}", lambda: self.reader.around(piece, unit, num_bytes))

    def weigh(self, piece: int, borders: np.ndarray) -> np.ndarray:
        """Planned bytes of what begins in each range [borders[i], borders[i + 1]) of ``piece``, int64 [ranges].

        Bytes of lines (JSONL), or of text or ids (Parquet), by looking and not by the mean of the piece.
        """
        return self._read(piece, "the sizes of records", lambda: self.reader.weigh(piece, borders))

    def _read(self, piece: int, what: str, read: Callable[[], T]) -> T:
        """``read()`` of a piece, tried again where it fails for a moment. Raises ``SourceError``, ``RecordError``."""
        shard = self.reader.shard_of(piece)
        with self._errors_of(shard):
            return with_retries(read, self.reader.manifest.path(shard), what)

    def documents(self, chunk: Chunk, functions: tuple[Function, ...]) -> Documents:
        """The documents of ``chunk`` after the user's functions, in file order: texts, or ids if it ``holds_ids``."""
        return self._ids(chunk, functions) if self.holds_ids else self._texts(chunk, functions)

    def _texts(self, chunk: Chunk, functions: tuple[Function, ...]) -> Documents:
        shard = self.reader.shard_of(chunk.piece)
        with self._errors_of(shard):
            records, places, balance = self._records(chunk, functions, shard)
            texts: list[str] = []
            kept: list[int] = []
            for record, place in zip(records, places, strict=True):
                text = record.get(self.field)
                if type(text) is not str:
                    raise BadRecord(self._wrong_field(record), place)
                if text:
                    texts.append(text)
                    kept.append(place)
        balance.empty, balance.documents = len(records) - len(texts), len(texts)
        origin = origin_of(chunk.source, shard, np.array(kept, dtype=np.int64))
        return Documents({"text": texts}, {}, np.zeros(len(texts) + 1, np.int64), origin, balance)

    def _ids(self, chunk: Chunk, functions: tuple[Function, ...]) -> Documents:
        shard = self.reader.shard_of(chunk.piece)
        with self._errors_of(shard):
            if not functions:
                arrays, where = self._read(chunk.piece, self.reader.span(chunk), lambda: self.reader.read_ids(chunk))
                return ids_of(arrays, origin_of(chunk.source, shard, where), self.field)
            records, places, balance = self._records(chunk, functions, shard)
            lists = array_of([record.get(self.field) for record in records], places, self.field)
            found = ids_of([lists], origin_of(chunk.source, shard, np.array(places, np.int64)), self.field)
        found.balance.records, found.balance.filtered = balance.records, balance.filtered
        return found

    def _records(
        self, chunk: Chunk, functions: tuple[Function, ...], shard: int
    ) -> tuple[list[Record], list[int], Balance]:
        """Records and their places after the user's functions; the balance has those read and filtered."""
        records, where = self._read(
            chunk.piece, self.reader.span(chunk), lambda: self.reader.read(chunk, whole_records=bool(functions))
        )
        places: list[int] = where.tolist()
        balance = Balance(records=len(records))
        if not functions:
            return records, places, balance
        changed = [self._apply(functions, r, shard, place) for r, place in zip(records, places, strict=True)]
        kept = [(r, place) for r, place in zip(changed, places, strict=True) if r is not None]
        balance.filtered = len(records) - len(kept)
        return [r for r, _ in kept], [place for _, place in kept], balance

    @contextmanager
    def _errors_of(self, shard: int) -> Iterator[None]:
        """Errors of the reader become those that name the source and the shard."""
        name = self.reader.manifest.shards[shard].name
        try:
            yield
        except BadRecord as error:
            place = self.reader.describe(error.place)
            raise RecordError(str(error), source=self.name, shard=name, place=place) from None
        except OSError as error:
            raise SourceError(f"source {self.name!r}, shard {name!r}: cannot be read: {error}.") from error

    def _apply(self, functions: tuple[Function, ...], record: Record, shard: int, place: int) -> Record | None:
        for f in functions:
            try:
                result = f.call(record)
            except (ZephonError, BadRecord):
                raise
            except Exception as error:
                raise FunctionError(
                    f"{f.kind} function {f.identity} failed with {type(error).__name__}: {error} on source "
                    f"{self.name!r}, shard {self.reader.manifest.shards[shard].name!r}, "
                    f"{self.reader.describe(place)}."
                ) from error
            if f.kind == "map":
                if not isinstance(result, dict):
                    raise BadRecord(
                        f"map function {f.identity} must return a record (a dict); it returned {type(result).__name__}",
                        place,
                    )
                record = result
            elif not result:
                return None
        return record

    def _wrong_field(self, record: Record) -> str:
        if self.field in record:
            value = record[self.field]
            kind = "null" if value is None else f"a {type(value).__name__} ({str(value)[:40]!r})"
            return f"field {self.field!r} must be a string; it is {kind}"
        found = ", ".join(map(repr, sorted(record))) or "none"
        return (
            f"there is no field {self.field!r}; the record's fields: {found}. Name the text field with "
            '`field = "..."` in the source\'s table'
        )


def origin_of(source: int, shard: int, places: np.ndarray) -> np.ndarray:
    """Where the records at ``places`` of a shard come from: int64 [records, 4], as in ``Documents``."""
    origin = np.zeros((len(places), 4), np.int64)
    origin[:, 0], origin[:, 1], origin[:, 2] = source, shard, places
    return origin
