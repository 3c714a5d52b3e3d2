"""Text in fields of columns, and of several columns: the same from Parquet as from JSONL, with functions too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.scenarios import rank_steps, says, small_pipeline, text_of, tokenizer_folder
from torchtitan_zephon import SourceConfig, SourceError
from torchtitan_zephon.documents import read_documents
from torchtitan_zephon.ops.functions import Function
from torchtitan_zephon.plan.chunking import Chunk
from torchtitan_zephon.read.nested import column_at, leaves_of, steps_to
from torchtitan_zephon.read.source import Source, open_source

ROWS: list[dict[str, Any]] = [
    {
        "title": None if n % 7 == 0 else f"Title {n}",
        "meta": {"lang": "en", "inner": {"text": text_of(n), "n": n}, "tags": ["a"] * (n % 3)},
        "meta.lang": f"exact {n}",
        "n": n,
    }
    for n in range(150)
]
KEEP = Function("filter", lambda record: record["n"] % 2 == 0, "even")


def write(folder: Path, suffix: str) -> Path:
    path = folder / f"a.{suffix}"
    if suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=40)
    return path


def texts(source: Source, *functions: Function) -> list[str]:
    found = []
    for piece, units in enumerate(source.reader.pieces().units.tolist()):
        for start in range(0, units, 25 if units < 1000 else units):
            stop = min(start + 25, units) if units < 1000 else units
            found += read_documents(source, Chunk(0, 0, 0, piece, start, stop, 1), functions).values["text"]
    return found


EXPECTED: list[tuple[dict[str, Any], Any]] = [
    ({"field": "meta.inner.text"}, lambda row: row["meta"]["inner"]["text"]),
    ({"field": "meta.lang"}, lambda row: row["meta.lang"]),
    (
        {"field": ["title", "meta.inner.text"]},
        lambda row: "\n\n".join(filter(None, [row["title"], row["meta"]["inner"]["text"]])),
    ),
    (
        {"template": "{{{meta.lang}}}: {meta.inner.text}!"},
        lambda row: f"{{{row['meta.lang']}}}: {row['meta']['inner']['text']}!",
    ),
]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize(("settings", "text"), EXPECTED, ids=["path", "exact name", "several", "template"])
def test_the_text_is_found_wherever_it_lies(suffix: str, settings: Any, text: Any, tmp_path: Path) -> None:
    source = open_source("s", SourceConfig(path=str(write(tmp_path, suffix)), **settings))
    assert texts(source) == [text(row) for row in ROWS]
    assert texts(source, KEEP) == [text(row) for row in ROWS if row["n"] % 2 == 0]


def test_only_the_leaf_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source("s", SourceConfig(path=str(write(tmp_path, "parquet")), field="meta.inner.text"))
    read: list[list[int]] = []

    def batches(file: pq.ParquetFile, groups: list[int], leaves: list[int], rows: int) -> Any:
        read.append(leaves)
        return file.reader.iter_batches(rows, row_groups=groups, column_indices=leaves, use_threads=False)

    monkeypatch.setattr("torchtitan_zephon.read.groups._batches", batches)
    texts(source)
    names = pq.ParquetFile(tmp_path / "a.parquet").schema
    assert {names.column(leaf).path for leaves in read for leaf in leaves} == {"meta.inner.text"}


def test_planned_bytes_are_those_of_all_the_texts(tmp_path: Path) -> None:
    path = write(tmp_path, "parquet")
    both, one, other = (
        open_source("s", SourceConfig(path=str(path), field=field)).reader.pieces().sizes
        for field in (["title", "meta.inner.text"], "meta.inner.text", "meta.lang")
    )
    titles = [row["title"] or "" for row in ROWS]
    assert (both - one).tolist() == [sum(map(len, titles[first : first + 40])) for first in range(0, 150, 40)]
    assert other.sum() == sum(len(row["meta.lang"]) for row in ROWS)


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"field": "meta.txt"}, ["has no column 'meta.txt'", "'meta.inner', 'meta.inner.text', 'meta.inner.n'"]),
        ({"field": "meta.inner.text.x"}, ["has no column 'meta.inner.text.x'"]),
        ({"field": "meta.inner"}, ["column 'meta.inner' holds struct<"]),
        ({"field": ["title", "n"]}, ["column 'n' holds int64, no text", "only text can be joined"]),
    ],
    ids=str,
)
def test_a_column_that_is_not_there_or_no_text_is_refused(settings: Any, parts: list[str], tmp_path: Path) -> None:
    with pytest.raises(SourceError) as error:
        open_source("s", SourceConfig(path=str(write(tmp_path, "parquet")), **settings))
    says(error, *parts)


def test_a_null_on_the_way_is_a_null(tmp_path: Path) -> None:
    table = pa.table({"meta": pa.array([{"text": "a"}, None, {"text": None}, {"text": "b"}])})
    pq.write_table(table, tmp_path / "a.parquet")
    source = open_source("s", SourceConfig(path=str(tmp_path), field="meta.text"))
    pieces = source.reader.pieces()
    documents, bad = source.read(Chunk(0, 0, 0, 0, 0, int(pieces.units[0]), 1), frozenset({"meta.text"}))
    assert documents.values == {"meta.text": ["a", None, None, "b"]} and bad == []


def test_token_ids_may_lie_in_a_struct(tmp_path: Path) -> None:
    rows = [{"tokens": {"ids": [1, 2, n]}} for n in range(20)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    source = open_source("s", SourceConfig(path=str(tmp_path), field="tokens.ids"))
    assert source.reader.contents == "ids"
    documents = read_documents(source, Chunk(0, 0, 0, 0, 0, 20, 1))
    assert documents.ids.tolist() == [i for row in rows for i in row["tokens"]["ids"]]
    with pytest.raises(SourceError, match="only text can be joined"):
        open_source("s", SourceConfig(path=str(tmp_path), template="{tokens.ids}"))


def test_leaves_are_counted_through_all_nestings() -> None:
    inner = pa.struct([("x", pa.map_(pa.string(), pa.int32())), ("y.z", pa.list_(pa.string())), ("y", pa.string())])
    schema = pa.schema(
        [("a", pa.list_(pa.struct([("b", pa.int8()), ("c", pa.int8())]))), ("m", inner), ("n", pa.int8())]
    )
    assert [leaves_of(schema, name) for name in ("a", "m.x", "m.y.z", "m.y", "m", "n")] == [
        range(2),
        range(2, 4),
        range(4, 5),
        range(5, 6),
        range(2, 6),
        range(6, 7),
    ]
    for name in ("m.y.q", "a.b", "q", "m."):
        with pytest.raises(KeyError):
            steps_to(schema, name)
    batch = pa.RecordBatch.from_pylist([{"m": {"y.z": ["1"]}}, {"m": None}], pa.schema([("m", inner)]))
    assert column_at(batch, "m.y.z").to_pylist() == [["1"], None]


def test_a_template_goes_through_a_pipeline_from_any_format(tmp_path: Path) -> None:
    found = []
    for suffix in ("jsonl", "parquet"):
        pipeline = small_pipeline({"s": write(tmp_path, suffix)}, repeat=False).options(on_bad_record="skip")
        pipeline = pipeline.tokenize(tokenizer_id=str(tokenizer_folder()), template="{title}: {meta.inner.text}")
        stream = pipeline.for_rank(0, 1)
        rank_steps(stream, 10**6)
        found.append(stream.balance.sources["s"])
    nulls = sum(row["title"] is None for row in ROWS)
    assert [read.refused["field"].number for read in found] == [nulls, nulls]
    assert found[0].tokens == found[1].tokens > 0
