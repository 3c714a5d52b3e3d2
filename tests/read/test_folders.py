"""Folders of which only a part is meant: splits side by side, tables with a log, revisions in a hub cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios import write_jsonl, write_parquet
from torchtitan_zephon import SourceError
from torchtitan_zephon.read.files import list_source
from torchtitan_zephon.read.folders import MOST_OTHER_NAMES
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


# ---- training and validation side by side

SPLITS = [
    pytest.param(["train/0.jsonl"], ["validation/0.jsonl"], id="folders"),
    pytest.param(["train/0.jsonl"], ["valid/0.jsonl"], id="valid"),
    pytest.param(["train/0.jsonl"], ["val/0.jsonl"], id="val"),
    pytest.param(["train/0.jsonl"], ["dev/0.jsonl"], id="dev"),
    pytest.param(["train/0.jsonl"], ["test/0.jsonl"], id="test"),
    pytest.param(["Training/0.jsonl"], ["Eval/0.jsonl"], id="capitals"),
    pytest.param(["split=train/0.jsonl"], ["split=test/0.jsonl"], id="Hive"),
    pytest.param(["train-clean-100/0.jsonl"], ["dev-clean/0.jsonl"], id="LibriSpeech"),
    pytest.param(["train.jsonl"], ["valid.jsonl"], id="files"),
    pytest.param(["train_spider.jsonl"], ["dev.jsonl"], id="Spider"),
    pytest.param(["wiki-103.train.jsonl"], ["wiki-103.valid.jsonl"], id="after the name"),
    pytest.param(["c4-train.00000-of-01024.jsonl"], ["c4-validation.00000-of-00008.jsonl"], id="C4"),
    pytest.param(
        ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"],
        ["data/test-00000-of-00001.parquet"],
        id="hub",
    ),
    pytest.param(
        ["train-00000-of-00001-b42a775f407cee45.parquet"],
        ["test-00000-of-00001-9e1b9a6c0d2f4a11.parquet"],
        id="old hub",
    ),
    pytest.param(["train.jsonl"], ["test/0.jsonl"], id="file and folder"),
]


@pytest.mark.parametrize(("train", "other"), SPLITS)
@pytest.mark.parametrize("glob", ["", "/**", "/**/*"])
def test_training_beside_validation_data_is_refused_and_the_ways_out_work(
    train: list[str], other: list[str], glob: str, tmp_path: Path
) -> None:
    made(tmp_path, *train, *other, "README.md", "more/of/it/" + Path(train[0]).with_stem("rest").name)
    text = refusal(f"{tmp_path}{glob}")
    assert "holds both" in text
    assert "meant for validation or tests" in text
    to_train, to_other = ways(text)
    assert [Path(name).name for name in names_of(to_train)] == [Path(name).name for name in train]
    assert [Path(name).name for name in names_of(to_other)] == [Path(name).name for name in other]


def test_all_splits_of_a_folder_are_offered(tmp_path: Path) -> None:
    made(tmp_path, *(f"{split}/0.jsonl" for split in ("test", "train", "validation")))
    assert ways(refusal(tmp_path)) == [f"{tmp_path}/{split}" for split in ("train", "test", "validation")]


def test_splits_of_many_subsets_are_offered_for_all_at_once(tmp_path: Path) -> None:
    made(tmp_path, *(f"{subset}/{split}/0.jsonl" for subset in ("de", "en", "fr") for split in ("train", "test")))
    text = refusal(tmp_path)
    assert f"{str(tmp_path / 'de')!r} (and 2 folders more) holds both 'train/' and 'test/'" in text
    assert [names_of(way) for way in ways(text)] == [
        [f"{subset}/{split}/0.jsonl" for subset in ("de", "en", "fr")] for split in ("train", "test")
    ]


def test_a_way_out_below_a_folder_with_brackets_in_its_name_works(tmp_path: Path) -> None:
    made(tmp_path / "run[1]*", "train.jsonl", "test.jsonl")
    assert [names_of(way) for way in ways(refusal(tmp_path / "run[1]*"))] == [["train.jsonl"], ["test.jsonl"]]
    made(tmp_path / "files", "[en]-train.jsonl", "[en]-test.jsonl")
    assert [names_of(way) for way in ways(refusal(tmp_path / "files"))] == [["[en]-train.jsonl"], ["[en]-test.jsonl"]]


@pytest.mark.parametrize(
    "names",
    [
        ["train/0.jsonl", "train/1.jsonl"],
        ["train/0.jsonl", "more/0.jsonl"],
        ["train/a/0.jsonl", "books/test/0.jsonl"],  # no neighbours
        ["tests/0.jsonl", "train/0.jsonl"],  # of code
        ["trains.jsonl", "test.jsonl"],
        ["train.jsonl", "contest.jsonl", "latest.jsonl", "protest-01.jsonl", "developers.jsonl", "evaluated.jsonl"],
        ["train-test-split.jsonl", "test.jsonl"],  # says both
        ["unit-test-cases.jsonl", "code-train.jsonl"],
        ["test.jsonl", "part-0.jsonl"],
        ["validation/0.jsonl", "test/0.jsonl"],  # nothing to train on: an evaluation of both
    ],
    ids=" ".join,
)
def test_names_that_are_no_splits_of_one_set_are_read(names: list[str], tmp_path: Path) -> None:
    assert names_of(made(tmp_path, *names)) == sorted(names)


def test_one_split_is_read_by_its_folder_by_a_glob_and_by_a_file(tmp_path: Path) -> None:
    made(tmp_path, "train/0.jsonl", "test/0.jsonl", "train-0.jsonl", "test-0.jsonl")
    assert names_of(tmp_path / "train") == ["0.jsonl"]
    assert names_of(f"{tmp_path}/train/**") == ["0.jsonl"]
    assert names_of(f"{tmp_path}/train*") == ["train-0.jsonl"]
    assert names_of(tmp_path / "test-0.jsonl") == ["test-0.jsonl"]


@pytest.mark.parametrize("others", [MOST_OTHER_NAMES, MOST_OTHER_NAMES + 1])
def test_among_many_other_names_train_and_test_are_names_like_these(others: int, tmp_path: Path) -> None:
    letters = [f"{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(others)]
    made(tmp_path, "train/0.jsonl", "test/0.jsonl", *(f"repository-{name}/0.jsonl" for name in letters))
    if others > MOST_OTHER_NAMES:
        assert len(names_of(tmp_path)) == others + 2
    else:
        assert "holds both" in refusal(tmp_path)


def test_many_numbered_parts_are_one_other_name(tmp_path: Path) -> None:
    made(tmp_path, "train/0.jsonl", "test/0.jsonl", *(f"part-{n:05d}.jsonl" for n in range(40)))
    assert "holds both" in refusal(tmp_path)


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
