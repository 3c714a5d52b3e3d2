"""Planned bytes of Parquet are bytes of text or of ids, whatever the encoding and however often a text repeats."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from tests.scenarios import text_of
from torchtitan_zephon.read import sizes
from torchtitan_zephon.read.files import list_source
from torchtitan_zephon.read.groups import RowGroups
from torchtitan_zephon.read.parquet import ParquetReader
from torchtitan_zephon.read.settings import SourceConfig

ENCODINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "plain": {"use_dictionary": False},
    "plain, pages of version 2": {"use_dictionary": False, "data_page_version": "2.0"},
    "small dictionaries that overflow": {"dictionary_pagesize_limit": 1000},
    "delta length": {"use_dictionary": False, "column_encoding": {"text": "DELTA_LENGTH_BYTE_ARRAY"}},
    "delta": {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
    "without statistics": {"write_statistics": False, "use_dictionary": False},
}
KINDS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]


def write(path: Path, texts: list[Any], kind: pa.DataType | None = None, rows: int = 250, **settings: Any) -> Path:
    pq.write_table(pa.table({"text": pa.array(texts, kind or pa.string())}), path, row_group_size=rows, **settings)
    return path


def reader_of(path: Path, field: str = "text") -> ParquetReader:
    return ParquetReader(list_source("s", SourceConfig(path=str(path))), SourceConfig(field=field), 2**26)


def text_bytes(texts: list[Any], rows: int = 250) -> list[int]:
    return [sum(len((t or "").encode()) for t in texts[first : first + rows]) for first in range(0, len(texts), rows)]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("different", [3, 1000])
def test_the_size_of_a_row_group_is_that_of_its_text(different: int, encoding: str, tmp_path: Path) -> None:
    texts = [text_of(n % different, 20 + n % 30) for n in range(1000)]
    found = reader_of(write(tmp_path / "a.parquet", texts, **ENCODINGS[encoding])).pieces().sizes
    assert found.dtype == np.int64
    assert found.tolist() == text_bytes(texts)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("nulls", [0, 9])
def test_plain_texts_are_not_decoded_for_their_size(
    nulls: int, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [None if n % 10 < nulls else text_of(n, 20 + n % 30) for n in range(40_000)]
    write(tmp_path / "a.parquet", texts, rows=20_000, use_dictionary=False, data_page_version=version)
    monkeypatch.delattr(RowGroups, "_weigh")
    assert reader_of(tmp_path).pieces().sizes == pytest.approx(text_bytes(texts, 20_000), rel=0.02)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_kind_of_text_has_the_same_size(kind: pa.DataType, tmp_path: Path) -> None:
    texts = [text_of(n % 40, 1 + n % 30) + "東京" for n in range(600)]
    reader = reader_of(write(tmp_path / "a.parquet", texts, kind))
    assert reader.pieces().sizes.tolist() == text_bytes(texts)
    assert reader.weigh(1, np.array([0, 250])).tolist() == text_bytes(texts)[1:2]


def test_another_column_adds_nothing_to_the_size(tmp_path: Path) -> None:
    table = pa.table({"text.x": ["b" * 999] * 50, "text": ["a" * 10] * 50, "blob": [bytes(1000)] * 50})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False)
    assert reader_of(tmp_path / "a.parquet").pieces().sizes.tolist() == [500]


@pytest.mark.parametrize("dictionary", [True, False])
def test_nulls_have_no_text(dictionary: bool, tmp_path: Path) -> None:
    texts = [text_of(n, 30) if n % 10 == 0 else None for n in range(1000)]
    found = reader_of(write(tmp_path / "a.parquet", texts, use_dictionary=dictionary)).pieces().sizes
    assert found.tolist() == text_bytes(texts)


def test_a_row_group_of_empty_texts_is_one_byte(tmp_path: Path) -> None:
    assert reader_of(write(tmp_path / "a.parquet", [""] * 9)).pieces().sizes.tolist() == [1]


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.uint16())], ids=str)
@pytest.mark.parametrize("dictionary", [True, False])
def test_the_size_of_ids_is_4_bytes_an_id(dictionary: bool, kind: pa.DataType, tmp_path: Path) -> None:
    documents = [[7] * (n % 90) for n in range(600)]  # some are empty
    table = pa.table({"text": pa.array(documents, kind)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=250, use_dictionary=dictionary)
    reader = reader_of(tmp_path / "a.parquet")
    ids = [4 * sum(map(len, documents[first : first + 250])) for first in (0, 250, 500)]
    assert reader.pieces().sizes.tolist() == ids
    borders = np.array([0, 0, 17, 90, 250])
    expected = [4 * sum(map(len, documents[a:b])) for a, b in itertools.pairwise(borders.tolist())]
    assert reader.weigh(0, borders).tolist() == expected


def test_rows_of_a_fixed_number_of_ids_have_their_size(tmp_path: Path) -> None:
    table = pa.table({"text": pa.array([[1, 2, 3]] * 100, pa.list_(pa.int32(), 3))})
    pq.write_table(table, tmp_path / "a.parquet")
    reader = reader_of(tmp_path / "a.parquet")
    assert reader.pieces().sizes.tolist() == [1200]
    assert reader.weigh(0, np.array([10, 11, 100])).tolist() == [12, 1068]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_ranges_of_rows_weigh_what_their_texts_do(encoding: str, tmp_path: Path) -> None:
    texts = [text_of(n % 300, 1 + n % 50) if n % 9 else None for n in range(5000)]
    reader = reader_of(write(tmp_path / "a.parquet", texts, rows=5000, **ENCODINGS[encoding]))
    for borders in ([0, 5000], [0, 0, 1, 255, 256, 257, 4096, 4097, 4999, 5000], [3000, 3001], [5, 5], [0, 0], [7]):
        expected = [text_bytes(texts[a:b], 10**9) or [0] for a, b in itertools.pairwise(borders)]
        found = reader.weigh(0, np.array(borders))
        assert found.dtype == np.int64
        assert found.tolist() == [size for (size,) in expected]


def many_groups(path: Path, groups: int = 400) -> list[str]:
    """Texts that grow fivefold along the file, in row groups of 8; each text stands there 4 times."""
    texts = [text_of(n // 4, 10 + n * 40 // (8 * groups)) for n in range(8 * groups)]
    write(path, texts, rows=8)
    return texts


def test_many_row_groups_are_measured_in_part_and_the_others_follow_their_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = np.array(text_bytes(many_groups(tmp_path / "a.parquet"), 8))
    assert reader_of(tmp_path / "a.parquet").pieces().sizes.tolist() == true.tolist()
    monkeypatch.setattr(sizes, "MEASURED_BYTES", 40 * sizes.GROUP_BYTES)
    decoded, weigh = [], RowGroups._weigh
    monkeypatch.setattr(RowGroups, "_weigh", lambda *of: decoded.extend(g.number for g in of[1]) or weigh(*of))
    found = reader_of(tmp_path / "a.parquet").pieces().sizes
    assert 30 <= len(decoded) <= 40 and np.diff(decoded).max() <= 14  # spread over all 400
    assert abs(int(found.sum()) / int(true.sum()) - 1) < 0.005
    assert np.abs(found / true - 1).max() < 0.25


def test_of_a_row_group_above_the_budget_the_beginning_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [text_of(n % 50, 30) for n in range(60_000)]
    reader = reader_of(write(tmp_path / "a.parquet", texts, rows=60_000))
    (true,) = text_bytes(texts, 60_000)
    assert reader.pieces().sizes.tolist() == [true]
    monkeypatch.setattr(sizes, "MEASURED_BYTES", 2 * sizes.GROUP_BYTES)
    decoded, weigh = [], RowGroups._weigh
    monkeypatch.setattr(RowGroups, "_weigh", lambda *of: decoded.append(of[2].tolist()) or weigh(*of))
    assert abs(int(reader_of(tmp_path / "a.parquet").pieces().sizes[0]) / true - 1) < 0.005
    ((start, stop),) = decoded
    assert start == 0 and 10_000 < stop < 30_000


def test_of_many_files_some_are_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(20):
        write(tmp_path / f"{n:02}.parquet", [text_of(k, 20) for k in range(30)])
    monkeypatch.setattr(sizes, "MEASURED_SHARDS", 5)
    decoded, weigh = [], RowGroups._weigh
    monkeypatch.setattr(RowGroups, "_weigh", lambda *of: decoded.extend(g.shard for g in of[1]) or weigh(*of))
    found = reader_of(tmp_path).pieces().sizes
    assert decoded == [2, 6, 10, 14, 18]
    assert found == pytest.approx(text_bytes([text_of(k, 20) for k in range(30)]) * 20, abs=1)


counts = st.lists(st.tuples(st.integers(1, 10**9), st.integers(0, 10**12)), min_size=1, max_size=40)


@given(counts, st.data())
def test_sizes_that_are_filled_in_lie_between_those_known(groups: list[tuple[int, int]], data: st.DataObject) -> None:
    rows, true = (np.array(column, np.int64) for column in zip(*groups, strict=True))
    known = np.array(sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1))), np.int64)
    found = sizes.fill(rows, known, rows[known], true[known])
    assert found[known].tolist() == np.maximum(true[known], 1).tolist()
    means = true[known] / rows[known]
    for g in set(range(len(rows))) - set(known.tolist()):
        assert rows[g] * (means.min() - 0.01) - 1 <= found[g] <= rows[g] * (means.max() + 0.01) + 1


@given(counts)
def test_what_is_measured_keeps_within_the_budget(groups: list[tuple[int, int]]) -> None:
    rows, encoded = (np.array(column, np.int64) for column in zip(*groups, strict=True))
    picked = sizes.sample(np.arange(len(rows)), rows, encoded)
    assert len(picked.groups) and (picked.rows >= 1).all() and (picked.rows <= rows[picked.groups]).all()
    assert (np.diff(picked.groups) > 0).all()
    cost = encoded[picked.groups] + sizes.ROW_BYTES * rows[picked.groups] + sizes.GROUP_BYTES
    spent = sum(int(c) * int(n) // int(r) for c, n, r in zip(cost, picked.rows, rows[picked.groups], strict=True))
    one_row_each = sum(int(c) // int(r) for c, r in zip(cost, rows[picked.groups], strict=True))
    assert spent <= sizes.MEASURED_BYTES + one_row_each
