"""Formats with an index of their own: damaged bytes, records above the limit, and what very many files cost."""

from __future__ import annotations

import json
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.read.test_arrow import write as write_arrow
from tests.read.test_every_format import WRITERS
from tests.read.test_mds import write_mds
from tests.read.test_megatron import write_megatron
from tests.read.test_tokens import write_raw
from torchtitan_zephon import ZephonError
from torchtitan_zephon.documents import read_documents
from torchtitan_zephon.plan.chunking import Chunk
from torchtitan_zephon.read.placed import MOST_LOOKED_INTO
from torchtitan_zephon.read.settings import SourceConfig
from torchtitan_zephon.read.source import Source, open_source
from torchtitan_zephon.read.store import LocalStore

DAMAGED = [name for name in WRITERS if name not in ("text lines", "text files", "jsonl", "csv")]


def chunks_of(source: Source, num_bytes: int) -> list[Chunk]:
    pieces = source.reader.pieces()
    return [
        Chunk(0, 0, 0, piece, start, min(units, start + num_bytes), 1)
        for piece, units in enumerate(pieces.units.tolist())
        for start in range(0, units, num_bytes)
    ]


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_byte_or_a_cut_is_an_error_of_ours_or_changes_what_is_read(name: str, tmp_path: Path) -> None:
    whole, folder, draw, told = tmp_path / "whole", tmp_path / "damaged", random.Random(3), 0
    whole.mkdir()
    settings = WRITERS[name](whole).settings
    for n in range(40):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        path = draw.choice(sorted(folder.iterdir()))
        data = bytearray(path.read_bytes())
        at = draw.randrange(min(len(data), 2000) if n % 3 else len(data))
        if n % 4:
            data[at] ^= 1 << draw.randrange(8)
        else:
            del data[at:]
        path.write_bytes(data)
        told += 1
        with suppress(ZephonError):
            source = open_source("s", SourceConfig(path=str(folder), **settings))
            for chunk in chunks_of(source, 3000):
                read_documents(source, chunk)
                source.around(chunk.piece, chunk.start, 100)
            told -= 1
    assert told > 4


def _large(folder: Path, kind: str) -> dict[str, Any]:
    """Five documents, of which the third is large."""
    sizes = [10, 20, 9000, 30, 40]
    if kind == "mds":
        write_mds(folder, [{"text": b"x" * size} for size in sizes], {"text": "str"}, shard_bytes=10**6)
        return {}
    if kind == "arrow":
        write_arrow(folder / "a.arrow", pa.table({"text": ["x" * size for size in sizes]}))
        return {}
    documents = [[*([5] * size), 1] for size in sizes]
    if kind == "megatron":
        write_megatron(folder / "a.bin", [[d] for d in documents], "uint16")
        return {"format": "megatron"}
    write_raw(folder / "a.bin", documents, "uint16")
    return {"format": "tokens", "dtype": "uint16", "document_end": 1}


@pytest.mark.parametrize("kind", ["mds", "arrow", "megatron", "tokens"])
def test_a_record_above_the_limit_is_a_bad_record_and_not_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _large(tmp_path, kind)
    source = open_source("s", SourceConfig(path=str(tmp_path), **settings), 1000)
    read, ranged = [], LocalStore.read
    monkeypatch.setattr(LocalStore, "read", lambda self, name, a, b: read.append(b - a) or ranged(self, name, a, b))
    size = int(source.reader.pieces().units[0])
    documents, bad = source.read(Chunk(0, 0, 0, 0, 0, size, 1), frozenset({"text"}))
    assert len(documents) == 4
    assert [(record.kind, source.reader.describe(record.place)) for record in bad] == [
        ("size", {"mds": "sample 2", "arrow": "row 2", "megatron": "document 2", "tokens": "document at id 32"}[kind])
    ]
    if kind in ("mds", "megatron"):
        assert sum(read) < 2000  # the arrays of a table are read, and not decoded; an end is looked for


@pytest.mark.parametrize("kind", ["arrow", "mds", "megatron", "tokens"])
def test_of_very_many_files_some_are_looked_into_at_the_start(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 2 * MOST_LOOKED_INTO
    _large(tmp_path / "one", kind) if kind == "mds" else (tmp_path / "one").mkdir()
    settings = _large(tmp_path / "one", kind)
    folder = tmp_path / "many"
    folder.mkdir()
    for path in (tmp_path / "one").iterdir():
        if path.suffix != ".json":
            for n in range(count):
                shutil.copy(path, folder / f"{n:04}{path.suffix}")
    if kind == "mds":
        index = json.loads((tmp_path / "one" / "index.json").read_text())
        of = index["shards"][0]
        index["shards"] = [{**of, "raw_data": {**of["raw_data"], "basename": f"{n:04}.mds"}} for n in range(count)]
        (folder / "index.json").write_text(json.dumps(index))
    opened: set[str] = set()
    opening = LocalStore.open
    source = SourceConfig(path=str(folder), **settings)
    monkeypatch.setattr("torchtitan_zephon.read.files.sample", lambda name, kind, store, files: [""] * len(files))
    monkeypatch.setattr(LocalStore, "open", lambda self, name: opened.add(name[:4]) or opening(self, name))
    reader = open_source("s", source).reader
    assert len(reader.pieces().sizes) == count
    assert len(opened) <= MOST_LOOKED_INTO + 1
    assert np.all(reader.pieces().sizes == reader.pieces().sizes[0])
