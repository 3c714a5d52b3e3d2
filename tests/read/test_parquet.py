"""Parquet: every row once, whatever the row groups, the column's type, the order and the threads."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.scenarios import text_of, texts_of, write_parquet
from torchtitan_zephon import RecordError, SourceError
from torchtitan_zephon.documents import read_documents
from torchtitan_zephon.plan import keyed
from torchtitan_zephon.plan.chunking import Chunk, cut
from torchtitan_zephon.read import parquet
from torchtitan_zephon.read.files import list_source
from torchtitan_zephon.read.parquet import ParquetReader
from torchtitan_zephon.read.settings import SourceConfig
from torchtitan_zephon.read.source import open_source
from torchtitan_zephon.records import RECORD

TEXT = frozenset({"text"})
TEXTS = [text_of(n, 1 + n % 9) for n in range(5000)]


def reader_of(path: Path) -> ParquetReader:
    return ParquetReader(list_source("s", SourceConfig(path=str(path))), SourceConfig(), 2**26)


def chunks_of(reader: ParquetReader, target_bytes: int = 4096) -> list[Chunk]:
    """All chunks of one epoch, in file order."""
    table, found = cut(0, reader.pieces(), target_bytes, 1), []
    for run in range(table.num_runs):
        k, last = 0, False
        while not last:
            chunk, last = table.chunk(0, run, k)
            found.append(chunk)
            k += 1
    return found


def read_all(reader: ParquetReader, chunks: Sequence[Chunk]) -> tuple[list[Any], list[int]]:
    """Texts and row numbers of ``chunks``, one after the other."""
    texts, places = [], []
    for chunk in chunks:
        documents, bad = reader.read(chunk, TEXT)
        assert not bad
        texts += documents.values["text"]
        places += documents.origin[:, 2].tolist()
    return texts, places


@pytest.mark.parametrize("rows", [1, 7, 1000, 5000])
def test_row_groups_of_any_size_give_every_row_once(rows: int, tmp_path: Path) -> None:
    texts = TEXTS[:300] if rows < 10 else TEXTS
    reader = reader_of(write_parquet(tmp_path / "a.parquet", texts, row_group_rows=rows))
    chunks = chunks_of(reader)
    assert len(reader.pieces().units) == -(-len(texts) // rows)
    assert read_all(reader, chunks) == (texts, list(range(len(texts))))
    if rows >= 1000:
        assert len(chunks) > 2 * len(reader.pieces().units)  # these groups are cut


def write_groups(path: Path, *groups: list[str]) -> Path:
    """A file with exactly these row groups, empty ones included."""
    schema = pa.schema([("text", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for group in groups:
            writer.write_table(pa.table({"text": pa.array(group, pa.string())}))
    return path


def test_files_without_rows_and_empty_row_groups_between_good_ones_are_passed_over(tmp_path: Path) -> None:
    write_groups(tmp_path / "a.parquet")
    write_groups(tmp_path / "b.parquet", [], ["one", "two"], [], ["three"], [])
    write_groups(tmp_path / "c.parquet", [])
    write_groups(tmp_path / "d.parquet", ["four"])
    assert pq.ParquetFile(tmp_path / "b.parquet").metadata.num_row_groups > 2
    reader = reader_of(tmp_path)
    assert read_all(reader, chunks_of(reader)) == (["one", "two", "three", "four"], [0, 1, 2, 0])
    assert [reader.shard_of(piece) for piece in range(3)] == [1, 1, 3]


def test_a_source_without_any_row_is_refused(tmp_path: Path) -> None:
    write_groups(tmp_path / "a.parquet")
    write_groups(tmp_path / "b.parquet", [])
    with pytest.raises(SourceError, match=r"none of the 2 Parquet files .* has a row"):
        reader_of(tmp_path).pieces()


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()),
        *(pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int32(), pa.binary())),
    ],
    ids=str,
)
def test_every_kind_of_text_column_reads_the_same(kind: pa.DataType, tmp_path: Path) -> None:
    texts = [text_of(n % 40) for n in range(600)]
    column = pa.array(texts, pa.string())
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    column = column.cast(pa.binary()).cast(plain) if "binary" in str(plain) else column.cast(plain)
    column = column.dictionary_encode() if pa.types.is_dictionary(kind) else column
    pq.write_table(pa.table({"id": range(600), "text": column}), tmp_path / "a.parquet", row_group_size=250)
    reader = reader_of(tmp_path / "a.parquet")
    assert read_all(reader, chunks_of(reader))[0] == texts


@pytest.mark.parametrize(
    ("column", "kind"),
    [(pa.array([b"a", b"b"], pa.binary(1)), "fixed"), (pa.array([1, 2]), "int64"), (pa.array([["a"], ["b"]]), "list")],
    ids=["bytes of a fixed number", "int64", "list"],
)
def test_a_column_that_is_not_text_is_refused_by_name_and_type(column: pa.Array, kind: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=rf"a\.parquet.*column 'text' holds {kind}.*neither text"):
        reader_of(tmp_path / "a.parquet")


def test_a_missing_column_is_refused_with_those_there_are(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", ["one"], field="content")
    with pytest.raises(SourceError, match=r"a\.parquet.*no column 'text'; its columns: 'id', 'content'"):
        reader_of(tmp_path / "a.parquet")


def test_a_file_that_is_not_parquet_is_refused_by_name(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", ["one"])
    (tmp_path / "b.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(SourceError, match=r"b\.parquet' is not a readable Parquet file"):
        reader_of(tmp_path)


def test_a_null_text_is_refused_by_row(tmp_path: Path) -> None:
    table = pa.table({"text": pa.array(["one", None], pa.string())})
    pq.write_table(pa.concat_tables([table] * 3), tmp_path / "a.parquet", row_group_size=3)
    source = open_source("s", SourceConfig(path=str(tmp_path)))
    with pytest.raises(RecordError, match=r"shard 'a\.parquet', row 3: field 'text' must be a string; it is null"):
        read_documents(source, Chunk(0, 0, 1, 1, 0, 3, 10), ())


@pytest.mark.parametrize("open_streams", [1, 64])
@pytest.mark.parametrize("key", [1, 2, 3])
def test_chunks_read_in_any_order_are_the_same(
    key: int, open_streams: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "OPEN_STREAMS", open_streams)
    reader = reader_of(write_parquet(tmp_path / "a.parquet", TEXTS, row_group_rows=2000))
    chunks = chunks_of(reader)
    for n in keyed.permutation(key, len(chunks)).tolist():
        first = 2000 * chunks[n].piece
        expected = list(range(first + chunks[n].start, first + chunks[n].stop))
        assert read_all(reader, [chunks[n]]) == ([TEXTS[i] for i in expected], expected)
        assert len(reader._streams) <= open_streams


def test_chunks_read_by_several_threads_at_once_are_the_same(tmp_path: Path) -> None:
    reader = reader_of(write_parquet(tmp_path / "a.parquet", TEXTS, row_group_rows=1700))
    chunks = chunks_of(reader) * 2
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(lambda chunk: read_all(reader, [chunk]), chunks))
    assert [text for texts, _ in read for text in texts] == TEXTS * 2
    assert [place for _, places in read for place in places] == list(range(len(TEXTS))) * 2


def test_neighbouring_chunks_decode_a_row_group_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(write_parquet(tmp_path / "a.parquet", TEXTS, row_group_rows=5000))
    opened, open_stream = [], reader._groups.batches
    monkeypatch.setattr(reader._groups, "batches", lambda *at: opened.append(at) or open_stream(*at))
    assert read_all(reader, chunks_of(reader))[0] == TEXTS
    assert len(opened) == 1


def test_only_the_text_column_is_read_unless_whole_records_are_asked_for(tmp_path: Path) -> None:
    reader = reader_of(write_parquet(tmp_path / "a.parquet", TEXTS[:600], row_group_rows=600))
    for chunk in chunks_of(reader):
        text_only, _ = reader.read(chunk, TEXT)
        whole, _ = reader.read(chunk, None)  # a stream of its own, though at the same place
        assert text_only.values == {"text": TEXTS[chunk.start : chunk.stop]}
        assert whole.values == {RECORD: [{"id": i, "text": TEXTS[i]} for i in range(chunk.start, chunk.stop)]}


def test_a_file_that_was_replaced_while_the_job_runs_is_an_error(tmp_path: Path) -> None:
    reader = reader_of(write_parquet(tmp_path / "a.parquet", TEXTS[:100], row_group_rows=100))
    write_parquet(tmp_path / "a.parquet", TEXTS[:60], row_group_rows=100)
    with pytest.raises(SourceError, match=r"a\.parquet', row group 0 ends early"):
        read_all(reader, [Chunk(0, 0, 0, 0, 0, 100, 100)])


def test_a_later_range_goes_on_with_a_stream_that_is_open_before_it(tmp_path: Path) -> None:
    reader = reader_of(write_parquet(tmp_path / "a.parquet", texts_of(3000), row_group_rows=3000))
    opened: list[int] = []
    batches = reader._groups.batches

    def counted(*arguments: Any) -> Any:
        opened.append(1)
        return batches(*arguments)

    reader._groups.batches = counted  # type: ignore[method-assign]
    for start, stop in ((100, 130), (130, 140), (500, 1200), (1300, 1301), (2999, 3000)):
        documents, _ = reader.read(Chunk(0, 0, 0, 0, start, stop, 1), TEXT)
        assert documents.values["text"] == texts_of(3000)[start:stop]
        assert documents.origin[:, 2].tolist() == list(range(start, stop))
    assert len(opened) == 1
    assert reader.read(Chunk(0, 0, 0, 0, 7, 9, 1), TEXT)[0].values["text"] == texts_of(3000)[7:9]
    assert len(opened) == 2


def test_columns_may_come_and_go_and_types_of_text_differ_between_files(tmp_path: Path) -> None:
    kinds = [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]
    for n, kind in enumerate(kinds):
        column = pa.array(["one", "two"]).dictionary_encode() if n == 4 else pa.array([b"one", b"two"]).cast(kind)
        columns = {"text": column, **{f"more {k}": [k, None] for k in range(n)}}
        pq.write_table(pa.table(dict(sorted(columns.items(), reverse=n % 2 == 0))), tmp_path / f"{n}.parquet")
    reader = reader_of(tmp_path)
    assert read_all(reader, chunks_of(reader)) == (["one", "two"] * 5, [0, 1] * 5)
    pq.write_table(pa.table({"body": ["three"]}), tmp_path / "9.parquet")
    with pytest.raises(SourceError, match=r"9\.parquet' has no column 'text'; its columns: 'body'"):
        reader_of(tmp_path)


def test_open_streams_of_a_large_row_group_hold_pages_and_not_all_of_it(tmp_path: Path) -> None:
    texts = [f"{n:08} {(n * 2654435761) % 2**32:032b} " * 12 for n in range(80_000)]
    path = write_parquet(tmp_path / "a.parquet", texts, row_group_rows=10**6)
    reader = reader_of(path)
    before = pa.total_allocated_bytes()
    for first in range(70_000, 0, -7_000):  # backwards, so that each range has a stream of its own
        documents, _ = reader.read(Chunk(0, 0, 0, 0, first, first + 100, 1), TEXT)
        assert documents.values["text"] == texts[first : first + 100]
    assert len(reader._streams) == 10
    whole = pq.read_metadata(path).row_group(0).column(1).total_uncompressed_size
    assert whole > 38e6 and pa.total_allocated_bytes() - before < 1.5 * whole
