"""A footer is parsed once a file, within bounds of memory and of open files, and again when the file has changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.scenarios import texts_of, write_parquet
from torchtitan_zephon import SourceError
from torchtitan_zephon.plan.chunking import Chunk
from torchtitan_zephon.read import footers
from torchtitan_zephon.read.files import list_source
from torchtitan_zephon.read.footers import Footers
from torchtitan_zephon.read.parquet import ParquetReader
from torchtitan_zephon.read.settings import SourceConfig

TEXT = frozenset({"text"})


def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose footers are parsed from now on."""
    names: list[str] = []

    class Watched(pq.ParquetFile):  # type: ignore[misc]
        def __init__(self, source: Any, **settings: Any) -> None:
            if settings.get("metadata") is None:
                names.append(opened[-1])
            super().__init__(source, **settings)

    opened, file = [], pa.OSFile
    monkeypatch.setattr(pa, "OSFile", lambda path: opened.append(Path(path).name) or file(path))
    monkeypatch.setattr(pq, "ParquetFile", Watched)
    return names


def folder(path: Path, files: int, rows: int = 60) -> Path:
    for n in range(files):
        write_parquet(path / f"{n:04}.parquet", texts_of(rows, n * rows), row_group_rows=20)
    return path


def reader_of(path: Path) -> ParquetReader:
    return ParquetReader(list_source("s", SourceConfig(path=str(path))), SourceConfig(), 2**26)


def read_all(reader: ParquetReader) -> list[str]:
    units = reader.pieces().units.tolist()
    chunks = [Chunk(0, 0, 0, piece, a, b, 1) for piece, n in enumerate(units) for a, b in ((0, n // 2), (n // 2, n))]
    return [text for chunk in chunks for text in reader.read(chunk, TEXT)[0].values["text"]]


def test_a_footer_is_parsed_once_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, names = folder(tmp_path, 3), parsed(monkeypatch)
    reader = reader_of(path)
    for _ in range(2):
        assert read_all(reader) == texts_of(180)
    reader.weigh(8, np.array([0, 20]))
    assert names == ["0000.parquet", "0001.parquet", "0002.parquet"]


def test_footers_are_kept_within_a_bound_and_those_used_last_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder(tmp_path, 5)
    one = pq.read_metadata(path / "0000.parquet").serialized_size
    monkeypatch.setattr(footers, "KEPT_BYTES", 2 * one + one // 2)
    names = parsed(monkeypatch)
    kept = Footers(list_source("s", SourceConfig(path=str(path))))
    for shard in (0, 1, 0, 2, 0, 1, 3, 4, 3, 3):
        kept.of(shard)
        held = [entry.value.metadata.serialized_size for entry in kept._kept._entries.values()]
        assert sum(held) == kept._kept._weight <= footers.KEPT_BYTES
    assert [int(name[:4]) for name in names] == [0, 1, 2, 1, 3, 4]
    monkeypatch.setattr(footers, "KEPT_BYTES", 1)
    assert read_all(reader_of(path)) == texts_of(300)  # the last one is kept all the same


def test_the_footer_of_a_file_that_has_changed_is_parsed_again(tmp_path: Path) -> None:
    path = folder(tmp_path, 1) / "0000.parquet"
    reader = reader_of(path)
    time = path.stat().st_mtime_ns
    write_parquet(path, texts_of(60, 7000), row_group_rows=30)
    os.utime(path, ns=(time + 1, time + 1))
    with pytest.raises(SourceError, match=r"row group 2 ends early: the file was changed"):
        reader.read(Chunk(0, 0, 0, 2, 0, 20, 1), TEXT)
    with pytest.raises(SourceError, match=r"row group 2 ends early: the file was changed"):
        reader.weigh(2, np.array([0, 20]))
    write_parquet(path, texts_of(60), field="other", row_group_rows=20)
    with pytest.raises(SourceError, match=r"row group 1 ends early: the file was changed"):
        reader.read(Chunk(0, 0, 0, 1, 0, 20, 1), TEXT)
    path.unlink()
    with pytest.raises(SourceError, match=r"0000\.parquet' cannot be read: .*No such file"):
        reader.read(Chunk(0, 0, 0, 1, 0, 20, 1), TEXT)


def test_two_thousand_files_are_read_with_256_open_files(tmp_path: Path) -> None:
    folder(tmp_path / "s", 2000, rows=3)
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)); from pathlib import Path; "
        "from tests.read.test_footers import reader_of, read_all, texts_of; reader = reader_of(Path(sys.argv[1])); "
        "sys.exit(read_all(reader) != texts_of(6000) or read_all(reader)[::-1] != texts_of(6000)[::-1])"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "s")], cwd=root, timeout=300, check=True)
