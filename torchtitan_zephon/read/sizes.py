"""How many bytes of text or token ids a row group holds, known before it is read.

A footer tells the size of a column as it is encoded. Where every text stands there as it is, the bytes of text follow
from it. A dictionary (which pyarrow writes by default) holds a repeated text once, so the size says little: the
lengths of the texts are then decoded, within ``MEASURED_BYTES`` a source. If there is more, row groups spread evenly
over the source are decoded, and the others get their rows times the mean of the nearest that are known. So the sizes
depend on the files alone, not on lanes, threads or batches. A column of token ids counts 4 bytes an id.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .ids import is_ids, is_text, list_lengths, numbers, valid

MEASURED_BYTES = 64 * 2**20
"""Encoded bytes decoded a source at start-up, in all; about 0.3 s."""
GROUP_BYTES = 32 * 2**10
"""What beginning with a row group costs, in bytes decoded in that time."""
ROW_BYTES = 4
"""The same for a row."""
MEASURED_SHARDS = 512
"""Most files in which row groups are measured: opening one again costs about 0.3 ms."""
ID_BYTES = 4
_NEAREST = 2
_PLAIN = {"PLAIN", "RLE", "BIT_PACKED"}  # the last two hold where the nulls are
_LENGTH_BYTES = 4
_SMALL_BYTES = 256 * 2**10
"""Below this the headers of pages, about 100 to 400 bytes each, are too large a part to say what the text is."""


class Sample(NamedTuple):
    """Row groups to measure, int64 [picked]: which of those given, and how many of its first rows."""

    groups: np.ndarray
    rows: np.ndarray


def stated_bytes(column: pq.ColumnChunkMetaData, ids: bool) -> int | None:
    """Bytes of text or of ids in a column chunk as its footer gives them; None where it does not say.

    Nulls and empty lists count as an id each if the footer does not tell how many there are.
    """
    nulls = _nulls(column)
    if ids:
        return max(1, ID_BYTES * (int(column.num_values) - (nulls or 0)))
    encoded = int(column.total_uncompressed_size)
    if nulls is None or encoded < _SMALL_BYTES or column.has_dictionary_page or not set(column.encodings) <= _PLAIN:
        return None
    return max(1, encoded - _LENGTH_BYTES * (int(column.num_values) - nulls))


def _nulls(column: pq.ColumnChunkMetaData) -> int | None:
    statistics = column.statistics
    return int(statistics.null_count) if statistics is not None and statistics.has_null_count else None


def sample(shards: np.ndarray, rows: np.ndarray, encoded: np.ndarray) -> Sample:
    """Which row groups to measure, of those that need it; all of them if they are small. Each int64 [groups]."""
    few = _spread(np.unique(shards), MEASURED_SHARDS)
    groups = np.flatnonzero(np.isin(shards, few))
    cost = encoded[groups] + ROW_BYTES * rows[groups] + GROUP_BYTES
    if (total := int(cost.sum())) <= MEASURED_BYTES:
        return Sample(groups, rows[groups])
    picked = _spread(np.arange(len(groups)), max(16, len(groups) * MEASURED_BYTES // total))
    share = MEASURED_BYTES // len(picked)
    groups, cost = groups[picked], cost[picked]
    beginning = [max(1, int(r) * share // int(c)) for r, c in zip(rows[groups], cost, strict=True)]
    return Sample(groups, np.minimum(rows[groups], np.array(beginning, np.int64)))


def _spread(items: np.ndarray, most: int) -> np.ndarray:
    """``items``, or ``most`` of them, evenly spaced."""
    if len(items) <= most:
        return items
    return items[(2 * np.arange(most) + 1) * len(items) // (2 * most)]


def fill(rows: np.ndarray, known: np.ndarray, known_rows: np.ndarray, known_bytes: np.ndarray) -> np.ndarray:
    """Bytes of every row group, at least 1, int64 [groups].

    ``known``: rising numbers of row groups of which ``known_bytes`` in ``known_rows`` rows are known, each int64
    [known]. A group of which all rows are known has just these; another gets its rows times the mean of its own rows
    that are known, or of the nearest two known groups on either side.
    """
    rows_before, bytes_before = (np.concatenate([[0], np.cumsum(c)]) for c in (known_rows, known_bytes))
    place = np.searchsorted(known, np.arange(len(rows)))
    first, last = np.maximum(place - _NEAREST, 0), np.minimum(place + _NEAREST, len(known))
    sizes: np.ndarray = _scaled(rows, rows_before[last] - rows_before[first], bytes_before[last] - bytes_before[first])
    own = rows[known]
    sizes[known] = np.where(known_rows == own, known_bytes, _scaled(own, known_rows, known_bytes))
    sizes[sizes < 1] = 1
    return sizes


def _scaled(rows: np.ndarray, known_rows: np.ndarray, known_bytes: np.ndarray) -> np.ndarray:
    """``rows`` times the mean bytes of a known row, which is taken to 1/1024 byte so that int64 does not overflow."""
    scaled: np.ndarray = rows * ((known_bytes << 10) // known_rows) >> 10
    return scaled


def value_bytes(column: pa.Array) -> np.ndarray:
    """Bytes of every row of a column of text or of ids, int64 [rows]; 0 for a column of another type."""
    if is_ids(column.type):
        found: np.ndarray = list_lengths(column) * (column.type.value_type.bit_width // 8)
        return found
    return lengths(column, ids=False) if is_text(column.type) else np.zeros(len(column), np.int64)


def lengths(column: pa.Array, ids: bool) -> np.ndarray:
    """Bytes of text (UTF-8) or of ids in every row, int64 [rows]; a null has none."""
    if isinstance(column, pa.DictionaryArray):
        of_entry = np.append(lengths(column.dictionary, ids), 0)  # the last one is for nulls
        entries = numbers(column.indices)
        return of_entry.take(np.where(valid(column), entries, -1) if column.null_count else entries)
    found = ID_BYTES * list_lengths(column) if ids else _text_lengths(column)
    return found * valid(column) if column.null_count else found


def _text_lengths(column: pa.Array) -> np.ndarray:
    if not len(column):
        return np.zeros(0, np.int64)
    places = column.buffers()[1]  # where each text ends; or, of a view, 4 numbers: its length and where it is
    if str(column.type).endswith("_view"):
        return np.frombuffer(places, np.int32, 4 * len(column), 16 * column.offset)[::4].astype(np.int64)
    kind = np.dtype(np.int64 if str(column.type).startswith("large") else np.int32)
    ends = np.frombuffer(places, kind, len(column) + 1, kind.itemsize * column.offset)
    return np.diff(ends.astype(np.int64))
