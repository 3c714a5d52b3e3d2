"""A path as a root and a pattern: Python's globs, less what is hidden."""

from __future__ import annotations

import glob
import itertools
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tests.scenarios import write_jsonl
from torchtitan_zephon import SourceError
from torchtitan_zephon.read.files import list_source, place_of
from torchtitan_zephon.read.listing import list_files
from torchtitan_zephon.read.settings import SourceConfig

FOLDERS = ["", "a/", "a/b/", "a/b/a/", "b/", "b/ab/", "ab/", "[a]/"]
FILES = ["a.jsonl", "b.jsonl", "ab.jsonl", "[a].jsonl", "a.parquet"]
PARTS = ["a", "b", "*", "**", "a*", "?", "[ab]", "[!a]", "*b", "[[]a]", "a**b", "***"]
LAST = ["*", "**", "*.jsonl", "a.jsonl", "?.jsonl", "[!a]*.jsonl", "[[]a].jsonl", "a*"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every file in every folder; those in other letters are not read, but a glob may match them."""
    root = tmp_path_factory.mktemp("tree")
    for folder, file in itertools.product(FOLDERS, FILES):
        write_jsonl(root / folder / file, [folder + file])
    return root


@given(parts=st.lists(st.sampled_from(PARTS), max_size=3), last=st.sampled_from(LAST))
def test_a_glob_takes_what_pythons_takes(tree: Path, parts: list[str], last: str) -> None:
    pattern = "/".join([str(tree), *parts, last])
    if (tree / "/".join([*parts, last])).exists():
        return
    wanted = {Path(path) for path in glob.glob(pattern, recursive=True) if Path(path).is_file()}
    try:
        store, below = place_of("s", pattern)
        listing = list_files("s", pattern, store, below)
    except SourceError:
        assert not wanted
    else:
        others = {store.root / left.name for left in listing.left_out if not left.name.endswith("/")}
        assert {store.root / file.name for file in listing.files} | others == wanted


def test_a_folder_that_is_named_like_a_pattern_is_that_folder(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "run[1]" / "x.jsonl", ["literal"])
    write_jsonl(tmp_path / "run1" / "y.jsonl", ["matched"])
    for path in ("run[1]", "run[1]/*", "run[1]/*.jsonl", "run[1]/x.jsonl"):
        assert [shard.name for shard in list_source("s", SourceConfig(path=f"{tmp_path}/{path}")).shards] == ["x.jsonl"]
    assert [shard.name for shard in list_source("s", SourceConfig(path=f"{tmp_path}/run[0-9]/*")).shards] == [
        "run1/y.jsonl"
    ]


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("no/such", "; '{here}' is there, and has no 'no'."),
        ("a/no", "this is relative to the working folder, '{here}'; '{here}/a' is there, and has no 'no'."),
        ("a/no/*.jsonl", "there is no file at 'a/no/*.jsonl', for want of a folder 'a/no'; this is relative"),
        ("a/x.jsonl/*", "for want of a folder 'a/x.jsonl'"),
        ("{here}/a/no", "there is no file or folder '{here}/a/no'; '{here}/a' is there, and has no 'no'."),
    ],
)
def test_a_path_that_is_not_there_says_where_it_was_looked_for_and_what_is_missing(
    path: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "a" / "x.jsonl", ["x"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError) as refused:
        list_source("s", SourceConfig(path=path.format(here=tmp_path)))
    assert problem.format(here=tmp_path) in str(refused.value)
