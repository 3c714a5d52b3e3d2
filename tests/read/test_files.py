"""Listing a source: an order and a fingerprint that depend on names and bytes alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.scenarios import write_jsonl, write_parquet
from torchtitan_zephon import SourceError
from torchtitan_zephon.read.files import list_source, shared_files
from torchtitan_zephon.read.settings import SourceConfig

NAMES = ["part-2.jsonl", "part-10.jsonl", "Zebra.jsonl", "a/b.jsonl", "a.jsonl", "a-b.jsonl", "ä.jsonl", "東.jsonl"]
BYTEWISE = ["Zebra.jsonl", "a-b.jsonl", "a.jsonl", "a/b.jsonl", "part-10.jsonl", "part-2.jsonl", "ä.jsonl", "東.jsonl"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for n, name in enumerate(NAMES):
        write_jsonl(tmp_path / name, [f"document {n}"])
    return tmp_path


def names_of(path: Path | str) -> list[str]:
    return [shard.name for shard in list_source("s", SourceConfig(path=str(path))).shards]


def test_shards_are_in_bytewise_order_of_their_relative_path(folder: Path) -> None:
    assert names_of(folder) == BYTEWISE


@pytest.mark.parametrize("backwards", [True, False])
def test_the_order_does_not_depend_on_the_order_of_the_listing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, backwards: bool
) -> None:
    scandir = os.scandir

    @contextmanager
    def other_scandir(path: str) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(path) as entries:
            yield sorted(entries, key=lambda entry: entry.name, reverse=backwards)

    monkeypatch.setattr(os, "scandir", other_scandir)
    assert names_of(folder) == BYTEWISE
    assert names_of(f"{folder}/**/*.jsonl") == BYTEWISE


def test_a_file_and_a_glob_name_shards_relative_to_their_fixed_part(folder: Path) -> None:
    assert names_of(folder / "a" / "b.jsonl") == ["b.jsonl"]
    assert names_of(f"{folder}/part-*.jsonl") == ["part-10.jsonl", "part-2.jsonl"]
    assert names_of(f"{folder}/*/b.jsonl") == ["a/b.jsonl"]


def test_a_source_that_was_moved_is_the_same_source(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    before = list_source("s", SourceConfig(path=str(folder)))
    moved = tmp_path_factory.mktemp("elsewhere") / "data"
    folder.rename(moved)
    after = list_source("other name", SourceConfig(path=str(moved)))
    assert after.shards == before.shards
    assert after.path(0) == str(moved / "Zebra.jsonl")


def test_a_relative_path_and_a_link_are_followed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.parent / "link").symlink_to(folder)
    monkeypatch.chdir(folder.parent)
    assert (
        list_source("s", SourceConfig(path="link")).shards
        == list_source("s", SourceConfig(path=folder.name)).shards
        == list_source("s", SourceConfig(path=str(folder))).shards
    )


def test_a_link_is_read_under_its_own_name(folder: Path) -> None:
    (folder / "blob").write_bytes(b'{"text": "x"}\n')
    (folder / "named.jsonl").symlink_to(folder / "blob")
    assert names_of(folder / "named.jsonl") == ["named.jsonl"]


def test_hidden_files_and_folders_are_left_out(folder: Path) -> None:
    for name in (".hidden.jsonl", "_meta.jsonl", ".cache/x.jsonl", "_temporary/x.jsonl"):
        write_jsonl(folder / name, ["no"])
    assert names_of(folder) == BYTEWISE


def test_json_is_read_where_it_is_named_and_left_out_of_a_folder(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.json", ["one"])
    write_jsonl(tmp_path / "b.ndjson", ["two"])
    assert names_of(tmp_path) == ["b.ndjson"]
    assert list_source("s", SourceConfig(path=str(tmp_path / "a.json"))).format == "jsonl"


def refusal(path: Path | str) -> str:
    with pytest.raises(SourceError) as refused:
        list_source("wiki", SourceConfig(path=str(path)))
    return str(refused.value)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    told = refusal(tmp_path)
    assert told.startswith(f"source 'wiki': no data file at {str(tmp_path)!r} (it is empty). Data files end in .jsonl,")


def test_unknown_types_are_refused_by_what_was_found(tmp_path: Path) -> None:
    for name in ("a.pdf", "b.txt", "README"):
        (tmp_path / name).write_text("x", "utf-8")
    assert "found only .pdf, .txt, README" in refusal(tmp_path)
    assert "a.pdf' (found only .pdf)" in refusal(tmp_path / "a.pdf")


@pytest.mark.parametrize("name", ["part-3.jsonl.lz4", "part-3.parquet.gz"])
def test_files_packed_in_a_way_that_is_not_read_are_refused_by_name(name: str, folder: Path) -> None:
    (folder / name).write_bytes(b"x")
    assert f"{name!r} is compressed in a way that is not read (1 such files" in refusal(folder)


def test_mixed_formats_are_refused_with_a_glob_that_works(folder: Path) -> None:
    write_parquet(folder / "copy.parquet", ["one"])
    text = refusal(folder)
    assert "both jsonl and parquet files" in text
    suggested = text.split("such as ")[1].strip("'.")
    assert names_of(suggested) == ["copy.parquet"]


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("nowhere", "there is no file or folder 'nowhere'"),
        ("no/such/*.jsonl", "there is no file at 'no/such/*.jsonl', for want of a folder 'no/such'"),
        ("*.jsonl", "no data file at '*.jsonl' (it is empty)"),
        ("a\0b", "has a null character"),
        ("~no-such-user/data", "is no path on this machine"),
        ("a" * 300, "File name too long"),
        ("*/../*.jsonl", "has '..' behind a wildcard"),
        ("", "has no path"),
    ],
)
def test_a_path_with_nothing_there_is_refused(
    path: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(path).startswith("source 'wiki'")
    assert problem in refusal(path)


def test_files_without_a_byte_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "b.jsonl").touch()
    assert "all 2 files" in refusal(tmp_path)


def test_a_link_that_leads_nowhere_is_refused_by_name(folder: Path) -> None:
    (folder / "gone.jsonl").symlink_to(folder / "nothing")
    assert "gone.jsonl" in refusal(folder)


def test_files_that_two_sources_read_are_said(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = write_jsonl(tmp_path_factory.mktemp("other") / "a.jsonl", ["x"])
    paths = {"all": folder, "a": folder / "a", "some": f"{folder}/part-*", "other": other}
    manifests = [(repr(name), list_source(name, SourceConfig(path=str(path)))) for name, path in paths.items()]
    assert shared_files(manifests) == [
        f"{str(folder / 'a' / 'b.jsonl')!r} is read by both 'all' and 'a'",
        f"{str(folder / 'part-10.jsonl')!r} and 1 files more are read by both 'all' and 'some'",
    ]
