"""A chunk's documents: read, passed through the user's functions, checked. Bad records are judged here and only here.

What flows in: a source and a chunk. What flows out: ``Documents`` of texts or of token ids, in the file's order. Every
record is accounted for: a document, empty, or filtered by a user's function.
"""

from __future__ import annotations

from .bad_records import BadRecord
from .errors import FunctionError, RecordError
from .ops import fields
from .ops.functions import Function, apply
from .plan.chunking import Chunk
from .read.sequential import Cut
from .read.source import Source
from .records import Documents


def read_documents(source: Source, chunk: Chunk, functions: tuple[Function, ...], cut: Cut | None = None) -> Documents:
    """The documents of ``chunk``; ``cut``: what was read of it, if it was.

    Raises ``RecordError`` or ``FunctionError`` for the first bad record in the file.
    """
    documents, bad = source.read(chunk, None if functions else frozenset({source.field}), cut)
    if functions:
        documents, more = apply(functions, documents)
        bad += more
    documents, more = fields.checked(documents, source.field, source.reader.contents)
    bad += more
    if bad:
        first = min(bad, key=lambda record: record.place)
        raise _refusal(source, chunk, first) from first.cause
    return documents


def _refusal(source: Source, chunk: Chunk, bad: BadRecord) -> RecordError | FunctionError:
    reader = source.reader
    shard, place = reader.manifest.shards[reader.shard_of(chunk.piece)].name, reader.describe(bad.place)
    if bad.kind == "function":
        return FunctionError(f"{bad.problem} on source {source.name!r}, shard {shard!r}, {place}.")
    return RecordError(bad.problem, source=source.name, shard=shard, place=place)
