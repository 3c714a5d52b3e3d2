"""Folders that cannot be read as they are: tables with a log, revisions in a hub cache, packed copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios import write_jsonl, write_parquet
from torchtitan_zephon import SourceError
from torchtitan_zephon.read.files import list_source
from torchtitan_zephon.read.folders import refuse_copies
from torchtitan_zephon.read.settings import SourceConfig


def made(root: Path, *names: str) -> Path:
    """The files ``names`` below ``root``, each with another text."""
    for name in names:
        write = write_parquet if name.endswith(".parquet") else write_jsonl
        write(root / name, [f"the text of {name}"])
    return root


def names_of(path: Path | str) -> list[str]:
    return [shard.name for shard in list_source("s", SourceConfig(path=str(path))).shards]


def refusal(path: Path | str) -> str:
    with pytest.raises(SourceError) as refused:
        list_source("s", SourceConfig(path=str(path)))
    return str(refused.value)


def ways(text: str) -> list[str]:
    """The paths that a refusal offers, each on an indented line."""
    return [line.strip() for line in text.splitlines() if line.startswith("    ")]


# ---- tables


def table(root: Path, kind: str) -> Path:
    """A folder that a table format keeps its files in, with two of them in a partition."""
    mark = {
        "Delta": "_delta_log/00000000000000000000.json",
        "Hudi": ".hoodie/hoodie.properties",
        "Iceberg": "metadata/00001-5f3e.metadata.json",
    }[kind]
    (root / mark).parent.mkdir(parents=True)
    (root / mark).write_text("{}", "utf-8")
    made(root, "data/day=1/part-0.parquet", "data/day=1/part-1.parquet")
    return root


KINDS = ["Delta", "Hudi", "Iceberg"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", ["", "/**/*.parquet", "/data/day=1", "/data/*/*.parquet", "/data/day=1/part-0.parquet"])
def test_a_table_whose_live_files_are_listed_elsewhere_is_refused(kind: str, at: str, tmp_path: Path) -> None:
    text = refusal(f"{table(tmp_path / 'table', kind)}{at}")
    assert f"{str(tmp_path / 'table')!r} is a table of {kind}" in text
    assert "deleted or replaced" in text
    assert "Export it" in text


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_among_other_folders_is_refused_and_its_neighbours_are_read(kind: str, tmp_path: Path) -> None:
    table(tmp_path / "a" / "table", kind)
    made(tmp_path, "b/0.parquet")
    assert f"{str(tmp_path / 'a' / 'table')!r} is a table of {kind}" in refusal(tmp_path)
    assert names_of(tmp_path / "b") == ["0.parquet"]


def test_a_table_of_which_nothing_is_read_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    assert names_of(made(tmp_path, "plain/0.parquet")) == ["plain/0.parquet"]


def test_a_folder_named_metadata_is_no_table(tmp_path: Path) -> None:
    made(tmp_path, "data/0.parquet", "metadata/0.parquet")
    (tmp_path / "metadata" / "about.json").write_text("{}", "utf-8")
    assert names_of(tmp_path) == ["data/0.parquet", "metadata/0.parquet"]
    made(tmp_path / "other", "0.parquet")
    (tmp_path / "other" / "metadata").mkdir()
    (tmp_path / "other" / "metadata" / "0.metadata.json").write_text("{}", "utf-8")
    assert names_of(tmp_path / "other") == ["0.parquet"]


def test_jsonl_beside_the_log_of_a_table_is_read(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    assert names_of(made(tmp_path, "0.jsonl")) == ["0.jsonl"]


# ---- a hub cache

OLD, NEW = "1" * 40, "a" * 40


def cached(root: Path, **files: str) -> Path:
    """A data set in a hub cache: ``revision_name="text"`` for each file of each revision."""
    for place, text in files.items():
        revision, _, name = place.partition("_")
        blob = root / "blobs" / text
        write_jsonl(blob, [text])
        link = root / "snapshots" / {"old": OLD, "new": NEW}[revision] / f"{name}.jsonl"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(Path("../../blobs") / text)
    return root


def test_two_revisions_of_the_same_files_are_read_once(tmp_path: Path) -> None:
    cached(tmp_path, old_x="text", new_x="text")
    manifest = list_source("s", SourceConfig(path=str(tmp_path)))
    assert [shard.name for shard in manifest.shards] == [f"snapshots/{OLD}/x.jsonl"]
    assert f"'snapshots/{NEW}/x.jsonl' (is 'snapshots/{OLD}/x.jsonl')" in manifest.files_text()


@pytest.mark.parametrize("below", ["", "snapshots"])
def test_two_revisions_that_differ_are_refused_by_name(below: str, tmp_path: Path) -> None:
    cached(tmp_path, old_x="text", old_y="before", new_x="text", new_y="after")
    text = refusal(tmp_path / below)
    assert "2 revisions" in text
    assert [names_of(way) for way in ways(text)] == [["x.jsonl", "y.jsonl"]] * 2


# ---- packed copies


@pytest.mark.parametrize(
    "names",
    [["b/part.jsonl", "b/part.jsonl.gz"], ["part.csv.ZST", "part.csv"], ["x.jsonl", "a.txt.gz", "a.txt.xz", "b.jsonl"]],
)
def test_a_file_beside_a_packed_copy_of_it_is_refused(names: list[str], tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="one file, packed in two ways or packed and plain") as refused:
        refuse_copies("s", tmp_path, names)
    assert f"{tmp_path}/**/*.{names[1].rpartition('.')[2]}" in str(refused.value)


def test_many_copies_are_counted(tmp_path: Path) -> None:
    names = [f"{n}.jsonl{packed}" for n in range(1200) for packed in ("", ".gz")]
    with pytest.raises(SourceError, match=r"'0.jsonl' and '0.jsonl.gz'.* There are 1,199 more such pairs\."):
        refuse_copies("s", tmp_path, names)


def test_names_that_are_no_copies_of_each_other_pass(tmp_path: Path) -> None:
    refuse_copies("s", tmp_path, ["a/part.jsonl", "b/part.jsonl.gz", "part.jsonl.gz", "part-1.jsonl.zst", "part.txt"])
