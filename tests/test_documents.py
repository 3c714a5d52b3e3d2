"""From records to texts: the field, the user's functions, and a balance that accounts for each record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.scenarios import write_jsonl, write_parquet
from torchtitan_zephon import ConfigError, FunctionError, RecordError, SourceError
from torchtitan_zephon.balance import Read
from torchtitan_zephon.documents import read_documents
from torchtitan_zephon.ops import fields
from torchtitan_zephon.ops.functions import Function
from torchtitan_zephon.plan.chunking import Chunk
from torchtitan_zephon.read.settings import SourceConfig
from torchtitan_zephon.read.source import Source, open_source
from torchtitan_zephon.records import Documents
from torchtitan_zephon.text_of import text_of

TEXTS = ["one", "", "two", "three", ""]
LINE_2 = b'{"id": 2, "text": "two"}'


def source_of(path: Path, field: str = "text") -> Source:
    return open_source("wiki", SourceConfig(path=str(path), field=field))


def all_texts(source: Source, *functions: Function) -> Documents:
    """The texts of the source's only piece."""
    units = int(source.reader.pieces().units[0])
    return read_documents(source, Chunk(0, 0, 0, 0, 0, units, units), functions)


def mapping(call: Any) -> Function:
    return Function("map", call, "mapping-v1")


def keeping(call: Any) -> Function:
    return Function("filter", call, "keeping-v1")


@pytest.fixture(params=["jsonl", "parquet"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write = write_jsonl if request.param == "jsonl" else write_parquet
    return write(tmp_path / f"a.{request.param}", TEXTS)


def test_every_record_is_a_document_or_empty(path: Path) -> None:
    texts = all_texts(source_of(path))
    assert texts.values["text"] == ["one", "two", "three"]
    assert len(texts) == 3
    assert texts.read == Read(records=5, documents=3, empty=2)


def test_a_place_is_where_the_record_lies_in_its_file(path: Path) -> None:
    source = source_of(path)
    texts = all_texts(source)
    lines = path.read_bytes().split(b"\n")
    starts = [sum(len(line) + 1 for line in lines[:n]) for n in (0, 2, 3)]
    assert texts.origin[:, 2].tolist() == ([0, 2, 3] if path.suffix == ".parquet" else starts)


def test_map_and_filter_run_in_order_and_what_they_drop_is_counted(path: Path) -> None:
    functions = (
        keeping(lambda record: record["id"] != 0),
        mapping(lambda record: {"text": record["text"].upper() or "FILLED"}),
        keeping(lambda record: record["text"] != "TWO"),
    )
    texts = all_texts(source_of(path), *functions)
    assert texts.values["text"] == ["FILLED", "THREE", "FILLED"]
    assert texts.read == Read(records=5, documents=3, filtered=2)


@pytest.mark.parametrize("kind", ["map", "filter"])
def test_a_function_that_fails_is_named_with_the_record_and_the_cause(kind: Any, path: Path) -> None:
    function = Function(kind, lambda record: {"text": str(1 // (record["id"] - 2))}, "divide-v2")
    with pytest.raises(FunctionError, match=r"divide-v2 failed with ZeroDivisionError.*'wiki'.*") as failure:
        all_texts(source_of(path), function)
    place = "row 2" if path.suffix == ".parquet" else f"line at byte {path.read_bytes().index(LINE_2)}"
    assert f"{path.name!r}, {place}" in str(failure.value)
    assert isinstance(failure.value.__cause__, ZeroDivisionError)


def test_an_error_of_our_own_passes_through_a_function_unchanged(path: Path) -> None:
    def refuse(record: dict[str, Any]) -> dict[str, Any]:
        raise ConfigError("mine")

    with pytest.raises(ConfigError, match=r"^mine$"):
        all_texts(source_of(path), mapping(refuse))


@pytest.mark.parametrize("result", [None, "text", ["text"]], ids=repr)
def test_a_map_function_must_return_a_record(result: Any, path: Path) -> None:
    with pytest.raises(RecordError, match=rf"mapping-v1 must return a record .* returned {type(result).__name__}"):
        all_texts(source_of(path), mapping(lambda record: result))


@pytest.mark.parametrize(
    ("value", "problem"), [("null", "null"), ("12", r"a int \('12'\)"), ('["a"]', "a list"), ('{"a": 1}', "a dict")]
)
def test_a_field_that_is_not_text_is_refused_with_its_value(value: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"text": "fine"}}\n{{"text": {value}}}\n', "utf-8")
    with pytest.raises(RecordError, match=rf"line at byte 17: field 'text' must be a string; it is {problem}"):
        all_texts(source_of(tmp_path))


def test_a_missing_field_is_refused_with_the_fields_there_are(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["one"], field="content")
    with pytest.raises(RecordError, match=r"no field 'text'; the record's fields: 'content', 'id'\."):
        all_texts(source_of(tmp_path))
    assert all_texts(source_of(tmp_path, field="content")).values["text"] == ["one"]


def test_a_file_that_is_gone_while_the_job_runs_is_an_error_with_source_and_shard(tmp_path: Path) -> None:
    source = source_of(write_jsonl(tmp_path / "a.jsonl", TEXTS))
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(SourceError, match=r"source 'wiki', shard 'a\.jsonl': cannot be read"):
        read_documents(source, Chunk(0, 0, 0, 0, 0, 10, 10), ())


def test_the_first_bad_record_in_the_file_is_raised_whoever_finds_it(tmp_path: Path) -> None:
    lines = ['{"n": 0, "text": "fine"}', '{"n": 1, "text": 5}', "no JSON", '{"n": 3}', '{"n": 4, "text": "x"}']

    def fail(record: dict[str, Any]) -> bool:
        return 1 // (4 - record["n"]) >= 0

    for first, problem in ((1, "must be a string"), (2, "not valid JSON"), (3, "no field"), (4, "ZeroDivisionError")):
        (tmp_path / "a.jsonl").write_text("\n".join([*lines[:1], *lines[first:]]), "utf-8")
        with pytest.raises((RecordError, FunctionError), match=problem):
            all_texts(source_of(tmp_path), keeping(fail))


def test_readers_give_the_good_records_beside_the_bad_ones(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n[]\n{"text": "two"}\n{"text', "utf-8")
    column = pa.array([b"one", b"\xff", b"two"]).view(pa.string())
    pq.write_table(pa.table({"text": column}), tmp_path / "b.parquet")
    for name, places in (("a.jsonl", [16, 35]), ("b.parquet", [1])):
        source = source_of(tmp_path / name)
        units = int(source.reader.pieces().units[0])
        documents, bad = source.read(Chunk(0, 0, 0, 0, 0, units, units), frozenset({"text"}))
        assert [record.place for record in bad] == places
        assert fields.checked(documents, text_of("text"), "text")[0].values == {"text": ["one", "two"]}
