"""Tar archives of samples, as WebDataset has them: files of one name up to the first dot, side by side.

What flows in: ``0/17.txt``, ``0/17.json``. What flows out: a record ``{"__key__": "0/17", "txt": ..., "json": ...}``
with a field a file, named by what is behind the dot: text as a string, JSON as what it says, anything else as bytes. A
record begins with the first header of its sample. Headers are walked and contents passed over, so that nothing is
parsed where a slice is not wanted. Entries that are no files, and files without a dot, are no part of a sample. An
archive without its end mark is cut, and that is an error.
"""

from __future__ import annotations

import io
import tarfile
from typing import Any

import numpy as np
import orjson

from ..bad_records import BadRecord, Sifted
from ..errors import SourceError
from ..plan.chunking import Chunk
from ..records import RECORD, Contents, Documents, Record, origin_of
from .files import Manifest
from .lines import too_long
from .packings import BLOCK_BYTES, Unpacked
from .sequential import Cut
from .settings import SourceConfig

KEY = "__key__"
TEXT_FIELDS = frozenset({"txt", "text", "md", "html", "cls", "transcript"})
"""Last parts of names whose files are text; JSON is read as such."""
_BLOCK = 512
_END = bytes(_BLOCK)
_OF_THE_NEXT = frozenset({tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK})
"""Entries that say more of the entry behind them, such as its long name."""
_MOST_HEADER_BYTES = 2**20


class TarCutter:
    """The samples of the archives of one source. Thread-safe: it keeps nothing."""

    contents: Contents = "text"

    def __init__(self, manifest: Manifest, settings: SourceConfig, max_record_bytes: int) -> None:
        self._most = max_record_bytes

    def seek(self, stream: Unpacked, at: int) -> None:
        """Go to the first sample that begins at ``at`` or behind it."""
        while stream.at < at and _sample(stream, 0) != b"":
            pass

    def take(self, stream: Unpacked, stop: int) -> Cut:
        """All samples that begin before ``stop``."""
        begin = place = stream.at
        parts, gaps = [], []
        while place < stop and (sample := _sample(stream, self._most)) != b"":
            if sample is None:
                gaps.append((place, stream.at - place))
            else:
                parts.append(sample)
            place = stream.at
        return Cut(begin, b"".join(parts), tuple(gaps))

    def parse(self, chunk: Chunk, cut: Cut, columns: frozenset[str] | None) -> Sifted:
        """The samples of ``cut`` as records, with the wanted files or all of them."""
        records: list[Record] = []
        offsets: list[int] = []
        bad = [too_long(place, self._most) for place, _ in cut.too_long]
        for offset, record in _records(cut.data, columns):
            if isinstance(record, str):
                bad.append(BadRecord("column", int(cut.places(np.array([offset]))[0]), record))
            else:
                records.append(record)
                offsets.append(offset)
        places = cut.places(np.array(offsets, np.int64))
        return Documents.of_values({RECORD: records}, origin_of(chunk.source, chunk.piece, places)), bad

    def describe(self, place: int) -> str:
        """In words, where in its archive a sample lies."""
        return f"sample at byte {place}"


def _sample(stream: Unpacked, most: int) -> bytes | None:
    """The next sample as it stands in the archive; None if it has more than ``most`` bytes, b"" at the end."""
    parts: list[bytes] = []
    length, key = 0, None
    while (found := _headers(stream, in_sample=bool(length))) is not None:
        headers, entry = found
        own = _named(entry)[0]
        if key and own and own != key:
            stream.unread(headers)
            break
        key = key or own
        size = -(-entry.size // _BLOCK) * _BLOCK if entry.isreg() else 0
        length += len(headers) + size
        if length <= most:
            parts += [headers, _exactly(stream, size)]
        else:
            parts.clear()
            _pass_over(stream, size)
    return b"".join(parts) if length <= most else None


def _headers(stream: Unpacked, in_sample: bool) -> tuple[bytes, tarfile.TarInfo] | None:
    """The headers of the next entry, and what they say; None at the archive's end, which is read.

    ``in_sample``: whether there must be an entry or an end mark.
    """
    headers = b""
    while True:
        at, block = stream.at, _exactly(stream, _BLOCK, may_end=not in_sample and not headers)
        if not block or block == _END:
            _check_end(stream)
            return None
        try:
            entry = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise SourceError(
                f"{stream.path!r}: there is no header of an entry at byte {at:,} ({error}), but {block[:16]!r}. The "
                "archive is damaged, or is none; see with `tar -t`."
            ) from None
        headers += block
        if entry.type not in _OF_THE_NEXT:
            if entry.type == tarfile.GNUTYPE_SPARSE:
                raise SourceError(f"{stream.path!r}: {entry.name!r} is a sparse file, which is not read. Pack it anew.")
            return headers, _whole(headers)
        if entry.size > _MOST_HEADER_BYTES:
            raise SourceError(f"{stream.path!r}: the header at byte {at:,} has {entry.size:,} bytes; it is damaged.")
        headers += _exactly(stream, -(-entry.size // _BLOCK) * _BLOCK)


def _whole(headers: bytes) -> tarfile.TarInfo:
    """What the headers of one entry say together."""
    with tarfile.open(fileobj=io.BytesIO(headers + 2 * _END), mode="r:") as archive:
        entry = archive.next()
    assert entry is not None
    return entry


def _exactly(stream: Unpacked, size: int, may_end: bool = False) -> bytes:
    """The next ``size`` bytes; none if the stream has ended and ``may_end``."""
    data = stream.read(size) if size else b""
    while len(data) < size:
        more = stream.read(size - len(data))
        if not more and may_end and not data:
            return b""
        if not more:
            raise _cut(stream)
        data += more
    return data


def _pass_over(stream: Unpacked, size: int) -> None:
    end = stream.at + size
    stream.skip(end)
    if stream.at < end:
        raise _cut(stream)


def _cut(stream: Unpacked) -> SourceError:
    return SourceError(
        f"{stream.path!r} is cut: it ends at byte {stream.at:,}, inside an entry or without the archive's end mark. It "
        "was copied in part or is still being written; copy it again, and see with `tar -t` that it is whole."
    )


def _check_end(stream: Unpacked) -> None:
    """Raise ``SourceError`` unless there are only zeros from here on."""
    while data := stream.read(BLOCK_BYTES):
        if data.strip(b"\0"):
            at = stream.at - len(data.lstrip(b"\0"))
            raise SourceError(
                f"{stream.path!r}: behind the archive's end mark, from byte {at:,} on, there are other bytes. If "
                "archives were joined with cat: join them with `tar --concatenate`."
            )


def _named(entry: tarfile.TarInfo) -> tuple[str, str]:
    """Key and field of an entry; '' for one that is no part of a sample."""
    folder, slash, name = entry.name.rpartition("/")
    stem, dot, field = name.partition(".")
    return (f"{folder}{slash}{stem}", field.lower()) if entry.isreg() and stem and dot else ("", "")


def _records(data: bytes, columns: frozenset[str] | None) -> list[tuple[int, Record | str]]:
    """Each sample in ``data`` with its offset: a record, or what is wrong with it."""
    found: dict[int, dict[str, Any] | str] = {}
    offset, key = 0, None
    with tarfile.open(fileobj=io.BytesIO(data + 2 * _END), mode="r:") as archive:
        for entry in archive:
            own, field = _named(entry)
            if own and own != key:
                offset, key = entry.offset, own
                found[offset] = {KEY: key}
            record = found.get(offset)
            if not own or isinstance(record, str) or record is None:
                continue
            if field in record:
                found[offset] = f"the sample {key!r} has two files {field!r}"
            elif columns is None or field in columns:
                content = archive.extractfile(entry)
                assert content is not None
                try:
                    record[field] = _value(field, content.read())
                except ValueError as error:
                    found[offset] = f"the file {entry.name!r} of the sample cannot be read: {error}"
            else:
                record[field] = None
    return list(found.items())


def _value(field: str, content: bytes) -> Any:
    """What a file holds. ``ValueError`` if it is not what its name says."""
    last = field.rpartition(".")[2]
    if last == "json":
        return orjson.loads(content)
    return content.decode() if last in TEXT_FIELDS else content
