"""JSONL cut at any byte gives the same records in the same order; a bad line is named by its byte."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from torchtitan_zephon import RecordError, SourceError
from torchtitan_zephon.documents import read_documents
from torchtitan_zephon.plan.chunking import Chunk
from torchtitan_zephon.read.files import Manifest, Shard
from torchtitan_zephon.read.jsonl import JsonlReader
from torchtitan_zephon.read.settings import SourceConfig
from torchtitan_zephon.read.source import Source
from torchtitan_zephon.read.store import LocalStore
from torchtitan_zephon.records import RECORD
from torchtitan_zephon.text_of import text_of

BOM = b"\xef\xbb\xbf"


def reader_of(path: Path, data: bytes, most: int = 2**26) -> JsonlReader:
    path.write_bytes(data)
    manifest = Manifest(LocalStore(path.parent), "jsonl", (Shard(path.name, len(data), ""),))
    return JsonlReader(manifest, SourceConfig(), most)


def chunks(num_bytes: int, size: int) -> list[Chunk]:
    """``num_bytes`` cut every ``size`` bytes."""
    starts = range(0, num_bytes, size)
    return [
        Chunk(0, 0, n, 0, start, min(start + size, num_bytes), min(size, num_bytes - start))
        for n, start in enumerate(starts)
    ]


def read_in_chunks(reader: JsonlReader, size: int) -> tuple[list[Any], list[int]]:
    """All records and their byte offsets, read chunk by chunk."""
    records, places = [], []
    for chunk in chunks(reader.manifest.shards[0].num_bytes, size):
        documents, bad = reader.read(chunk, None)
        assert not bad
        records += documents.values[RECORD]
        places += documents.origin[:, 2].tolist()
    return records, places


def expected_of(data: bytes) -> tuple[list[Any], list[int]]:
    """The records by the plainest reading there is: line by line from the start."""
    records, places, at = [], [], 0
    for number, line in enumerate(data.split(b"\n")):
        begin = at
        at += len(line) + 1
        if number == 0 and line.startswith(BOM):
            line, begin = line[len(BOM) :], len(BOM)
        if line.strip():
            records.append(json.loads(line))
            places.append(begin)
    return records, places


LINES = [
    b'{"text": "one"}',
    b'{"text": "' + "naïve Grüße 東京 🚀".encode() + b'", "id": 2}',
    b'{"text": ""}',
    b'{"text": "' + b"long " * 40 + b'"}',
    b'  {"text": "spaces around"}  ',
    b'{"text": "a \\n escaped line end \xe2\x80\xa8 and a separator"}',
    b"{}",
    b'{"text": "last"}',
]
FILES = {
    "plain": b"\n".join(LINES) + b"\n",
    "no final line end": b"\n".join(LINES),
    "crlf": b"\r\n".join(LINES) + b"\r\n",
    "blank lines": b"\n\n" + b"\n \n\t\n\n".join(LINES) + b"\n\n\n",
    "bom": BOM + b"\n".join(LINES) + b"\n",
    "bom before a blank line": BOM + b"\n" + b"\n".join(LINES),
    "one line": b'{"text": "alone"}',
    "one short record": b"{}\n",
    "only blank lines": b"\n\n \n",
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_at_every_size_gives_the_same_records(name: str, tmp_path: Path) -> None:
    data = FILES[name]
    reader, expected = reader_of(tmp_path / "a.jsonl", data), expected_of(data)
    for size in range(1, len(data) + 2):
        assert read_in_chunks(reader, size) == expected, f"cut every {size} bytes"


@given(
    st.lists(st.text('ab ü東🚀\u2028\\"\n\r{}', max_size=30), max_size=12),
    st.sampled_from(["\n", "\r\n", "\n\n"]),
    st.booleans(),
    st.integers(1, 60),
)
def test_any_texts_come_back_whatever_the_cut(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], line_end: str, final: bool, size: int
) -> None:
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    data = (line_end.join(lines) + (line_end if final else "")).encode()
    reader = reader_of(tmp_path_factory.getbasetemp() / "property.jsonl", data)
    assert [record["text"] for record in read_in_chunks(reader, size)[0]] == texts


@pytest.mark.parametrize("size", [60_000, 65_536, 2**20, 2**22])
def test_a_line_of_3_mb_is_one_record(size: int, tmp_path: Path) -> None:
    line = json.dumps({"text": "0123456789" * 300_000}).encode()
    data = b'{"text": "before"}\n' + line + b'\n{"text": "after"}\n'
    reader = reader_of(tmp_path / "a.jsonl", data)
    records, places = read_in_chunks(reader, size)
    assert [len(record["text"]) for record in records] == [6, 3_000_000, 5]
    assert places == [0, 19, 19 + len(line) + 1]


MALFORMED = {
    "truncated": (b'{"text": "x', "not valid JSON"),
    "array": (b"[]", "an array"),
    "null": (b"null", "null"),
    "string": (b'"text"', "a string"),
    "number": (b"12", "a number"),
    "true": (b"true", "true or false"),
    "two objects": (b'{"text": "a"} {"text": "b"}', "not valid JSON"),
    "trailing comma": (b'{"text": "a",}', "not valid JSON"),
    "single quotes": (b"{'text': 'a'}", "not valid JSON"),
    "nan": (b'{"text": NaN}', "not valid JSON"),
    "infinity": (b'{"text": Infinity}', "not valid JSON"),
    "lone surrogate": (b'{"text": "\\ud800"}', "not valid JSON"),
    "byte 0xff": (b'{"text": "\xff"}', "not valid JSON"),
    "raw nul in a string": (b'{"text": "a\x00b"}', "not valid JSON"),
    "bom in the middle": (BOM + b'{"text": "a"}', "not valid JSON"),
    "utf-16": ('{"text": "a"}'.encode("utf-16-le"), "not valid JSON"),
}


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("size", [9, 40, 1000])
def test_a_malformed_line_is_named_by_file_and_byte(name: str, size: int, tmp_path: Path) -> None:
    line, problem = MALFORMED[name]
    before = '{"text": "good, naïve"}\n\n'.encode()
    data = before + line + b'\n{"text": "good"}\n'
    source = Source("wiki", text_of("text"), reader_of(tmp_path / "part-7.jsonl", data))
    with pytest.raises(RecordError, match=problem) as refusal:
        [read_documents(source, chunk, ()) for chunk in chunks(len(data), size)]
    error = refusal.value
    assert (error.source, error.shard, error.place) == ("wiki", "part-7.jsonl", f"line at byte {len(before)}")
    assert str(error).startswith(f"source 'wiki', shard 'part-7.jsonl', line at byte {len(before)}: ")


def test_a_malformed_first_line_after_a_bom_is_at_byte_3(tmp_path: Path) -> None:
    source = Source("s", text_of("text"), reader_of(tmp_path / "a.jsonl", BOM + b"[1]\n"))
    with pytest.raises(RecordError, match="line at byte 3: "):
        read_documents(source, chunks(7, 100)[0], ())


@pytest.mark.parametrize("stop", [50, 400])
def test_a_file_that_was_cut_while_the_job_runs_is_an_error(stop: int, tmp_path: Path) -> None:
    reader = reader_of(tmp_path / "a.jsonl", FILES["plain"])
    size = reader.manifest.shards[0].num_bytes
    (tmp_path / "a.jsonl").write_bytes(FILES["plain"][:40])
    with pytest.raises(SourceError, match=rf"ends at byte 40, but had {size} bytes"):
        reader.read(Chunk(0, 0, 0, 0, 0, stop, stop), None)


def test_a_piece_is_a_file_and_its_units_are_bytes(tmp_path: Path) -> None:
    manifest = Manifest(LocalStore(tmp_path), "jsonl", (Shard("a.jsonl", 10, ""), Shard("b.jsonl", 0, "")))
    reader = JsonlReader(manifest, SourceConfig(), 2**26)
    pieces = reader.pieces()
    assert pieces.sizes.tolist() == pieces.units.tolist() == [10, 0]
    assert pieces.runs_of_one
    assert reader.shard_of(1) == 1


@pytest.mark.parametrize("name", FILES)
def test_ranges_of_bytes_weigh_the_lines_that_begin_in_them(name: str, tmp_path: Path) -> None:
    data = FILES[name]
    reader = reader_of(tmp_path / "a.jsonl", data)
    weights = np.array([len(line) + 1 for line in data.split(b"\n")])
    starts = np.cumsum(weights) - weights
    weights[-1] -= 1  # behind the last line end, if there is a line
    for size in [*range(1, 40), len(data) - 1, len(data)]:
        borders = np.array([*range(0, len(data), max(1, size)), len(data)])
        found = reader.weigh(0, borders)
        assert found.dtype == np.int64 and found.sum() == len(data)
        assert found.tolist() == [
            int(weights[(starts >= a) & (starts < b)].sum()) for a, b in itertools.pairwise(borders.tolist())
        ], f"cut every {size} bytes"


def test_a_range_in_the_middle_is_weighed_alone_and_a_border_may_repeat(tmp_path: Path) -> None:
    reader = reader_of(tmp_path / "a.jsonl", b"{}\n" * 5)
    assert reader.weigh(0, np.array([4, 9])).tolist() == [3]
    assert reader.weigh(0, np.array([1, 1, 2, 15, 15])).tolist() == [0, 0, 12, 0]
    assert reader.weigh(0, np.array([0])).tolist() == []


def test_a_line_longer_than_many_ranges_weighs_in_that_where_it_begins(tmp_path: Path) -> None:
    line = json.dumps({"text": "0123456789" * 30_000}).encode()
    reader = reader_of(tmp_path / "a.jsonl", b"{}\n" + line + b"\n{}")
    size = len(line) + 6
    found = reader.weigh(0, np.array([*range(0, size, 1000), size])).tolist()
    assert found[0] == 3 + len(line) + 1 and set(found[1:-1]) == {0} and found[-1] == 2


@pytest.mark.parametrize("borders", [[0, 30], [30, 100], [39, 300], [100, 300]])
def test_weighing_a_file_that_was_cut_while_the_job_runs_is_an_error(borders: list[int], tmp_path: Path) -> None:
    data = b"x" * 350 + b"\n"
    reader = reader_of(tmp_path / "a.jsonl", data)
    (tmp_path / "a.jsonl").write_bytes(data[:40])
    with pytest.raises(SourceError, match=r"a\.jsonl' ends at byte 40, but had 351 bytes"):
        reader.weigh(0, np.array(borders))


def test_a_chunk_is_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, read, of_store = reader_of(tmp_path / "a.jsonl", FILES["plain"]), [], LocalStore.read
    monkeypatch.setattr(LocalStore, "read", lambda *of: read.append(of) or of_store(*of))
    parts = chunks(len(FILES["plain"]), 20)
    for chunk in parts[:-1]:
        reader.read(chunk, None)
    assert len(read) == len(parts) - 1 > 1
