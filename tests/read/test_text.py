"""Plain text: a record a line, or a file, plain and packed, and what is no text."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios import small_pipeline, texts_of, tokenizer_folder
from torchtitan_zephon import Dataset, Pipeline, RecordError, SourceError, StaticMixtureWorkSource
from torchtitan_zephon.plan.chunking import Chunk
from torchtitan_zephon.read.settings import SourceConfig
from torchtitan_zephon.read.source import Source, open_source
from torchtitan_zephon.records import RECORD

TEXT = frozenset({"text"})
LINES = ["one", "  two, with spaces  ", "naïve 東京 🚀", "", "   ", "five\ttabs", '{"text": "no JSON"}', "eight"]


def opened(path: Path | str, most: int = 2**20, **settings: Any) -> Source:
    return open_source("s", SourceConfig(path=str(path), **settings), most)


def read_all(source: Source, num_bytes: int) -> tuple[list[str], list[int]]:
    """Texts and places of one epoch; bad records are none."""
    texts, places = [], []
    for piece, size in enumerate(source.reader.pieces().units.tolist()):
        for start in range(0, size, num_bytes):
            documents, bad = source.read(Chunk(0, 0, 0, piece, start, min(size, start + num_bytes), 1), TEXT)
            assert not bad
            texts += [record["text"] for record in documents.values[RECORD]]
            places += documents.origin[:, 2].tolist()
    return texts, places


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("num_bytes", [1, 5, 1000])
def test_lines_are_records_without_their_ends_and_blank_ones_are_none(end: str, num_bytes: int, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(("\ufeff" + end.join(LINES)).encode())
    texts, places = read_all(opened(tmp_path / "*.txt"), num_bytes)
    assert texts == [line for line in LINES if line.strip()]
    assert places[:2] == [3, 6 + len(end)]


@pytest.mark.parametrize("num_bytes", [7, 10**6])
def test_files_are_records_whole(num_bytes: int, tmp_path: Path) -> None:
    wanted = ["\n".join(LINES) + "\n", "second file " * 50, "third"]
    for n, text in enumerate(["\ufeff" + wanted[0], *wanted[1:]]):
        (tmp_path / f"{n}.txt").write_bytes(text.encode())
    (tmp_path / "README.md").write_text("left out")
    source = opened(tmp_path, format="text", record="file")
    assert read_all(source, num_bytes) == (wanted, [0, 0, 0])
    assert [left.name for left in source.reader.manifest.left_out] == ["README.md"]


def test_a_folder_of_text_is_read_where_the_format_is_stated(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "b.rst").write_text("two\n")
    with pytest.raises(SourceError, match="found only"):
        opened(tmp_path)
    assert read_all(opened(tmp_path, format="text"), 100)[0] == ["one"]
    assert read_all(opened(tmp_path / "*.rst", format="text"), 100)[0] == ["two"]
    assert read_all(opened(tmp_path / "*", format="text"), 100)[0] == ["one"]


@pytest.mark.parametrize("record", ["line", "file"])
def test_a_packed_pass_gives_the_records_of_the_plain_one(record: str, tmp_path: Path) -> None:
    for n in range(6):
        text = "\n".join(texts_of(60, first=100 * n))
        for folder, data in (("plain", text.encode()), ("packed", gzip.compress(text.encode()))):
            path = tmp_path / folder / f"{n}.txt{'.gz' * (folder == 'packed')}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
    found = []
    for folder in ("plain", "packed"):
        data = Dataset.from_path("s", str(tmp_path / folder), format="text", record=record)
        stream = _pipeline(data).stream
        found.append(sorted(b.input[r].tobytes() for b in stream for r in range(len(b.input))))
        assert stream.balance.read.documents == (360 if record == "line" else 6)
    if record == "file":
        assert found[0] == found[1]


def _pipeline(data: Dataset) -> Pipeline:
    source = StaticMixtureWorkSource(
        datasets=[data], mixture={data.name: 1.0}, repeat=False, chunk_bytes=4096, shuffle_chunks=False,
        shuffle_records=False,
    )  # fmt: skip
    return (
        Pipeline(source)
        .tokenize(tokenizer_id=str(tokenizer_folder()))
        .pack_flat(max_length=32)
        .batch(microbatch_size=1)
    )


@pytest.mark.parametrize(("record", "place"), [("line", 4), ("file", 0)])
def test_what_is_no_utf8_is_one_bad_record(record: str, place: int, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\n\xff\xfetwo\nthree\n")
    source = opened(tmp_path / "a.txt", record=record)
    documents, bad = source.read(Chunk(0, 0, 0, 0, 0, 16, 1), TEXT)
    assert len(documents) == (2 if record == "line" else 0)
    assert [(b.kind, b.place) for b in bad] == [("column", place)]
    assert "not UTF-8" in bad[0].problem and "byte 4" in bad[0].problem
    with pytest.raises(RecordError, match=r"shard 'a\.txt', (line at byte 4|the file): the text is not UTF-8"):
        list(small_pipeline({"s": tmp_path / "a.txt"}, repeat=False)) if record == "line" else list(
            _pipeline(Dataset.from_path("s", str(tmp_path / "a.txt"), record="file"))
        )


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_above_the_limit_is_a_bad_record(packed: bool, tmp_path: Path) -> None:
    path = tmp_path / f"a.txt{'.gz' * packed}"
    path.write_bytes(gzip.compress(b"x" * 5000) if packed else b"x" * 5000)
    (tmp_path / f"b.txt{'.gz' * packed}").write_bytes(gzip.compress(b"y" * 90) if packed else b"y" * 90)
    data = Dataset.from_path("s", str(tmp_path), format="text", record="file")
    stream = _pipeline(data).options(max_record_bytes=1024, on_bad_record="skip", max_bad_fraction=0.9).stream
    list(stream)
    assert stream.balance.read.documents == 1
    assert {kind: of.number for kind, of in stream.balance.read.refused.items()} == {"size": 1}
