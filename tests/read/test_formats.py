"""Opening a source: a format's parser is asked for only where there is something to parse."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.scenarios import says, write_jsonl, write_parquet
from torchtitan_zephon import SourceError
from torchtitan_zephon.read.settings import SourceConfig
from torchtitan_zephon.read.source import open_source


@pytest.fixture
def no_orjson(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "orjson", None)
    monkeypatch.delitem(sys.modules, "torchtitan_zephon.read.jsonl", raising=False)


@pytest.mark.usefixtures("no_orjson")
def test_parquet_is_read_where_orjson_is_missing(tmp_path: Path) -> None:
    source = open_source("s", SourceConfig(path=str(write_parquet(tmp_path / "a.parquet", ["one", "two"]))))
    assert len(source.reader.pieces().sizes) == 1


@pytest.mark.usefixtures("no_orjson")
def test_jsonl_without_orjson_is_refused_with_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as error:
        open_source("s", SourceConfig(path=str(write_jsonl(tmp_path / "a.jsonl", ["one"]))))
    says(error, "source 's' is JSONL", "pip install orjson", "Parquet")
