"""MDS: every sample once, as Mosaic Streaming wrote it, and folders that are not whole refused."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.read.fixtures.make import TEXTS
from tests.read.test_tokens import read_all as read_ids
from tests.scenarios import says
from torchtitan_zephon import SourceError
from torchtitan_zephon.documents import read_documents
from torchtitan_zephon.plan.chunking import Chunk
from torchtitan_zephon.read.settings import SourceConfig
from torchtitan_zephon.read.source import Source, open_source
from torchtitan_zephon.records import RECORD

WRITTEN = Path(__file__).parent / "fixtures" / "mds"


def opened(path: Path, **settings: Any) -> Source:
    return open_source("s", SourceConfig(path=str(path), **settings))


def write_mds(
    folder: Path, samples: list[dict[str, bytes]], encodings: dict[str, str], shard_bytes: int = 4000
) -> Path:
    """Shards of values that are encoded already, none of a fixed size, laid out as ``MDSWriter`` does."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(encodings)
    config = {
        "column_encodings": [encodings[name] for name in names],
        "column_names": names,
        "column_sizes": [None] * len(names),
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": 1500,
        "version": 2,
    }
    text, entries = json.dumps(config, sort_keys=True).encode(), []
    made = [
        np.array([len(s[name]) for name in names], "<u4").tobytes() + b"".join(s[name] for name in names)
        for s in samples
    ]
    while made or not entries:
        taken = max(1, int(np.searchsorted(np.cumsum([*map(len, made)]), shard_bytes)))
        own, made = made[:taken], made[taken:]
        begins = np.cumsum([4 + 4 * (len(own) + 1) + len(text), *map(len, own)]).astype("<u4")
        basename = f"shard.{len(entries):05}.mds"
        (folder / basename).write_bytes(np.uint32(len(own)).tobytes() + begins.tobytes() + text + b"".join(own))
        raw = {"basename": basename, "bytes": int(begins[-1]), "hashes": {}}
        entries.append({**config, "raw_data": raw, "samples": len(own), "zip_data": None})
    index = {"shards": entries, "version": 2}
    (folder / "index.json").write_text(json.dumps(index, sort_keys=True))
    return folder


def read_texts(source: Source, chunk_bytes: int) -> list[str]:
    found = []
    for piece, size in enumerate(source.reader.pieces().units.tolist()):
        for start in range(0, size, chunk_bytes):
            chunk = Chunk(0, 0, 0, piece, start, min(size, start + chunk_bytes), 1)
            documents, bad = source.read(chunk, frozenset({"text"}))
            assert not bad
            found += [record["text"] for record in documents.values[RECORD]]
    return found


@pytest.mark.parametrize("chunk_bytes", [10, 333, 10**6])
def test_texts_are_read_sample_by_sample(chunk_bytes: int) -> None:
    assert read_texts(opened(WRITTEN / "text"), chunk_bytes) == TEXTS


@pytest.mark.parametrize("field", ["any", "shaped", "fixed", "raw"])
@pytest.mark.parametrize("chunk_bytes", [50, 10**6])
def test_ids_are_read_in_each_encoding(field: str, chunk_bytes: int) -> None:
    dtype = {"dtype": "int64"} if field == "raw" else {}
    source = opened(WRITTEN / "ids", field=field, **dtype)
    assert source.reader.contents == "ids"
    assert read_ids(source, chunk_bytes, field) == [[n, n + 1, n + 2, 383] for n in range(60)]


def test_whole_records_have_every_column_and_nothing_is_unpickled() -> None:
    source = opened(WRITTEN / "text")
    documents, bad = source.read(Chunk(0, 0, 0, 0, 0, 1425, 1), None)
    assert not bad
    assert documents.values[RECORD][3] == {"id": 3, "meta": {"n": 3}, "raw": b"\0\xff", "text": TEXTS[3]}


def test_the_tests_write_what_streaming_writes(tmp_path: Path) -> None:
    samples = [dict.fromkeys("ab", b"%d" % n) | {"text": text.encode()} for n, text in enumerate(TEXTS)]
    source = opened(write_mds(tmp_path / "d", samples, {"text": "str", "a": "str_int", "b": "json"}))
    assert read_texts(source, 700) == TEXTS
    stated = json.loads((WRITTEN / "text" / "index.json").read_text())["shards"][0]
    own = json.loads((tmp_path / "d" / "index.json").read_text())["shards"][0]
    assert stated.keys() == own.keys()


def test_one_index_for_several_folders_is_found_above_them(tmp_path: Path) -> None:
    entries = []
    for part in "ab":
        shutil.copytree(WRITTEN / "text", tmp_path / part)
        index = json.loads((tmp_path / part / "index.json").read_text())
        (tmp_path / part / "index.json").unlink()
        for entry in index["shards"]:
            entry["raw_data"]["basename"] = f"{part}/{entry['raw_data']['basename']}"
            entries.append(entry)
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": entries}))
    assert read_texts(opened(tmp_path), 1000) == TEXTS * 2


def _index(change: Any) -> Any:
    def damage(folder: Path) -> None:
        index = json.loads((folder / "index.json").read_text())
        change(index["shards"])
        (folder / "index.json").write_text(json.dumps(index))

    return damage


def _cut(folder: Path) -> None:
    path = folder / "shard.00001.mds"
    path.write_bytes(path.read_bytes()[:700])


@pytest.mark.parametrize(
    ("damage", "parts"),
    [
        (
            lambda folder: (folder / "shard.00001.mds").unlink(),
            ["index.json", "'shard.00001.mds'", "not there", "copy"],
        ),
        (lambda folder: (folder / "index.json").unlink(), ["has no index.json", "writer was not closed"]),
        (_cut, ["shard.00001.mds", "700 bytes", "1,482 by its index.json"]),
        (_index(lambda shards: shards.pop()), ["shard.00002.mds", "no index.json names it"]),
        (_index(lambda shards: shards[0].update(format="json")), ["'json' shards"]),
        (_index(lambda shards: shards[0].pop("raw_data")), ["no index of MDS", "raw_data"]),
        (lambda folder: (folder / "index.json").write_text("{"), ["no index of MDS"]),
    ],
)
def test_folders_that_are_not_whole_are_refused(damage: Any, parts: list[str], tmp_path: Path) -> None:
    shutil.copytree(WRITTEN / "text", tmp_path / "d")
    damage(tmp_path / "d")
    with pytest.raises(SourceError) as error:
        opened(tmp_path / "d")
    says(error, *parts)


def test_compressed_shards_are_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"shard\.0000.*\.mds\.gz' is compressed"):
        opened(WRITTEN / "packed")
    shutil.copytree(WRITTEN / "packed", tmp_path / "d")
    for path in sorted((tmp_path / "d").glob("*.gz")):
        (tmp_path / "d" / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert read_texts(opened(tmp_path / "d"), 10**4) == TEXTS  # unpacked beside themselves
    (tmp_path / "d" / "shard.00001.mds").unlink()
    with pytest.raises(SourceError, match=r"names 'shard\.00001\.mds', which is not there; it is compressed \(gz\)"):
        opened(tmp_path / "d")


@pytest.mark.parametrize(
    ("field", "parts"),
    [
        ("raw", ["column 'raw' holds bytes", 'dtype = "int64"']),
        ("id", ["column 'id' holds int, neither text (str) nor token ids"]),
        ("body", ["no column 'body'; its columns: 'id', 'meta', 'raw', 'text'"]),
    ],
)
def test_columns_that_cannot_be_trained_on_are_refused(field: str, parts: list[str]) -> None:
    with pytest.raises(SourceError) as error:
        opened(WRITTEN / "text", field=field)
    says(error, "shard.00000.mds", *parts)


def test_a_shard_that_is_damaged_inside_is_told(tmp_path: Path) -> None:
    for at, value in ((0, 0xFFFFFF), (4, 3), (8, 9), (60, 0)):
        shutil.rmtree(tmp_path / "d", ignore_errors=True)
        shutil.copytree(WRITTEN / "text", tmp_path / "d")
        path = tmp_path / "d" / "shard.00000.mds"
        data = bytearray(path.read_bytes())
        data[at : at + 4] = value.to_bytes(4, "little")
        path.write_bytes(data)
        with pytest.raises(SourceError, match=r"shard\.00000\.mds' is no readable MDS shard"):
            opened(tmp_path / "d")
    shutil.copy(WRITTEN / "text" / "shard.00000.mds", path)
    begin = int.from_bytes(path.read_bytes()[8:12], "little")
    data = bytearray(path.read_bytes())
    data[begin] ^= 0x40  # how long a value of the second sample is
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"samples 0 to 14: a sample of \d+ bytes has values of \d+"):
        read_texts(opened(tmp_path / "d"), 10**4)


def test_a_value_that_cannot_be_decoded_is_one_bad_record(tmp_path: Path) -> None:
    samples = [{"text": b"one"}, {"text": b"\xff\xfe"}, {"text": b"three"}]
    source = opened(write_mds(tmp_path, samples, {"text": "str"}))
    documents, bad = source.read(Chunk(0, 0, 0, 0, 0, 10**6, 1), frozenset({"text"}))
    assert documents.values[RECORD] == [{"text": "one"}, {"text": "three"}]
    assert [(record.kind, record.place) for record in bad] == [("column", 1)]


def test_fields_of_a_json_column_and_templates_are_found(tmp_path: Path) -> None:
    samples = [{"meta": json.dumps({"text": f"text {n}"}).encode(), "title": b"title %d" % n} for n in range(9)]
    write_mds(tmp_path, samples, {"meta": "json", "title": "str"})
    source = opened(tmp_path, template="{title}: {meta.text}")
    chunk = Chunk(0, 0, 0, 0, 0, 10**6, 1)
    documents = read_documents(source, chunk)
    assert documents.values["text"][:2] == ["title 0: text 0", "title 1: text 1"]
    with pytest.raises(SourceError, match=r"column 'title\.text' holds str, neither text"):
        opened(tmp_path, field="title.text")
