"""Configurations and splits of a repository: what ``datasets`` itself would load."""

from __future__ import annotations

from typing import Any

import pytest

from torchtitan_zephon import SourceError
from torchtitan_zephon.read.stores.configs import chosen_files, configs_of

NAMES = ["README.md", ".gitattributes", "LICENSE", "a/train-1.parquet", "a/test-1.parquet", "b/x.jsonl", "b/y.jsonl"]


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["data/train-00000-of-00002.parquet", "data/dev-00000-of-00001-ab12.parquet", "x.parquet"], {
            "train": ["data/train-00000-of-00002.parquet"], "dev": ["data/dev-00000-of-00001-ab12.parquet"],
        }),
        (["training/1.jsonl", "val/1.jsonl", "eval_2/x/1.jsonl", "other/1.jsonl"], {
            "train": ["training/1.jsonl"], "validation": ["val/1.jsonl"], "test": ["eval_2/x/1.jsonl"],
        }),
        (["my-train.jsonl", "my-dev.jsonl", "test.jsonl"], {
            "train": ["my-train.jsonl"], "validation": ["my-dev.jsonl"], "test": ["test.jsonl"],
        }),
        (["trainer.jsonl", "contest.jsonl", "README.md", ".x"], {"train": ["trainer.jsonl", "contest.jsonl"]}),
        (["README.md"], {}),
    ],
)  # fmt: skip
def test_without_a_word_in_the_card_the_names_decide(names: list[str], splits: dict[str, list[str]]) -> None:
    assert configs_of({}, names) == {"default": splits}


@pytest.mark.parametrize(
    ("table", "splits"),
    [
        ({"data_files": "b/*.jsonl"}, {"train": ["b/x.jsonl", "b/y.jsonl"]}),
        ({"data_files": ["b/x.jsonl", "a/*"]}, {"train": ["a/train-1.parquet", "a/test-1.parquet", "b/x.jsonl"]}),
        ({"data_files": [{"split": "dev", "path": ["**/y*"]}]}, {"dev": ["b/y.jsonl"]}),
        ({"data_files": {"train": "**"}}, {"train": NAMES[3:]}),
        ({"data_dir": "a"}, {"train": ["a/train-1.parquet"], "test": ["a/test-1.parquet"]}),
        ({"data_dir": "b", "data_files": "x*"}, {"train": ["b/x.jsonl"]}),
    ],
)
def test_the_card_is_read_in_all_its_forms(table: dict[str, Any], splits: dict[str, list[str]]) -> None:
    assert configs_of({"configs": [{"config_name": "c", **table}]}, NAMES) == {"c": splits}


@pytest.mark.parametrize("names", [["data/train-00000-of-00001.parquet"], ["my-train.jsonl", "dev.jsonl"],
                                   ["validation/x.jsonl", "train_x/y.jsonl"], ["x.jsonl"]])  # fmt: skip
def test_the_rule_for_names_is_that_of_datasets(names: list[str], tmp_path: Any) -> None:
    data_files = pytest.importorskip("datasets.data_files")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    patterns = data_files.get_data_patterns(str(tmp_path))
    theirs = data_files.DataFilesDict.from_patterns(patterns, base_path=str(tmp_path))
    expected = {split: sorted(path.removeprefix(f"{tmp_path}/") for path in paths) for split, paths in theirs.items()}
    assert {split: sorted(files) for split, files in configs_of({}, names)["default"].items()} == expected


def test_a_split_whose_files_are_not_there_is_refused() -> None:
    card = {"configs": [{"config_name": "c", "data_files": "none/*"}]}
    with pytest.raises(SourceError, match="the repository has none of them"):
        chosen_files("hf://a/b", card, NAMES, ["c", "train"])
