"""Parquet sources of very many files: none is opened at the start, and every row is read once."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from tests.scenarios import global_batches, rank_steps, small_pipeline, texts_of, write_parquet
from torchtitan_zephon import Pipeline, SourceError
from torchtitan_zephon.plan.chunking import Chunk
from torchtitan_zephon.read import many_files, parquet
from torchtitan_zephon.read.files import list_source
from torchtitan_zephon.read.many_files import OPEN_FILES, SAMPLED_FILES, ManyFiles
from torchtitan_zephon.read.parquet import ParquetReader, parquet_reader
from torchtitan_zephon.read.settings import SourceConfig
from torchtitan_zephon.read.store import LocalStore

FILES = 100


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "FEW_FILES", FILES - 1)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files without rows, of one row, of row groups of one row, with empty row groups; plain, dictionary and zstd."""
    folder = tmp_path_factory.mktemp("odd")
    for n in range(FILES):
        texts = texts_of([0, 1, 7, 30, 64, 200][n % 6], 1000 * n)
        table = pa.table({"text": texts, "n": list(range(len(texts)))}, pa.schema([("text", pa.string()), ("n", "i4")]))
        how: Any = {"use_dictionary": n % 2 == 0, "compression": "zstd" if n % 5 else "none"}
        with pq.ParquetWriter(folder / f"{n:03d}.parquet", table.schema, **how) as file:
            for part in range(0, len(texts), rows := [1, 16, 500][n % 3]):
                file.write_table(table.slice(part, rows))
                file.write_table(table.slice(0, 0))
    return folder


def reader_of(folder: Path, field: str = "text") -> Any:
    return parquet_reader(list_source("s", SourceConfig(path=str(folder))), SourceConfig(field=field), 2**20)


def pipeline(folder: Path, **options: Any) -> Pipeline:
    return small_pipeline({"s": folder}, local_batch_size=1, **options)


def texts_of_chunk(reader: ManyFiles, piece: int, start: int, stop: int) -> list[str]:
    documents, bad = reader.read(Chunk(0, 0, 0, piece, start, stop, 1), frozenset({"text"}))
    assert not bad
    assert documents.origin[:, :2].tolist() == [[0, piece]] * len(documents)
    return documents.values["text"]


def test_none_but_a_sample_of_the_files_is_opened_at_the_start(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: Counter[str] = Counter()
    real = LocalStore.open_for_arrow

    def counted(self: LocalStore, name: str) -> Any:
        opened[name] += 1
        return real(self, name)

    monkeypatch.setattr(LocalStore, "open_for_arrow", counted)
    reader = reader_of(odd)
    assert type(reader) is ManyFiles
    assert len(opened) == SAMPLED_FILES
    pieces = reader.pieces()
    assert pieces.units.tolist() == [shard.num_bytes for shard in reader.manifest.shards]
    every = [pq.read_table(path)["text"].to_pylist() for path in sorted(odd.iterdir())]
    text = sum(len(row.encode()) for rows in every for row in rows)
    assert 0.5 < pieces.sizes.sum() / text < 2


def test_a_source_of_fewer_files_is_cut_by_its_row_groups(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "pieces" in pipeline(odd).stream.program.identity["sources"]["s"]
    monkeypatch.setattr(parquet, "FEW_FILES", FILES)
    assert type(reader_of(odd)) is ParquetReader
    assert "pieces" not in pipeline(odd).stream.program.identity["sources"]["s"]


@hypothesis_settings(deadline=None)
@given(data=st.data())
def test_cuts_anywhere_give_every_row_once_and_in_order(odd: Path, data: st.DataObject) -> None:
    reader = data.draw(st.shared(st.builds(lambda: reader_of(odd)), key="reader"))
    piece = data.draw(st.integers(0, FILES - 1))
    units = int(reader.pieces().units[piece])
    cuts = sorted({0, units, *data.draw(st.lists(st.integers(0, units), max_size=6))})
    found = [texts_of_chunk(reader, piece, *cut) for cut in itertools.pairwise(cuts)]
    path = str(reader.manifest.path(piece))
    assert [text for part in found for text in part] == pq.read_table(path)["text"].to_pylist()


def test_a_place_is_whole_rows_with_the_one_that_holds_it(odd: Path) -> None:
    reader = reader_of(odd)
    for piece in range(FILES):
        units, path = int(reader.pieces().units[piece]), str(reader.manifest.path(piece))
        rows = pq.read_table(path)["text"].to_pylist()
        for unit in range(0, units, max(1, units // 9)):
            start, stop = reader.around(piece, unit, 200)
            assert 0 <= start <= unit < stop <= units
            found = texts_of_chunk(reader, piece, start, stop)
            at = unit * len(rows) // units
            assert found == rows[at : at + len(found)]
            assert bool(found) == bool(rows)


def test_many_more_files_than_are_kept_open_are_read_by_threads(odd: Path) -> None:
    reader = reader_of(odd)
    assert FILES > OPEN_FILES
    for piece in range(FILES):
        texts_of_chunk(reader, piece, 0, int(reader.pieces().units[piece]))
    assert len(reader._open) == OPEN_FILES


@pytest.mark.parametrize("functions", [False, True])
def test_one_pass_reads_every_document_once(functions: bool, odd: Path) -> None:
    made = pipeline(odd, repeat=False, lanes=4)
    seen: Counter[str] = Counter()
    if functions:

        def note(record: dict[str, Any]) -> bool:
            seen[record["text"]] += record["n"] >= 0
            return True

        made = made.filter(note, identity="note")
    stream = made.for_rank(0, 1)
    for _ in stream:
        pass
    texts = [row for path in sorted(odd.iterdir()) for row in pq.read_table(path)["text"].to_pylist()]
    assert stream.balance.read.records == len(texts)
    assert stream.balance.read.documents == len(texts)
    if functions:
        assert set(seen) == set(texts)


def test_the_stream_is_the_same_on_any_ranks_and_after_a_stop_at_any_step(odd: Path) -> None:
    expected, _ = global_batches(pipeline(odd), 1, 12)
    for degree in (2, 4):
        assert global_batches(pipeline(odd), degree, 12)[0] == expected
    stream = pipeline(odd).for_rank(0, 1)
    first = [[b.input.tobytes() for b in step] for step in rank_steps(stream, 12)]
    stream.close()
    stream = pipeline(odd).for_rank(0, 1)
    for step in range(12):
        state = stream.state_dict()
        stream.close()
        stream = pipeline(odd).for_rank(0, 1)
        stream.load_state_dict(state)
        assert [b.input.tobytes() for b in rank_steps(stream, 1)[0]] == first[step]
    stream.close()


def test_files_of_token_ids_are_read_and_a_file_of_text_among_them_is_named(tmp_path: Path) -> None:
    for n in range(FILES):
        ids = [[k % 300 + 1 for k in range(length)] for length in range(5, 5 + n % 9)]
        pq.write_table(pa.table({"ids": pa.array(ids, pa.list_(pa.int32()))}), tmp_path / f"{n:03d}.parquet")
    reader = reader_of(tmp_path, "ids")
    assert reader.contents == "ids"
    units = reader.pieces().units
    documents, _ = reader.read(Chunk(0, 0, 0, 4, 0, int(units[4]), 1), frozenset({"ids"}))
    assert np.diff(documents.offsets).tolist() == [5, 6, 7, 8]
    empty, _ = reader.read(Chunk(0, 0, 0, 0, 0, int(units[0]), 1), frozenset({"ids"}))
    assert (len(empty), len(empty.ids)) == (0, 0)
    write_parquet(tmp_path / "050.parquet", ["some text"], "ids")
    reader = reader_of(tmp_path, "ids")
    with pytest.raises(SourceError, match=r"050.parquet' holds text, and other files of its source token ids"):
        reader.read(Chunk(0, 0, 0, 50, 0, int(reader.pieces().units[50]), 1), frozenset({"ids"}))


def test_a_file_that_cannot_be_used_is_named_where_it_is_read(odd: Path, tmp_path: Path) -> None:
    for n in range(FILES):
        write_parquet(tmp_path / f"{n:03d}.parquet", texts_of(5, n))
    write_parquet(tmp_path / "050.parquet", ["no such column"], "body")
    (tmp_path / "051.parquet").write_bytes(b"PAR1 and nothing like it PAR1")
    reader = reader_of(tmp_path)
    for piece, said in ((50, "has no column 'text'"), (51, "is not a readable Parquet file")):
        with pytest.raises(SourceError, match=rf"{piece:03d}\.parquet' {said}"):
            texts_of_chunk(reader, piece, 0, 20)


def test_a_source_without_rows_is_refused(tmp_path: Path) -> None:
    for n in range(FILES):
        pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / f"{n:03d}.parquet")
    with pytest.raises(SourceError, match=rf"none of {SAMPLED_FILES} files that were looked at, of the {FILES} in"):
        reader_of(tmp_path)
    assert many_files.FEW_FILES == 4096
