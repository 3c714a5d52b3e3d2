"""CSV, as RFC 4180 has it: a quoted field may hold line ends, so a file can only be read from the front.

A record ends with a line end that an even number of quotes lies before. So the places of quotes and line ends are all
that is looked at where a slice is passed over. A quote may stand around a field and, doubled, inside a quoted one;
behind one that stands elsewhere it cannot be known where a record ends, so that is an error of the file. The first
record names the columns. Values are text, whatever they look like. Arrow parses.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.csv

from ..bad_records import BadRecord, Sifted
from ..errors import SourceError
from ..plan.chunking import Chunk
from ..records import RECORD, Contents, Documents, origin_of
from .files import Manifest
from .lines import too_long
from .packings import BLOCK_BYTES, Entry, Unpacked, open_unpacked, unpacked_name
from .sequential import Cut
from .settings import SourceConfig

_BOM = b"\xef\xbb\xbf"
_QUOTE, _LINE_END = b'"\n'


class CsvCutter:
    """The records of the CSV files of one source. Thread-safe: two threads may read one file's header, to no harm."""

    contents: Contents = "text"

    def __init__(self, manifest: Manifest, settings: SourceConfig, max_record_bytes: int) -> None:
        self._manifest, self._stated, self._most = manifest, settings.delimiter, max_record_bytes
        self._headers: dict[int, list[str]] = {}

    def seek(self, stream: Unpacked, at: int) -> None:
        """Go to the first record that begins at ``at`` or behind it."""
        for _ in self._blocks(stream, at):
            pass

    def take(self, stream: Unpacked, stop: int) -> Cut:
        """All records that begin before ``stop``."""
        begin = record = stream.at  # `record`: where the one at hand begins
        kept, whole = bytearray(), 0  # kept[:whole] are whole records
        gaps = []
        for at, data, ends in self._blocks(stream, stop):
            if len(ends):
                first, last = int(ends[0]), int(ends[-1])
                if (size := at + first - record) > self._most:
                    gaps.append((record, size))
                    del kept[whole:]
                    kept += data[first:last]
                else:
                    kept += data[:last]
                whole, record, data = len(kept), at + last, data[last:]
            kept += data
            if len(kept) - whole > self._most:
                del kept[whole:]
        if stream.at - record > self._most:  # the file's last one, without a line end
            gaps.append((record, stream.at - record))
            del kept[whole:]
        return Cut(begin, bytes(kept), tuple(gaps))

    def _blocks(self, stream: Unpacked, stop: int) -> Iterator[tuple[int, bytes, np.ndarray]]:
        """The bytes up to the first end of a record at ``stop`` or behind it, where the stream then stands.

        In blocks: where one begins, its bytes, and where in it records end, int64 [ends].
        """
        if stream.at >= stop:
            return
        open_at, is_open, last = stream.at, 0, _LINE_END
        while data := stream.read(BLOCK_BYTES):
            at, array = stream.at - len(data), np.frombuffer(data, np.uint8)
            quotes = np.flatnonzero(array == _QUOTE)
            self._check_opening(stream, at, array, quotes[is_open::2], last)
            line_ends = np.flatnonzero(array == _LINE_END)
            ends = line_ends[(np.searchsorted(quotes, line_ends) + is_open) % 2 == 0] + 1
            if (is_open + len(quotes)) % 2 and len(quotes):
                open_at = at + int(quotes[-1])
            is_open, last = (is_open + len(quotes)) % 2, data[-1]
            number = int(np.searchsorted(ends, stop - at))
            if number < len(ends):
                stream.unread(data[ends[number] :])
                yield at, data[: ends[number]], ends[: number + 1]
                return
            yield at, data, ends
        if is_open:
            raise SourceError(
                f"{stream.path!r}: the quote at byte {open_at:,} is never closed, so all behind it would be one field. "
                "The file is cut, or a quote is missing there."
            )

    def _check_opening(self, stream: Unpacked, at: int, array: np.ndarray, opening: np.ndarray, last: int) -> None:
        """Raise ``SourceError`` for a quote that opens anywhere but at a field's beginning, or doubles another."""
        before = np.where(opening > 0, array[opening - 1], last)
        fits = np.isin(before, [_LINE_END, _QUOTE, *(self._stated or _delimiter_of(stream.path)).encode()])
        fits |= (before == _BOM[-1]) & (at + opening == len(_BOM))
        if not fits.all():
            place = at + int(opening[~fits][0])
            raise SourceError(
                f"{stream.path!r}: the quote at byte {place:,} stands inside a field that is not quoted, so it is not "
                "known where records end from there on. Write the file anew with a library: fields with quotes are put "
                "in quotes, and theirs are doubled (RFC 4180)."
            )

    def _delimiter_of(self, name: str) -> str:
        return self._stated or ("\t" if unpacked_name(name).lower().endswith(".tsv") else ",")

    def parse(self, chunk: Chunk, cut: Cut, columns: frozenset[str] | None) -> Sifted:
        """The records of ``cut``: the wanted columns where the file has them all, else whole."""
        header, borders = self._header(chunk.piece), _borders(cut.data)
        if cut.at == 0:
            borders = borders[1:]  # the first record is the header
        places, sizes = cut.places(borders[:-1]), np.diff(borders)
        wanted = header if columns is None or not columns <= {*header} else [n for n in header if n in columns]
        parse = partial(_parsed, header=header, wanted=wanted, delimiter=self._delimiter(chunk.piece))
        try:
            if (sizes > self._most).any():
                raise pa.ArrowInvalid
            found = parse(cut.data[borders[0] :] if len(borders) else b"")
            if len(found) != len(places):  # a blank line is no record
                raise pa.ArrowInvalid
            bad = list[BadRecord]()
        except pa.ArrowInvalid:
            found, kept, bad = _one_by_one(cut.data, borders, places, self._most, parse)
            places = places[kept]
        bad += [too_long(place, self._most) for place, _ in cut.too_long]
        columns_of = {name: found.column(i).to_pylist() for i, name in enumerate(wanted)}
        if wanted is header:
            rows = [dict(zip(header, row, strict=True)) for row in zip(*columns_of.values(), strict=True)]
            columns_of = {RECORD: rows}
        return Documents.of_values(columns_of, origin_of(chunk.source, chunk.piece, places)), bad

    def _header(self, piece: int) -> list[str]:
        """The names of the columns of a file, as its first record has them. Raises ``SourceError``."""
        if piece not in self._headers:
            shard, store = self._manifest.shards[piece], self._manifest.store
            path = store.path(shard.name)
            stream = open_unpacked(store.open(shard.name), path, shard.name, shard.num_bytes, Entry(0, 0))
            try:
                first = self.take(stream, 1).data.removeprefix(_BOM).decode()
            except UnicodeDecodeError:
                raise SourceError(f"{path!r}: its first line is not UTF-8. Convert the file to UTF-8.") from None
            names = next(csv.reader(io.StringIO(first, newline=""), delimiter=self._delimiter(piece)), [])
            twice = [name for name in names if names.count(name) > 1]
            if twice or not names:
                problem = f"names two columns {twice[0]!r}" if twice else "is empty"
                raise SourceError(f"{path!r}: its first line, which names the columns, {problem}. Mend that line.")
            self._headers[piece] = names
        return self._headers[piece]

    def _delimiter(self, piece: int) -> str:
        return self._stated or _delimiter_of(self._manifest.shards[piece].name)

    def describe(self, place: int) -> str:
        """In words, where in its file a record lies."""
        return f"record at byte {place}"


def _delimiter_of(name: str) -> str:
    return "\t" if unpacked_name(name).lower().endswith(".tsv") else ","


def _borders(data: bytes) -> np.ndarray:
    """Where the records in ``data`` begin, and where the last one ends: int64 [records + 1]."""
    array = np.frombuffer(data, np.uint8)
    line_ends = np.flatnonzero(array == _LINE_END)
    ends = line_ends[np.searchsorted(np.flatnonzero(array == _QUOTE), line_ends) % 2 == 0] + 1
    rest = [len(data)] if len(data) > (ends[-1] if len(ends) else 0) else []
    return np.concatenate([[0] if data else [], ends, rest]).astype(np.int64)


def _parsed(data: bytes, *, header: list[str], wanted: list[str], delimiter: str) -> pa.Table:
    """Columns of text of the records in ``data``. Raises ``pa.ArrowInvalid``."""
    return pa.csv.read_csv(
        pa.BufferReader(data or b"\n"),
        pa.csv.ReadOptions(use_threads=False, block_size=len(data) + 2, column_names=header),
        pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        pa.csv.ConvertOptions(
            column_types=dict.fromkeys(header, pa.string()), include_columns=wanted, strings_can_be_null=False
        ),
    )


def _one_by_one(
    data: bytes, borders: np.ndarray, places: np.ndarray, most: int, parse: Callable[[bytes], pa.Table]
) -> tuple[pa.Table, list[int], list[BadRecord]]:
    """The good records in ``data``, their numbers, and the bad ones; blank lines are neither."""
    found, kept, bad = [parse(b"")], [], []
    for n, (begin, end) in enumerate(itertools.pairwise(borders.tolist())):
        record, place = data[begin:end], int(places[n])
        try:
            if len(record) > most:
                bad.append(too_long(place, most))
            elif record.strip(b"\r\n"):
                found.append(parse(record))
                kept.append(n)
        except pa.ArrowInvalid as error:
            bad.append(BadRecord("line", place, _misfit(error, record)))
    return pa.concat_tables(found), kept, bad


def _misfit(error: pa.ArrowInvalid, record: bytes) -> str:
    """Why a record is none, in words."""
    if fields := re.search(r"Expected (\d+) columns, got (\d+)", str(error)):
        why = f"the record has {fields[2]} fields, and the header {fields[1]}"
    else:
        why = "the record is not UTF-8" if "UTF8" in str(error) else f"the record cannot be parsed: {error}"
    return f"{why}; it begins {record[:60]!r}"
