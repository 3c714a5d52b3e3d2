"""Plain text: a record is a line, or a whole file.

Lines are cut as those of JSONL, and blank ones are no records. A file that is one record belongs to the chunk that
holds its first byte. Text is UTF-8, a byte order mark is no part of it, and nothing else is taken away but the line's
end. The record has one field, which is named as the source's.
"""

from __future__ import annotations

from ..bad_records import BadRecord, Sifted
from ..plan.chunking import Chunk
from ..records import RECORD, Contents, Documents, Record, origin_of
from .files import Manifest
from .line_files import LineCutter, LineReader
from .lines import too_long
from .packings import BLOCK_BYTES, Unpacked
from .placed import Numbered, PlacedReader
from .sequential import Cut
from .settings import SourceConfig

_BOM = b"\xef\xbb\xbf"


def text_reader(manifest: Manifest, settings: SourceConfig, max_record_bytes: int) -> LineReader | TextFileReader:
    """The reader of plain text files."""
    made = TextFileReader if settings.record == "file" else TextLineReader
    return made(manifest, settings, max_record_bytes)


def text_cutter(manifest: Manifest, settings: SourceConfig, max_record_bytes: int) -> LineCutter | TextFileCutter:
    """The cutter of text files that are read from the front."""
    made = TextFileCutter if settings.record == "file" else TextLineCutter
    return made(manifest, settings, max_record_bytes)


class TextLineReader(LineReader):
    """Reads the chunks of one source, a record a line."""

    def record(self, line: bytes, at: int) -> Record | BadRecord | None:
        """As ``LineReader``."""
        return _record(line.removesuffix(b"\r"), self.field, at) if line.strip() else None


class TextLineCutter(LineCutter):
    """The lines of text files that are read from the front."""

    def record(self, line: bytes, at: int) -> Record | BadRecord | None:
        """As ``LineCutter``."""
        return _record(line.removesuffix(b"\r"), self.field, at) if line.strip() else None


class TextFileReader(PlacedReader):
    """Reads the files of one source, each a record."""

    def places(self, shard: int) -> Numbered:
        """As ``PlacedReader``."""
        return Numbered(range(1), self.manifest.shards[shard].num_bytes)

    def records(self, chunk: Chunk, first: int, stop: int, columns: frozenset[str] | None) -> Sifted:
        """As ``PlacedReader``."""
        if first == stop:
            return _whole(chunk, [], self._field)
        return _whole(chunk, [self.bytes_of(chunk.piece, 0, self.manifest.shards[chunk.piece].num_bytes)], self._field)

    def describe(self, place: int) -> str:
        """As ``PlacedReader``."""
        return "the file"


class TextFileCutter:
    """Files that are read from the front, each a record."""

    contents: Contents = "text"

    def __init__(self, manifest: Manifest, settings: SourceConfig, max_record_bytes: int) -> None:
        self._field, self._most = settings.text.fields[0], max_record_bytes

    def seek(self, stream: Unpacked, at: int) -> None:
        """As ``Cutter``: the only record begins at 0."""
        if at:
            self.take(stream, 1)

    def take(self, stream: Unpacked, stop: int) -> Cut:
        """As ``Cutter``: the whole file, if it was not read yet."""
        at, parts = stream.at, list[bytes]()
        while data := stream.read(BLOCK_BYTES):
            parts = [*parts, data] if stream.at - at <= self._most else []
        size = stream.at - at
        return Cut(at, b"".join(parts), ((at, size),) if size > self._most else ())

    def parse(self, chunk: Chunk, cut: Cut, columns: frozenset[str] | None) -> Sifted:
        """As ``Cutter``."""
        documents, bad = _whole(chunk, [cut.data] if cut.data else [], self._field)
        return documents, [*bad, *(too_long(place, self._most) for place, _ in cut.too_long)]

    def describe(self, place: int) -> str:
        """As ``Cutter``."""
        return "the file"


def _whole(chunk: Chunk, files: list[bytes], field: str) -> Sifted:
    made = [_record(data.removeprefix(_BOM), field, 0) for data in files]
    good = [record for record in made if isinstance(record, dict)]
    documents = Documents.of_values({RECORD: good}, origin_of(chunk.source, chunk.piece, [0] * len(good)))
    return documents, [record for record in made if isinstance(record, BadRecord)]


def _record(data: bytes, field: str, at: int) -> Record | BadRecord:
    try:
        return {field: data.decode()}
    except UnicodeDecodeError as error:
        where = f"byte {at + error.start:,}"
        return BadRecord(
            "column", at, f"the text is not UTF-8 ({error.reason} at {where}, {data[error.start :][:16]!r})"
        )
