"""A chunk's documents: read, passed through the user's functions, checked. Bad records are judged here and only here.

What flows in: a source and a chunk. What flows out: ``Documents`` of texts or of token ids, in the file's order. Every
record is accounted for: a document, empty, filtered by a user's function, or refused as bad.
"""

from __future__ import annotations

from dataclasses import replace

from .bad_records import DEFAULTS, BadRecord, BadRecordSettings
from .balance import Refused
from .errors import FunctionError, RecordError
from .ops import fields
from .ops.functions import Function, apply
from .plan.chunking import Chunk
from .read.sequential import Cut
from .read.source import Source
from .records import Documents

WAY_OUT = 'Mend it, or leave bad records out with on_bad_record = "skip", which a resume can do too.'


def read_documents(
    source: Source,
    chunk: Chunk,
    functions: tuple[Function, ...] = (),
    policy: BadRecordSettings = DEFAULTS,
    limits: fields.IdLimits = fields.ANY_IDS,
    cut: Cut | None = None,
) -> Documents:
    """The documents of ``chunk``. ``limits``: of token ids. ``cut``: what was read of it, if it was.

    Raises ``RecordError`` or ``FunctionError`` for the first bad record in the file, unless the policy is "skip".
    """
    documents, bad = source.read(chunk, None if functions else frozenset(source.text.fields), cut)
    records = len(documents) + len({record.place for record in bad})
    if functions:
        documents, more = apply(functions, documents)
        bad += more
    documents, more = fields.checked(documents, source.text, source.reader.contents, limits)
    refused = _judged(source, chunk, bad + more, policy)
    return replace(documents, read=replace(documents.read, records=records, refused=refused))


def _judged(source: Source, chunk: Chunk, bad: list[BadRecord], policy: BadRecordSettings) -> dict[str, Refused]:
    """What is left out, by kind. Raises the error of the first record that must not be."""
    refused: dict[str, Refused] = {}
    place = -1
    for record in sorted(bad, key=lambda record: record.place):
        if policy.on_bad_record == "error" or record.kind == "file":
            raise _refusal(source, chunk, record) from record.cause
        if record.place != place:  # two fields of one record may be bad
            place = record.place
            number, first = refused.get(record.kind) or (0, _told(source, chunk, record))
            refused[record.kind] = Refused(number + 1, first)
    return refused


def _place(source: Source, chunk: Chunk, bad: BadRecord) -> tuple[str, str]:
    """The shard of a bad record, and its place in there."""
    reader = source.reader
    return reader.manifest.shards[reader.shard_of(chunk.piece)].name, reader.describe(bad.place)


def _told(source: Source, chunk: Chunk, bad: BadRecord) -> str:
    shard, place = _place(source, chunk, bad)
    return f"shard {shard!r}, {place}: {bad.problem}"


def _refusal(source: Source, chunk: Chunk, bad: BadRecord) -> RecordError | FunctionError:
    shard, place = _place(source, chunk, bad)
    way_out = "" if bad.kind == "file" else f" {WAY_OUT}"
    if bad.kind == "function":
        return FunctionError(f"{bad.problem} on source {source.name!r}, shard {shard!r}, {place}.{way_out}")
    return RecordError(f"{bad.problem}.{way_out}", source=source.name, shard=shard, place=place)
