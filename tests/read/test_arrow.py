"""Arrow files and streams: every row once, whatever its type, the batches and where a file is cut."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from pyarrow import feather

from tests.scenarios import says, text_of, texts_of
from torchtitan_zephon import SourceError, ZephonError
from torchtitan_zephon.plan.chunking import Chunk
from torchtitan_zephon.read.arrow import BatchPlaces
from torchtitan_zephon.read.arrow_messages import Messages, find_messages
from torchtitan_zephon.read.settings import SourceConfig
from torchtitan_zephon.read.source import Source, open_source
from torchtitan_zephon.read.store import LocalStore
from torchtitan_zephon.records import RECORD

TEXT = frozenset({"text"})
TEXTS = [text_of(n, 1 + n % 9) for n in range(900)]
TEXTS[5], TEXTS[700] = "", "long " * 9000
TYPES = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.large_binary(),
    pa.binary_view(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.large_string()),
]


def column_of(texts: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        entries = pa.array(sorted(set(texts)), kind.value_type)
        places = {text: n for n, text in enumerate(entries.to_pylist())}
        return pa.DictionaryArray.from_arrays(pa.array([places[text] for text in texts], kind.index_type), entries)
    return pa.array([t if t is None or "string" in str(kind) else t.encode() for t in texts], kind)


def write(path: Path, table: pa.Table, rows: int = 100, stream: bool = False, **options: Any) -> Path:
    """An Arrow file or stream with batches of so many rows, whole columns of the table sliced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = pa.ipc.new_stream if stream else pa.ipc.new_file
    with made(path, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def opened(path: Path, field: str = "text") -> Source:
    return open_source("s", SourceConfig(path=str(path), field=field))


def chunks_of(source: Source, num_bytes: int) -> list[Chunk]:
    return [
        Chunk(0, 0, 0, piece, start, min(size, start + num_bytes), 1)
        for piece, size in enumerate(source.reader.pieces().units.tolist())
        for start in range(0, size, num_bytes)
    ]


def read_all(source: Source, num_bytes: int) -> tuple[list[Any], list[int]]:
    """Texts and row numbers of one epoch, in file order, chunk by chunk."""
    texts, places = [], []
    for chunk in chunks_of(source, num_bytes):
        documents, bad = source.read(chunk, TEXT)
        assert not bad
        texts += documents.values["text"]
        places += documents.origin[:, 2].tolist()
    return texts, places


@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("how", ["file", "stream", "lz4", "zstd"])
def test_every_kind_of_text_column_reads_the_same(kind: pa.DataType, how: str, tmp_path: Path) -> None:
    texts = [t[:2] for t in TEXTS] if "int8" in str(kind) else TEXTS
    table = pa.table({"id": range(len(texts)), "text": column_of(texts, kind), "more": texts})
    options = {"compression": how} if how in ("lz4", "zstd") else {}
    write(tmp_path / "a.arrow", table, stream=how == "stream", **options)
    for num_bytes in (3000, 40_000, 10**7):
        assert read_all(opened(tmp_path), num_bytes) == (texts, list(range(len(texts))))


@pytest.mark.parametrize("rows", [1, 7, 250, 10**6])
def test_batches_of_any_size_give_every_row_once(rows: int, tmp_path: Path) -> None:
    texts = TEXTS[:60] if rows == 1 else TEXTS
    write(tmp_path / "a.arrow", pa.table({"text": texts}), rows=rows, stream=True)
    for num_bytes in (50, 5000, 10**7) if rows < 10 else (5000, 10**7):
        assert read_all(opened(tmp_path), num_bytes) == (texts, list(range(len(texts))))


def test_batches_and_files_without_rows_are_passed_over(tmp_path: Path) -> None:
    schema = pa.schema([("text", pa.string())])
    with pa.ipc.new_stream(tmp_path / "a.arrow", schema) as writer:
        for texts in ([], ["one"], [], [], ["two", "three"], []):
            writer.write_batch(pa.record_batch({"text": pa.array(texts, pa.string())}))
    write(tmp_path / "b.arrow", schema.empty_table())
    write(tmp_path / "c.arrow", schema.empty_table(), stream=True)
    for num_bytes in (8, 100, 10**5):
        assert read_all(opened(tmp_path), num_bytes) == (["one", "two", "three"], [0, 1, 2])


NESTED = {
    "struct": pa.array([{"a": n, "b": ["x" * (n % 7)] * (n % 3)} if n % 5 else None for n in range(500)]),
    "map": pa.array([[("k", n)] * (n % 4) for n in range(500)], pa.map_(pa.string(), pa.int64())),
    "fixed": pa.array([[n, n + 1] for n in range(500)], pa.list_(pa.int16(), 2)),
    "list": pa.array([[[n] * (n % 3)] if n % 4 else None for n in range(500)]),
    "list view": pa.array([[n] * (n % 3) for n in range(500)], pa.list_view(pa.int32())),
    "large list view": pa.array([["y" * n] * (n % 3) for n in range(500)], pa.large_list_view(pa.string_view())),
    "bool": pa.array([None, True, False, False, True] * 100),
    "null": pa.nulls(500),
    "decimal": pa.array(list(range(500)), pa.decimal128(30, 2)),
    "time": pa.array(range(500), pa.timestamp("us", "UTC")),
    "bytes": pa.array([b"1234"] * 500, pa.binary(4)),
    "runs": pa.RunEndEncodedArray.from_arrays([200, 500], pa.array(["left", "right"])),
    "union": pa.UnionArray.from_sparse(
        pa.array([0, 1] * 250, pa.int8()), [pa.array(range(500)), pa.array([str(n) for n in range(500)])]
    ),
    "dense union": pa.UnionArray.from_dense(
        pa.array([0, 1] * 250, pa.int8()),
        pa.array([n // 2 for n in range(500)], pa.int32()),
        [pa.array(range(250)), pa.array([str(n) for n in range(250)])],
    ),
    "inner dictionary": pa.StructArray.from_arrays([pa.array(["a", "b"] * 250).dictionary_encode()], ["d"]),
    "uuid": pa.array([bytes(16)] * 500, pa.uuid()),
}


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_whole_records_have_columns_of_every_type(compression: str | None, tmp_path: Path) -> None:
    table = pa.table({**NESTED, "text": TEXTS[:500]}).slice(3, 490)  # a slice: offsets that do not begin at 0
    write(tmp_path / "a.arrow", table, rows=77, compression=compression)
    source, expected = opened(tmp_path), table.to_pylist()
    for num_bytes in (1500, 10**7):
        found = []
        for chunk in chunks_of(source, num_bytes):
            documents, bad = source.read(chunk, None)
            assert not bad
            found += [dict(record) for record in documents.values[RECORD]]
        assert found == expected


def test_only_the_bytes_of_the_rows_and_columns_that_are_wanted_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = texts_of(20_000)
    table = pa.table({"image": [b"i" * 1000] * 20_000, "text": texts})
    path = write(tmp_path / "a.arrow", table, rows=10**6)
    source = opened(tmp_path)
    source.read(Chunk(0, 0, 0, 0, 0, 1000, 1), TEXT)  # finds the messages
    read, ranged = [], LocalStore.read
    monkeypatch.setattr(LocalStore, "read", lambda self, name, a, b: read.append(b - a) or ranged(self, name, a, b))
    size = path.stat().st_size
    documents, _ = source.read(Chunk(0, 0, 0, 0, size // 2, size // 2 + 2**20, 1), TEXT)
    wanted = sum(len(text.encode()) for text in documents.values["text"])
    assert 800 < len(documents) < 1100
    assert sum(read) < 1.1 * wanted + 4 * len(documents) + 4096


def test_token_ids_go_on_as_numbers(tmp_path: Path) -> None:
    lists = [[n, n + 1] * (n % 5) for n in range(300)]
    for n, kind in enumerate(
        [pa.list_(pa.int32()), pa.large_list(pa.uint16()), pa.list_view(pa.int64()), pa.large_list_view(pa.uint32())]
    ):
        write(tmp_path / f"{n}" / "a.arrow", pa.table({"ids": pa.array(lists, kind), "text": ["x"] * 300}), rows=70)
        source = opened(tmp_path / f"{n}", "ids")
        assert source.reader.contents == "ids"
        found = []
        for chunk in chunks_of(source, 3000):
            documents, bad = source.read(chunk, frozenset({"ids"}))
            assert not bad
            found += [part.tolist() for part in np.split(documents.ids, documents.offsets[1:-1])]
        assert found == lists


def test_what_datasets_saves_is_read_and_its_other_files_are_left_out(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"text": TEXTS, "label": list(range(len(TEXTS)))})
    data.save_to_disk(tmp_path / "d", num_shards=3)
    (tmp_path / "d" / "cache-0123456789abcdef.arrow").write_bytes(b"of a map that somebody ran")
    source = opened(tmp_path / "d")
    assert sorted(read_all(source, 20_000)[0]) == sorted(TEXTS)
    assert [shard.name[:5] for shard in source.reader.manifest.shards] == ["data-"] * 3
    assert {left.name for left in source.reader.manifest.left_out} >= {"state.json", "dataset_info.json"}


def test_of_a_saved_dataset_dict_a_split_is_chosen(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    parts = {"train": TEXTS[:50], "test": TEXTS[50:60]}
    made = datasets.DatasetDict({name: datasets.Dataset.from_dict({"text": texts}) for name, texts in parts.items()})
    made.save_to_disk(tmp_path / "d")
    with pytest.raises(SourceError, match="split"):
        opened(tmp_path / "d")
    for name, texts in parts.items():
        source = open_source("s", SourceConfig(path=str(tmp_path / "d"), split=name))
        assert read_all(source, 4000)[0] == texts


def test_feather_of_pandas_defaults_is_read_and_version_1_refused(tmp_path: Path) -> None:
    feather.write_feather(pa.table({"text": TEXTS}), tmp_path / "a.feather")
    assert read_all(opened(tmp_path), 9000)[0] == TEXTS
    (tmp_path / "a.feather").write_bytes(b"FEA1" + bytes(200) + b"FEA1")
    with pytest.raises(SourceError, match=r"a\.feather' begins with b'FEA1.*Feather version 1"):
        opened(tmp_path)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(8, 300)), max_size=6), st.data())
@settings(deadline=None, max_examples=60)
def test_a_row_begins_where_its_batch_gives_it_a_share(batches: list[tuple[int, int]], data: st.DataObject) -> None:
    table, at = [], 8
    for rows, num_bytes in batches:
        table.append((at, 0, num_bytes, rows, 1))
        at += 8 + num_bytes
    found = np.array(table, np.int64).reshape(-1, 5)
    messages = Messages(pa.schema([]), (), found, np.concatenate([[0], np.cumsum(found[:, 3])]))
    places, size = BatchPlaces(messages, at + 8), at + 8
    begins = [places.byte(row) for row in range(messages.rows + 1)]
    assert begins == sorted(begins) and begins[-1] == size
    byte = data.draw(st.integers(0, size))
    after = places.after(byte)
    assert begins[after] >= byte and (after == 0 or begins[after - 1] < byte)
    if messages.rows:
        holding = places.holding(byte)
        assert holding == max(0, sum(begin <= byte for begin in begins[:-1]) - 1)


def test_columns_may_come_and_go_and_types_of_text_differ_between_files(tmp_path: Path) -> None:
    write(tmp_path / "a.arrow", pa.table({"text": ["one"], "id": [1]}))
    write(tmp_path / "b.arrow", pa.table({"more": [2.0], "text": pa.array(["two"], pa.large_string())}))
    write(tmp_path / "c.arrow", pa.table({"text": pa.array(["three"]).dictionary_encode()}), stream=True)
    assert read_all(opened(tmp_path), 10**4)[0] == ["one", "two", "three"]


@pytest.mark.parametrize("looked_into", [512, 1])
def test_a_file_without_the_column_is_refused_by_name(
    looked_into: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtitan_zephon.read.placed.MOST_LOOKED_INTO", looked_into)
    write(tmp_path / "a.arrow", pa.table({"text": ["one"]}))
    write(tmp_path / "b.arrow", pa.table({"body": ["two"], "id": [1]}))
    with pytest.raises(SourceError, match=r"b\.arrow' has no column 'text'; its columns: 'body', 'id'"):
        read_all(opened(tmp_path), 10**4)
    write(tmp_path / "b.arrow", pa.table({"text": [[1, 2]]}))
    with pytest.raises(SourceError, match=r"b\.arrow': column 'text' holds list.* files before it text"):
        read_all(opened(tmp_path), 10**4)


@pytest.mark.parametrize("stream", [True, False])
def test_a_file_cut_at_any_byte_is_refused(stream: bool, tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", pa.table({"text": TEXTS[:40]}), rows=10, stream=stream)
    whole = path.read_bytes()
    for stop in range(0, len(whole), 13):
        path.write_bytes(whole[:stop])
        with pytest.raises(SourceError, match=r"a\.arrow|are empty"):
            read_all(opened(path), 10**5)


@pytest.mark.parametrize("stream", [True, False])
def test_bytes_behind_the_end_are_refused(stream: bool, tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", pa.table({"text": TEXTS[:40]}), stream=stream)
    whole = path.read_bytes()
    path.write_bytes(whole + whole)
    with pytest.raises(SourceError, match=r"a\.arrow' is no readable Arrow file: it ends at byte .* another may stand"):
        read_all(opened(path), 10**5)
    path.write_bytes(whole + b"tail")
    with pytest.raises(SourceError, match=r"a\.arrow' ends at byte .* without the mark of its end"):
        opened(path)


@pytest.mark.parametrize("kind", [pa.string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str)
@pytest.mark.parametrize("compression", [None, "lz4"])
def test_a_damaged_byte_gives_an_error_or_other_text_and_never_a_crash(
    kind: pa.DataType, compression: str | None, tmp_path: Path
) -> None:
    table = pa.table({"text": column_of(TEXTS[:50], kind), "ids": [[n] * (n % 4) for n in range(50)]})
    path = write(tmp_path / "a.arrow", table, rows=20, stream=True, compression=compression)
    whole, draw, refused = path.read_bytes(), random.Random(5), 0
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        with suppress(ZephonError):
            source, refused = opened(path), refused + 1
            for chunk in chunks_of(source, 2000):
                source.read(chunk, TEXT)
            refused -= 1
    assert refused > 5


def test_a_text_that_is_no_utf8_is_one_bad_record(tmp_path: Path) -> None:
    for name, kind in (("a", pa.binary()), ("b", pa.binary_view())):
        write(tmp_path / f"{name}.arrow", pa.table({"text": pa.array([b"one", b"\xff\xfe", b"three"], kind)}))
    source = opened(tmp_path)
    for piece, size in enumerate(source.reader.pieces().units.tolist()):
        documents, bad = source.read(Chunk(0, 0, 0, piece, 0, size, 1), TEXT)
        assert documents.values["text"] == ["one", "three"]
        assert [(record.kind, record.place) for record in bad] == [("column", 1)]
        assert "'utf-8' codec can't decode" in bad[0].problem


def test_a_file_that_changes_while_the_job_runs_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", pa.table({"text": TEXTS}))
    source = opened(path)
    source.read(Chunk(0, 0, 0, 0, 0, 5000, 1), TEXT)
    write(path, pa.table({"text": TEXTS[:300]}))
    with pytest.raises(SourceError, match=r"a\.arrow' (ends at byte|is no readable)"):
        source.read(Chunk(0, 0, 0, 0, 5000, 9000, 1), TEXT)


def test_a_column_that_is_no_text_is_refused_by_name_and_type(tmp_path: Path) -> None:
    write(tmp_path / "a.arrow", pa.table({"text": [1.5], "body": ["x"]}))
    with pytest.raises(SourceError) as error:
        opened(tmp_path)
    says(error, "a.arrow", "column 'text' holds double", "neither text")


def test_dictionaries_that_grow_and_change_in_a_stream_are_those_before_each_batch(tmp_path: Path) -> None:
    texts = [["a", "b"], ["a", "b", "c"], ["z", "y"], ["z"]]
    kind = pa.dictionary(pa.int32(), pa.string())
    with pa.ipc.new_stream(tmp_path / "a.arrow", pa.schema([("text", kind)])) as writer:
        for batch in texts:
            writer.write_batch(pa.record_batch({"text": pa.array(batch).dictionary_encode()}))
    messages = find_messages(LocalStore(tmp_path), "a.arrow", (tmp_path / "a.arrow").stat().st_size)
    assert len(messages.head) > 3
    assert read_all(opened(tmp_path), 100)[0] == [text for batch in texts for text in batch]


def test_text_in_fields_of_columns_is_found(tmp_path: Path) -> None:
    meta = pa.array([{"n": n, "text": text} if n % 7 else None for n, text in enumerate(TEXTS)])
    write(tmp_path / "a.arrow", pa.table({"meta": meta, "title": TEXTS}), rows=100)
    source = opened(tmp_path, "meta.text")
    found = []
    for chunk in chunks_of(source, 5000):
        documents, bad = source.read(chunk, frozenset({"meta.text"}))
        assert not bad
        found += documents.values["meta.text"]
    assert found == [text if n % 7 else None for n, text in enumerate(TEXTS)]
    with pytest.raises(
        SourceError, match=r"no column 'meta\.body'; its columns: 'meta', 'meta\.n', 'meta\.text', 'title'"
    ):
        opened(tmp_path, "meta.body")
