"""From a source and a chunk to texts: the reader, the user's functions, the text field.

What flows in: a chunk. What flows out: ``Texts``, or an error that carries source, shard and
place. Every record is accounted for: a document, empty, or filtered by a user's function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from ..errors import FunctionError, RecordError, SourceError, ZephonError
from ..plan.chunking import Chunk, Pieces
from ..records import Balance, Record, Texts
from .files import Manifest


class BadRecord(Exception):
    """Raised by a reader; becomes a ``RecordError`` where source and shard are known."""

    def __init__(self, problem: str, place: int) -> None:
        super().__init__(problem)
        self.place = place


class Reader(Protocol):
    """What a format must offer; one class a format, one file each."""

    manifest: Manifest

    def pieces(self) -> Pieces: ...
    def shard_of(self, piece: int) -> int: ...
    def read(self, chunk: Chunk, whole_records: bool) -> tuple[list[Record], np.ndarray]: ...
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

    def texts(self, chunk: Chunk, functions: tuple[Function, ...]) -> Texts:
        """The texts of ``chunk`` after the user's functions, in file order."""
        shard = self.reader.shard_of(chunk.piece)
        place = 0
        try:
            records, places = self.reader.read(chunk, whole_records=bool(functions))
            balance = Balance(records=len(records))
            texts: list[str] = []
            kept: list[int] = []
            for record, place in zip(records, places.tolist(), strict=True):
                changed = self._apply(functions, record, shard, place) if functions else record
                if changed is None:
                    balance.filtered += 1
                    continue
                text = changed.get(self.field)
                if type(text) is not str:
                    raise BadRecord(self._wrong_field(changed), place)
                if not text:
                    balance.empty += 1
                    continue
                texts.append(text)
                kept.append(place)
        except BadRecord as error:
            raise RecordError(
                str(error),
                source=self.name,
                shard=self.reader.manifest.shards[shard].name,
                place=self.reader.describe(error.place),
            ) from None
        except OSError as error:
            raise SourceError(
                f"source {self.name!r}, shard {self.reader.manifest.shards[shard].name!r}: cannot be read: {error}."
            ) from error
        balance.documents = len(texts)
        return Texts(texts, np.array(kept, dtype=np.int64), shard, balance)

    def _apply(self, functions: tuple[Function, ...], record: Record, shard: int, place: int) -> Record | None:
        for f in functions:
            try:
                result = f.call(record)
            except ZephonError:
                raise
            except Exception as error:
                raise FunctionError(
                    f"{f.kind} function {f.identity} failed with {type(error).__name__}: {error} on source "
                    f"{self.name!r}, shard {self.reader.manifest.shards[shard].name!r}, "
                    f"{self.reader.describe(place)}."
                ) from error
            if f.kind == "map":
                if type(result) is not dict:
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
