"""The way to a source's bytes: ranges, versions, and nobody who goes another way."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

import torchtitan_zephon.read
from torchtitan_zephon.read.store import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "größe.bin").write_bytes(bytes(range(256)) * 100)
    return LocalStore(tmp_path)


@pytest.mark.parametrize(("start", "stop"), [(0, 10), (300, 25_000), (25_590, 30_000), (30_000, 30_010), (5, 5)])
def test_a_range_is_the_bytes_of_the_file_up_to_its_end(store: LocalStore, start: int, stop: int) -> None:
    assert store.read("sub/größe.bin", start, stop) == (bytes(range(256)) * 100)[start:stop]


def test_both_open_files_have_the_same_bytes(store: LocalStore) -> None:
    with store.open("sub/größe.bin") as file, store.open_for_arrow("sub/größe.bin") as other:
        assert file.read() == other.read() == bytes(range(256)) * 100


def test_a_version_changes_with_the_file(store: LocalStore) -> None:
    before = store.version("sub/größe.bin")
    os.utime(store.path("sub/größe.bin"), ns=(0, before[1] + 1))
    assert store.version("sub/größe.bin") != before


def test_only_the_store_opens_files() -> None:
    for path in Path(torchtitan_zephon.read.__path__[0]).glob("*.py"):
        called = [node.func for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
        ways = {ast.unparse(call) for call in called} & {"open", "os.open", "pa.OSFile", "pa.memory_map", "path.open"}
        assert ways == ({"open", "pa.OSFile"} if path.name == "store.py" else set()), path.name
