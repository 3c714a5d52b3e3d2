"""Columns that nobody reads cannot break a run, whatever they hold; one that a function asks for is named."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from tests.scenarios import texts_of
from torchtitan_zephon import FunctionError, RecordError, SourceError
from torchtitan_zephon.documents import read_documents
from torchtitan_zephon.ops.functions import Function
from torchtitan_zephon.plan.chunking import Chunk
from torchtitan_zephon.read.parquet import ParquetReader
from torchtitan_zephon.read.settings import SourceConfig
from torchtitan_zephon.read.source import Source, open_source

TEXTS = texts_of(200)
GROUP = 100


class Keys(pe.KmsClient):  # type: ignore[misc]
    """A key service in memory that wraps nothing."""

    def wrap_key(self, key: bytes, master: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, key: bytes, master: str) -> bytes:
        return base64.b64decode(key)


def encrypted(path: Path, table: pa.Table, columns: list[str], plaintext_footer: bool = True) -> Path:
    factory = pe.CryptoFactory(lambda _: Keys())
    settings = pe.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": columns}, plaintext_footer=plaintext_footer
    )
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), settings)
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table, row_group_size=GROUP)
    return path


def table_of(**columns: Any) -> pa.Table:
    return pa.table({"text": TEXTS, "n": range(len(TEXTS)), **columns})


def write(path: Path, table: pa.Table) -> Path:
    pq.write_table(table, path, row_group_size=GROUP)
    return path


def texts(source: Source, *functions: Function) -> list[str]:
    """All texts after ``functions``, in chunks of 30 rows."""
    found = []
    for piece, rows in enumerate(source.reader.pieces().units.tolist()):
        for start in range(0, rows, 30):
            chunk = Chunk(0, 0, 0, piece, start, min(start + 30, rows), 1)
            found += read_documents(source, chunk, functions).values["text"]
    return found


def keeping(call: Any) -> Function:
    return Function("filter", call, "keeping")


def mapping(call: Any) -> Function:
    return Function("map", call, "mapping")


even, shout = keeping(lambda r: r["n"] % 2 == 0), mapping(lambda r: {"text": r["text"].upper()})


def test_an_encrypted_column_beside_the_text_is_left_alone(tmp_path: Path) -> None:
    # In a process of its own: what is tested here ended the process, by a signal.
    encrypted(tmp_path / "a.parquet", table_of(secret=TEXTS), ["secret"])
    script = (
        "import sys; from torchtitan_zephon import SourceConfig; "
        "from torchtitan_zephon.read.source import open_source; "
        "from torchtitan_zephon.plan.chunking import Chunk; from torchtitan_zephon.documents import read_documents; "
        "s = open_source('s', SourceConfig(path=sys.argv[1])); "
        "print(s.reader.pieces().sizes.tolist(), len(read_documents(s, Chunk(0, 0, 0, 1, 0, 100, 1), ())))"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=120)
    sizes = [sum(len(t.encode()) for t in TEXTS[first : first + GROUP]) for first in (0, GROUP)]
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{sizes} {GROUP}\n", "")


def test_functions_work_beside_an_encrypted_column(tmp_path: Path) -> None:
    encrypted(tmp_path / "a.parquet", table_of(secret=TEXTS), ["secret"])
    source = open_source("s", SourceConfig(path=str(tmp_path)))
    assert texts(source, even, shout) == [t.upper() for t in TEXTS[::2]]
    assert texts(source, keeping(lambda r: "secret" in r)) == TEXTS


@pytest.mark.parametrize("call", [lambda r: {**r}, lambda r: {"text": r["secret"]}], ids=["copied", "asked for"])
def test_an_encrypted_column_that_a_function_asks_for_is_refused_by_name(call: Any, tmp_path: Path) -> None:
    encrypted(tmp_path / "a.parquet", table_of(secret=TEXTS), ["secret"])
    with pytest.raises(RecordError, match=r"column 'secret' of rows 0 to 29 cannot be read.*Cannot decrypt") as refusal:
        texts(open_source("wiki", SourceConfig(path=str(tmp_path))), mapping(call))
    assert (refusal.value.source, refusal.value.shard, refusal.value.place) == ("wiki", "a.parquet", "row 0")


def test_a_function_that_does_without_a_column_it_cannot_have_goes_on(tmp_path: Path) -> None:
    encrypted(tmp_path / "a.parquet", table_of(secret=TEXTS), ["secret"])

    def careful(record: dict[str, Any]) -> bool:
        try:
            return bool(record["secret"])
        except Exception:
            return record["n"] < 150

    assert texts(open_source("s", SourceConfig(path=str(tmp_path))), keeping(careful)) == TEXTS[:150]


def test_a_column_that_is_encrypted_in_another_file_only_is_read_where_it_is_plain(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", table_of(secret=TEXTS))
    encrypted(tmp_path / "b.parquet", table_of(secret=TEXTS), ["secret"])
    asks = keeping(lambda r: r["n"] >= 100 or (r["secret"] and False))
    assert texts(open_source("s", SourceConfig(path=str(tmp_path / "a.parquet"))), asks) == TEXTS[100:]
    source = open_source("s", SourceConfig(path=str(tmp_path)))
    assert len(read_documents(source, Chunk(0, 0, 0, 0, 0, 100, 1), (asks,))) == 0  # the column is asked for and read
    assert read_documents(source, Chunk(0, 0, 0, 3, 0, 100, 1), (asks,)).values["text"] == TEXTS[100:]  # it is neither
    with pytest.raises(RecordError, match=r"b\.parquet', row 0: column 'secret' of rows 0 to 99 cannot be read"):
        read_documents(source, Chunk(0, 0, 0, 2, 0, 100, 1), (asks,))


@pytest.mark.parametrize("plaintext_footer", [True, False])
def test_a_text_column_that_is_encrypted_is_refused(plaintext_footer: bool, tmp_path: Path) -> None:
    encrypted(tmp_path / "a.parquet", table_of(), ["text"], plaintext_footer)
    expected = r"a\.parquet': column 'text' cannot be read.*encrypted" if plaintext_footer else "encrypted Parquet file"
    with pytest.raises(SourceError, match=expected):
        open_source("s", SourceConfig(path=str(tmp_path)))


def test_encrypted_ids_are_refused(tmp_path: Path) -> None:
    table = pa.table({"ids": pa.array([[1, 2]] * 9, pa.list_(pa.int32()))})
    encrypted(tmp_path / "a.parquet", table, ["ids.list.element"])
    with pytest.raises(SourceError, match="column 'ids' cannot be read"):
        open_source("s", SourceConfig(path=str(tmp_path), field="ids"))


def test_a_file_whose_footer_is_encrypted_is_refused_with_the_way_out(tmp_path: Path) -> None:
    encrypted(tmp_path / "a.parquet", table_of(secret=TEXTS), ["secret"], plaintext_footer=False)
    with pytest.raises(SourceError, match=r"a\.parquet' is an encrypted Parquet file .*write a plain copy"):
        open_source("s", SourceConfig(path=str(tmp_path)))


DAMAGED = {
    "a date out of range": pa.array([10**15] * 200, pa.timestamp("ms")),
    "a zone of no place": pa.array([1] * 200, pa.timestamp("us", "Nowhere/Land")),
    "a duration out of range": pa.array([2**62] * 200, pa.duration("s")),
    "no utf-8": pa.array([b"\xff"] * 200).cast(pa.binary()).view(pa.string()),
    "a struct with one name twice": pa.StructArray.from_arrays([pa.array([1] * 200)] * 2, ["a", "a"]),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_values_without_a_form_in_python_do_not_trouble_a_function_that_does_not_ask(kind: str, tmp_path: Path) -> None:
    source = open_source("s", SourceConfig(path=str(write(tmp_path / "a.parquet", table_of(odd=DAMAGED[kind])))))
    assert texts(source, even, shout) == [t.upper() for t in TEXTS[::2]]
    assert texts(source, mapping(lambda r: r)) == TEXTS
    assert texts(source, mapping(lambda r: r | {"text": "x"})) == ["x"] * 200


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_value_without_a_form_in_python_is_refused_with_column_and_row(kind: str, tmp_path: Path) -> None:
    source = open_source("s", SourceConfig(path=str(write(tmp_path / "a.parquet", table_of(odd=DAMAGED[kind])))))
    asks = keeping(lambda r: r["n"] < 42 or r["odd"])
    with pytest.raises(RecordError, match=r"'a\.parquet', row 42: column 'odd' cannot be decoded: \w+: "):
        texts(source, asks)


def test_a_text_that_is_not_utf_8_is_refused_with_its_row(tmp_path: Path) -> None:
    column = pa.array([b"fine"] * 57 + [b"\xff"] + [b"fine"] * 142).view(pa.string())
    source = open_source("s", SourceConfig(path=str(write(tmp_path / "a.parquet", pa.table({"text": column})))))
    for functions in ((), (mapping(lambda r: r),)):
        with pytest.raises(RecordError, match=r"'a\.parquet', row 57: column 'text' cannot be decoded: UnicodeDecode"):
            texts(source, *functions)


def test_a_column_of_another_is_not_taken_for_the_text(tmp_path: Path) -> None:
    table = pa.table(
        {
            "text.x": ["wrong"] * 200,
            "text_2": ["wrong"] * 200,
            "tex": [{"t": 1}] * 200,
            "nested": [[{"text": "wrong"}]] * 200,
            "map": pa.array([[("text", "wrong")]] * 200, pa.map_(pa.string(), pa.string())),
            "text": TEXTS,
            "text.text": ["wrong"] * 200,
            "n": range(200),
        }
    )
    source = open_source("s", SourceConfig(path=str(write(tmp_path / "a.parquet", table))))
    assert texts(source) == TEXTS
    assert texts(source, even, mapping(lambda r: r if r["nested"][0]["text"] == r["text.x"] else {})) == TEXTS[::2]
    assert source.reader.pieces().sizes.sum() == sum(len(t.encode()) for t in TEXTS)
    source = open_source("s", SourceConfig(path=str(tmp_path), field="text.x"))
    assert texts(source) == ["wrong"] * 200


def test_other_columns_of_any_type_stand_beside_the_text(tmp_path: Path) -> None:
    columns = {
        "struct": pa.array([{"a": 1, "b": [{"c": 2}]}] * 200),
        "map": pa.array([[("k", [1])]] * 200, pa.map_(pa.string(), pa.list_(pa.int8()))),
        "fixed": pa.array([[1, 2]] * 200, pa.list_(pa.float32(), 2)),
        "view": pa.array(["v"] * 200, pa.string_view()),
        "null": pa.nulls(200),
        "dictionary": pa.array(["d"] * 200).dictionary_encode(),
        "uuid": pa.array([bytes(16)] * 200, pa.uuid()),
        "json": pa.array(["{}"] * 200, pa.json_()),
        "decimal": pa.array([1] * 200, pa.decimal128(30)),
    }
    front = pa.table(columns)
    for name, column in table_of().to_pydict().items():
        front = front.append_column(name, pa.array(column))
    source = open_source("s", SourceConfig(path=str(write(tmp_path / "a.parquet", front))))
    assert texts(source, even) == TEXTS[::2]
    expected = front.slice(0, 200).to_pylist()
    assert texts(source, keeping(lambda r: r == expected[r["n"]])) == TEXTS


def test_columns_with_one_name_trouble_only_who_asks_for_them(tmp_path: Path) -> None:
    table = pa.table([pa.array(c) for c in (TEXTS, range(200), TEXTS, TEXTS)], names=["text", "n", "twice", "twice"])
    source = open_source("s", SourceConfig(path=str(write(tmp_path / "a.parquet", table))))
    assert texts(source) == texts(source, mapping(lambda r: r)) == TEXTS
    assert texts(source, even) == TEXTS[::2]
    with pytest.raises(RecordError, match="column 'twice' of rows 0 to 29: there are 2 columns of this name"):
        texts(source, keeping(lambda r: r["twice"]))
    with pytest.raises(SourceError, match="2 columns named 'twice'"):
        open_source("s", SourceConfig(path=str(tmp_path), field="twice"))


@pytest.mark.parametrize("odd", [pa.table({"text": pa.array([], pa.int64())}), pa.table({"other": pa.nulls(0)})])
@pytest.mark.parametrize("name", ["0.parquet", "z.parquet"])
def test_a_file_without_rows_decides_nothing(name: str, odd: pa.Table, tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", table_of())
    pq.write_table(odd, tmp_path / name)
    assert texts(open_source("s", SourceConfig(path=str(tmp_path))), even) == TEXTS[::2]
    ids = pa.table({"text": pa.array([[1, 2]], pa.list_(pa.int32()))})
    pq.write_table(ids, tmp_path / "a.parquet")
    assert open_source("s", SourceConfig(path=str(tmp_path))).reader.contents == "ids"


def test_a_shard_whose_texts_are_all_null_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", table_of())
    pq.write_table(pa.table({"text": pa.nulls(3)}), tmp_path / "b.parquet")
    with pytest.raises(SourceError, match=r"b\.parquet': column 'text' holds null, neither text"):
        open_source("s", SourceConfig(path=str(tmp_path)))


def test_shards_may_have_other_columns_in_another_order(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", table_of(extra=range(200)))
    write(tmp_path / "b.parquet", table_of().select(["n", "text"]))
    source = open_source("s", SourceConfig(path=str(tmp_path)))
    assert texts(source, keeping(lambda r: r.get("extra", r["n"]) < 50)) == TEXTS[:50] * 2
    with pytest.raises(FunctionError, match=r"KeyError: 'extra'.*b\.parquet"):
        texts(source, keeping(lambda r: r["extra"] >= 0))


def test_only_columns_that_functions_ask_for_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(
        "s", SourceConfig(path=str(write(tmp_path / "a.parquet", table_of(extra=range(200), more=TEXTS))))
    )
    assert isinstance(source.reader, ParquetReader)
    read: list[tuple[str, ...]] = []
    batches = source.reader._groups.batches
    monkeypatch.setattr(source.reader._groups, "batches", lambda at, *of: read.append(of[0]) or batches(at, *of))
    assert texts(source, even, keeping(lambda r: r["extra"] < 100)) == TEXTS[:100:2]
    # The first chunk finds out what is asked for; then one stream gives it, from here to the group's end.
    assert read == [("text",), ("n",), ("extra",), ("text", "n", "extra"), ("text", "n", "extra")]


@pytest.mark.parametrize("columns", [1, 40])
def test_whole_records_are_those_of_the_file(columns: int, tmp_path: Path) -> None:
    table = table_of(**{f"c{i}": np.arange(200) * i for i in range(columns)})
    source = open_source("s", SourceConfig(path=str(write(tmp_path / "a.parquet", table))))
    expected = table.to_pylist()
    assert texts(source, keeping(lambda r: {**r} == expected[r["n"]] and list(r) == table.column_names)) == TEXTS
