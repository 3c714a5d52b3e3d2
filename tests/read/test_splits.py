"""Splits side by side: one is stated, or the source is refused with the ways to choose."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.scenarios import tokenizer_folder, write_jsonl, write_parquet
from torchtitan_zephon import Dataset, Pipeline, SourceError, StaticMixtureWorkSource
from torchtitan_zephon.config import Recipe
from torchtitan_zephon.program import Program
from torchtitan_zephon.read.files import Manifest, list_source
from torchtitan_zephon.read.settings import SourceConfig
from torchtitan_zephon.read.splits import MOST_OTHER_NAMES
from torchtitan_zephon.settings import from_table


def made(root: Path, *names: str) -> Path:
    """The files ``names`` below ``root``, each with another text."""
    for name in names:
        write = write_parquet if name.endswith(".parquet") else write_jsonl
        write(root / name, [f"the text of {name}"])
    return root


def listed(path: Path | str, split: str = "") -> Manifest:
    return list_source("s", SourceConfig(path=str(path), split=split))


def names_of(path: Path | str, split: str = "") -> list[str]:
    return [shard.name for shard in listed(path, split).shards]


def refusal(path: Path | str, split: str = "") -> str:
    with pytest.raises(SourceError) as refused:
        listed(path, split)
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


# ---- a split that is stated


@pytest.mark.parametrize(("train", "other"), SPLITS)
def test_the_split_that_is_stated_is_read_and_the_other_is_left_out_and_said(
    train: list[str], other: list[str], tmp_path: Path
) -> None:
    made(tmp_path, *train, *other)
    assert 'split = "' in refusal(tmp_path)
    word = next(line for line in refusal(tmp_path).splitlines() if 'split = "' in line).split('"')[1]
    manifest = listed(tmp_path, word)
    assert [shard.name for shard in manifest.shards] == sorted(train)
    assert f"left out: {len(other)} of no split that is asked for: {other[0]!r}" in manifest.files_text()
    assert names_of(tmp_path, "train") == sorted(train)


HUB = [
    "README.md",
    "data/test-00000-of-00001.parquet",
    "data/train-00000-of-00002.parquet",
    "data/train-00001-of-00002.parquet",
    "data/valid-00000-of-00001.parquet",
]


@pytest.mark.parametrize("split", ["validation", "valid", "val", "dev"])
def test_a_split_is_found_by_any_word_that_the_hub_takes_for_it(split: str, tmp_path: Path) -> None:
    assert names_of(made(tmp_path, *HUB), split) == ["data/valid-00000-of-00001.parquet"]


def test_just_the_word_that_is_stated_comes_first(tmp_path: Path) -> None:
    made(tmp_path, "train/0.jsonl", "dev/0.jsonl", "val/0.jsonl")
    assert names_of(tmp_path, "dev") == ["dev/0.jsonl"]
    assert names_of(tmp_path, "val") == ["val/0.jsonl"]
    assert names_of(tmp_path, "validation") == ["dev/0.jsonl", "val/0.jsonl"]


def test_a_split_of_several_words_and_one_that_is_no_usual_word_are_found(tmp_path: Path) -> None:
    made(tmp_path, *(f"data/{of}_{kind}-00000-of-00001.parquet" for of in ("train", "test") for kind in ("sft", "gen")))
    made(tmp_path, "data/unsupervised-00000-of-00001.parquet", "data/auxiliary_train-00000-of-00001.parquet")
    assert names_of(tmp_path, "train_sft") == ["data/train_sft-00000-of-00001.parquet"]
    assert names_of(tmp_path, "test") == [f"data/test_{kind}-00000-of-00001.parquet" for kind in ("gen", "sft")]
    assert names_of(tmp_path, "unsupervised") == ["data/unsupervised-00000-of-00001.parquet"]
    assert names_of(tmp_path, "auxiliary_train") == ["data/auxiliary_train-00000-of-00001.parquet"]


def test_the_innermost_name_says_the_split(tmp_path: Path) -> None:
    made(tmp_path, "test-suite/train.jsonl", "test-suite/dev.jsonl", "more/train/a/b.jsonl", "more/train/dev.jsonl")
    assert names_of(made(tmp_path, "notes.jsonl"), "train") == ["more/train/a/b.jsonl", "test-suite/train.jsonl"]


def test_a_split_that_is_not_there_lists_those_that_are(tmp_path: Path) -> None:
    made(tmp_path, *HUB[:-1])
    text = refusal(tmp_path, "validation")
    assert "split = 'validation': of 3 files" in text
    assert "Splits there: 'test' (such as 'data/test-00000-of-00001.parquet'), 'train' (such as" in text
    made(tmp_path / "one", "a.jsonl", "b.jsonl")
    for split in ("train", "train[:10%]", "00", "-"):
        text = refusal(tmp_path / "one", split)
        assert f"split = {split!r}: of 2 files" in text
        assert "none, so leave split out to read all of them" in text


def test_what_one_split_has_of_both_kinds_is_refused_still(tmp_path: Path) -> None:
    text = refusal(made(tmp_path, "train/train-0.jsonl", "test/train-0.jsonl"), "train")
    assert "holds both 'train/' and 'test/'" in text
    assert 'split = "' not in text
    assert [names_of(way) for way in ways(text)] == [["train-0.jsonl"]] * 2


def test_a_split_is_stated_in_a_table_and_in_python_and_only_what_it_reads_is_in_the_recipe(tmp_path: Path) -> None:
    made(tmp_path, "train/0.jsonl", "test/0.jsonl")
    table = {"sources": {"s": {"path": str(tmp_path), "split": "train"}}}
    assert from_table(Recipe, table, "recipe").sources["s"].split == "train"

    def program(split: str) -> Program:
        data = Dataset.from_path("s", str(tmp_path), split=split)
        source = StaticMixtureWorkSource(datasets=[data], mixture={"s": 1.0})
        pipeline = Pipeline(source).tokenize(tokenizer_id=str(tokenizer_folder())).pack_flat(max_length=32)
        return pipeline.batch(microbatch_size=1).stream.program

    train = program("train")
    assert "'test/0.jsonl'" in train.explain()
    assert list(train.identity["sources"]["s"]["shards"]) == ["train/0.jsonl"]
    (tmp_path / "test" / "0.jsonl").unlink()
    assert program("").identity == train.identity


# ---- a folder as people have it

ABOUT = [
    *("README.txt", "README-zh.txt", "LICENSE", "LICENSE.txt", "license_CC-BY.txt", "NOTICE.txt", "requirements.txt"),
    *("dataset_info.json", "dataset_dict.json", "dataset_infos.json", "state.json", "checksums.txt", "SHA256SUMS"),
    *("train.jsonl.md5", ".gitattributes", "_SUCCESS", ".cache/huggingface/download/train.jsonl.metadata"),
    *("train.jsonl.lock", "sha256sums.txt", "cache-0123456789abcdef.arrow"),
]  # fmt: skip


@pytest.mark.parametrize("path", ["", "/**"])
def test_what_lies_beside_the_data_is_left_out_and_said(path: str, tmp_path: Path) -> None:
    made(tmp_path, "train.jsonl")
    for name in ABOUT:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    manifest = listed(f"{tmp_path}{path}")
    assert [shard.name for shard in manifest.shards] == ["train.jsonl"]
    said = {left.name for left in manifest.left_out}
    assert said == {".cache/" if name.startswith(".cache/") else name for name in ABOUT}


def test_a_glob_of_json_files_takes_those_that_are_data_and_a_file_named_by_itself_is_read(tmp_path: Path) -> None:
    for name in ("state.json", "dataset_info.json", "rows.json", "states.json"):
        write_jsonl(tmp_path / name, ["no state at all"])
    assert names_of(f"{tmp_path}/*.json") == ["rows.json", "states.json"]
    assert (
        "2 about the data, by the name: 'dataset_info.json', 'state.json'" in listed(f"{tmp_path}/*.json").files_text()
    )
    assert names_of(tmp_path / "state.json") == ["state.json"]


def test_names_that_only_begin_like_those_about_the_data_are_read(tmp_path: Path) -> None:
    names = ["changelog.jsonl", "license.jsonl", "readme.jsonl", "state.jsonl"]
    assert names_of(made(tmp_path, *names)) == names


def test_a_data_set_in_a_hub_cache_is_read_by_its_split_through_the_links(tmp_path: Path) -> None:
    root = tmp_path / "datasets--owner--name"
    snapshot = root / "snapshots" / ("0123456789" * 4)
    for number, name in enumerate(HUB):
        blob = root / "blobs" / f"{number:064x}"
        write_parquet(blob, [f"the text of {name}"])
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).symlink_to(Path("../" * (name.count("/") + 2) + "blobs") / blob.name)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("0123456789" * 4)
    for path, prefix in ((root, f"snapshots/{snapshot.name}/"), (snapshot, "")):
        assert names_of(path, "train") == [f"{prefix}{name}" for name in HUB[2:4]]
    said = {left.name for left in listed(root, "train").left_out}
    assert {"refs/main", f"blobs/{0:064x}", f"snapshots/{snapshot.name}/README.md"} <= said


def test_packed_files_have_splits_too_and_are_no_copies_of_their_plain_twins(tmp_path: Path) -> None:
    made(tmp_path, "train.jsonl", "test.jsonl")
    for name in ("train.jsonl", "test.jsonl"):
        packed = tmp_path / "packed" / f"{name}.gz"
        packed.parent.mkdir(exist_ok=True)
        packed.write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    assert [names_of(way) for way in ways(refusal(tmp_path / "packed"))] == [["train.jsonl.gz"], ["test.jsonl.gz"]]
    assert names_of(tmp_path / "packed", "train") == ["train.jsonl.gz"]
    (tmp_path / "packed" / "train.jsonl").write_bytes((tmp_path / "train.jsonl").read_bytes())
    assert "holds both 'train.jsonl' and 'train.jsonl.gz'" in refusal(tmp_path / "packed", "train")
