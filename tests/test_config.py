"""Settings: every key is accepted in its range and refused by name, value and way out everywhere else."""

from __future__ import annotations

import dataclasses
import math
import pickle
import re
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.scenarios import small_pipeline, write_jsonl
from torchtitan_zephon import ConfigError, Recipe, RunSettings, SourceConfig, load_recipe
from torchtitan_zephon.errors import Problems, nearest
from torchtitan_zephon.settings import coerce, from_table, read_table
from torchtitan_zephon.toml_files import load_toml

# A value of each key that is not its default; a key without one fails the tests below.
OTHER: dict[type, dict[str, Any]] = {
    Recipe: {
        "sources": {"wiki": {"path": "a.jsonl"}},
        "lanes": 8,
        "seed": 7,
        "pack": "first_fit",
        "label_shift": "sequence",
        "shuffle_chunks": False,
        "shuffle_records": False,
        "shuffle_buffer_sequences": 0,
        "shuffle_seed": 3,
        "flush_every_sequences": 10,
        "shares": "estimated",
        "chunk_bytes": 4096,
        "estimate_bytes": 1000,
        "repeat": False,
        "add_bos": False,
        "add_eos": False,
        "special_tokens_in_text": "parse",
        "on_bad_record": "skip",
        "max_bad_fraction": 0.5,
        "max_record_bytes": 1000,
    },
    RunSettings: {
        "workers": 5,
        "runner": "process",
        "prefetch_bytes": 1000,
        "shared_lanes": True,
        "tokenizer_backend": "hf",
        "allow_changes": ["global_batch_size"],
        "ledger": "out",
        "storage": {"s3": {"anon": True}},
        "cache_folder": "/cache",
        "cache_bytes": 2**30,
    },
    SourceConfig: {
        "path": "a.jsonl",
        "weight": 2.5,
        "field": "content",
        "template": "{title}",
        "delimiter": ";",
        "format": "tokens",
        "record": "file",
        "dtype": "uint16",
        "document_end": 50256,
        "split": "dev",
    },
}
KEYS = [(cls, field.name) for cls in OTHER for field in dataclasses.fields(cls)]
RANGES = [
    (cls, f.name, f.metadata["low"], f.metadata["high"])
    for cls in OTHER
    for f in dataclasses.fields(cls)
    if f.metadata["low"] is not None
]


def _name(value: object) -> str:
    return getattr(value, "__name__", str(value))


each_key = pytest.mark.parametrize(("cls", "key"), KEYS, ids=_name)
each_range = pytest.mark.parametrize(("cls", "key", "low", "high"), RANGES, ids=_name)


@each_key
def test_every_key_is_taken_from_a_table(cls: type, key: str) -> None:
    value = OTHER[cls][key]
    default = getattr(cls(), key)
    assert value != default
    taken = getattr(from_table(cls, {key: value}, "job"), key)
    assert taken == ({"wiki": SourceConfig(path="a.jsonl")} if key == "sources" else value)


@each_key
def test_a_misspelt_key_is_refused_with_the_right_one(cls: type, key: str) -> None:
    misspelt = key[:-1] + "_" + key[-1]
    with pytest.raises(ConfigError, match=rf"^job\.{misspelt}: no such key\. Did you mean '{key}'\?"):
        from_table(cls, {misspelt: OTHER[cls][key]}, "job")


def test_a_key_like_no_other_is_refused_with_all_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no such key\. Valid: delimiter, .*\bweight\."):
        from_table(SourceConfig, {"qqq": 1}, "job")


def wrong_values(cls: type, key: str) -> list[Any]:
    value = OTHER[cls][key]
    kinds: dict[type, list[Any]] = {
        bool: [1, "true", None],
        int: ["8", 8.0, True, [8], {}],
        float: ["1", True, None, []],
        str: [1, True, ["a"], {}],
        dict: [1, "wiki", ["wiki"]],
        list: [1, "global_batch_size", None, {"global_batch_size": True}],
    }
    return [wrong for wrong in kinds[type(value)] if key != "field" or wrong != ["a"]]  # which may be a list of names


@pytest.mark.parametrize(
    ("cls", "key", "wrong"),
    [(cls, key, wrong) for cls, key in KEYS for wrong in wrong_values(cls, key)],
    ids=lambda v: getattr(v, "__name__", repr(v)),
)
def test_a_value_of_the_wrong_type_is_refused_by_key_value_and_expected_type(cls: type, key: str, wrong: Any) -> None:
    with pytest.raises(ConfigError) as refusal:
        from_table(cls, {key: wrong}, "job")
    text = str(refusal.value)
    assert text.startswith(f"job.{key} = {wrong!r}")
    assert "expected " in text or "not one of '" in text


@each_range
def test_a_value_at_either_end_of_its_range_is_accepted(cls: type, key: str, low: Any, high: Any) -> None:
    for value in (low, high):
        if value is not None:
            assert getattr(cls(**{key: value}), key) == value


@each_range
def test_a_value_outside_its_range_is_refused_by_key_value_and_range(cls: type, key: str, low: Any, high: Any) -> None:
    allowed = f"{low} or more" if high is None else f"{low} to {high}"
    of_kind = type(getattr(cls(), key))
    for value in (low - 1, -1, -(10**9), *([] if high is None else [high + 1, 10**30])):
        shown = re.escape(repr(float(value) if of_kind is float else value))
        with pytest.raises(ConfigError, match=rf"{key} = {shown} is out of range; allowed: {allowed}\."):
            from_table(cls, {key: value}, "job")


@pytest.mark.parametrize("value", [0, -1, 10**9])
@pytest.mark.parametrize(("cls", "key"), [(Recipe, "lanes"), (RunSettings, "workers")], ids=_name)
def test_no_lanes_or_workers_and_a_billion_of_them_are_refused(cls: type, key: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"{key} = {value} is out of range"):
        cls(**{key: value})


@pytest.mark.parametrize("value", [0, -1, 1])
def test_a_sequence_length_under_two_is_refused(value: int, tmp_path: Path) -> None:
    pipeline = small_pipeline({"a": write_jsonl(tmp_path / "a.jsonl", ["one"])}, seq_len=value)
    with pytest.raises(ConfigError, match=f"seq_len = {value} must be 2 or more"):
        pipeline.explain()


CHOICES = {
    "pack": "'wrap', 'first_fit', 'rows'",
    "label_shift": "'document', 'sequence'",
    "special_tokens_in_text": "'plain', 'parse'",
}


@pytest.mark.parametrize("key", CHOICES)
def test_a_choice_that_is_none_is_refused_with_all_there_are(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"job\.{key} = 'warp': not one of {CHOICES[key]}\."):
        from_table(Recipe, {key: "warp"}, "job")


@pytest.mark.parametrize("names", [["lanes"], ["global_batch_size", "seed"], ["global_batch_sizes"], [1], [["lanes"]]])
def test_a_change_that_cannot_be_allowed_is_refused_with_those_that_can(names: list[Any]) -> None:
    place = rf"allow_changes\[{len(names) - 1}\] = {re.escape(repr(names[-1]))}: not one of 'global_batch_size', "
    with pytest.raises(ConfigError, match=rf"^job\.{place}"):
        from_table(RunSettings, {"allow_changes": names}, "job")
    with pytest.raises(ConfigError, match=place):
        RunSettings(allow_changes=names)


def test_labels_across_documents_that_first_fit_put_side_by_side_are_refused(tmp_path: Path) -> None:
    clash = {"pack": "first_fit", "label_shift": "sequence"}
    pipeline = small_pipeline({"a": write_jsonl(tmp_path / "a.jsonl", ["one"])})
    for make in (
        lambda: Recipe(**clash),
        lambda: from_table(Recipe, clash, "job"),
        lambda: pipeline.pack_flat(max_length=32, algorithm="first_fit", label_shift="sequence"),
    ):
        with pytest.raises(ConfigError, match=r"use label_shift = 'document', or pack = 'wrap'"):
            make()


@pytest.mark.parametrize(
    "wrong",
    [
        {"pack": "warp"},
        {"label_shift": "row"},
        {"special_tokens_in_text": "pars"},
        {"lanes": "8"},
        {"lanes": 2.5},
        {"repeat": "no"},
    ],
    ids=str,
)
def test_a_recipe_made_in_python_is_as_strict_as_one_from_a_table(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Recipe(**wrong)


@pytest.mark.parametrize("weight", [0, 0.0, -1, math.inf, -math.inf, math.nan])
def test_a_weight_must_be_a_finite_number_above_zero(weight: float) -> None:
    with pytest.raises(ConfigError, match=rf"the weight of source 'wiki' is {float(weight)!r}; .*above 0"):
        from_table(Recipe, {"sources": {"wiki": {"path": "a", "weight": weight}}}, "job")


def test_an_error_inside_a_source_names_the_whole_path_to_it() -> None:
    with pytest.raises(ConfigError, match=r"^job\.sources\.wiki\.wieght: no such key\. Did you mean 'weight'\?"):
        from_table(Recipe, {"sources": {"wiki": {"wieght": 1}}}, "job")
    with pytest.raises(ConfigError, match=r"^job\.sources\.wiki = 'a\.jsonl' is a str; expected SourceConfig\."):
        from_table(Recipe, {"sources": {"wiki": "a.jsonl"}}, "job")


@pytest.mark.parametrize(
    ("value", "hint", "result"),
    [
        (1, float, 1.0),
        (None, int | None, None),
        (3, int | None, 3),
        ("a", int | str, "a"),
        ([1, 2], list[int], [1, 2]),
        ([1, "a"], list, [1, "a"]),
        ({"a": 1}, dict[str, float], {"a": 1.0}),
        ("x", Literal["x", "y"], "x"),
        (object, Any, object),
    ],
    ids=str,
)
def test_a_value_that_fits_its_type_is_taken(value: Any, hint: Any, result: Any) -> None:
    assert coerce(value, hint, "job.key") == result


def test_a_wrong_item_of_a_list_is_refused_by_its_place() -> None:
    with pytest.raises(ConfigError, match=r"^job\.key\[1\] = 'a' is a str; expected int\."):
        coerce([1, "a"], list[int], "job.key")


def test_settings_are_frozen_and_made_by_name() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().lanes = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        Recipe({})  # type: ignore[misc]
    assert Recipe().sources is not Recipe().sources


def test_every_wrong_key_of_a_table_is_told_at_once() -> None:
    table = {
        "sed": 3,
        "lanes": 0,
        "pack": "warp",
        "repeat": "no",
        "sources": {"a": {"path": 3, "wieght": 1}, "b": {"path": "b", "weight": -1}, "c": "c.jsonl"},
    }
    with pytest.raises(ConfigError) as refusal:
        from_table(Recipe, table, "job")
    assert refusal.value.args == (
        f"job.sed: no such key. {nearest('sed', [f.name for f in dataclasses.fields(Recipe)])}",
        "job.lanes = 0 is out of range; allowed: 1 to 65536.",
        "job.pack = 'warp': not one of 'wrap', 'first_fit', 'rows'. Did you mean 'wrap'?",
        "job.repeat = 'no' is a str; expected bool.",
        "job.sources.a.path = 3 is a int; expected str.",
        "job.sources.a.wieght: no such key. Did you mean 'weight'?",
        "job.sources.c = 'c.jsonl' is a str; expected SourceConfig.",
        refusal.value.args[-1],
    )
    assert "the weight of source 'b' is -1.0" in refusal.value.args[-1]
    text = str(refusal.value)
    assert text.startswith("there are 8 problems.\n1. job.sed: ") and "\n8. mixture: " in text
    assert str(pickle.loads(pickle.dumps(refusal.value))) == text


def test_every_wrong_item_of_a_list_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as refusal:
        coerce(["a", 1, None], list[int], "job.key")
    assert [text.split(" = ")[0] for text in refusal.value.args] == ["job.key[0]", "job.key[2]"]


def test_several_errors_of_a_recipe_made_in_python_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as refusal:
        Recipe(lanes=0, seed=-1, pack="warp")  # type: ignore[arg-type]
    assert len(refusal.value.args) == 3


@pytest.mark.parametrize(
    ("table", "wrong", "taken"),
    [
        ({"pack": "first_fit", "label_shift": "sequence", "lanes": 4}, ["puts unrelated"], {"lanes": 4}),
        ({"sed": 3, "lanes": 4, "seed": "x"}, ["job.sed", "job.seed"], {"lanes": 4, "seed": 0}),
        ({"sources": {"a": {"path": "a", "fild": "b"}}}, ["fild"], {"sources": {"a": SourceConfig(path="a")}}),
        ({"sources": {"a": {"path": "a", "weight": 0}}, "lanes": 4}, ["is 0.0"], {"lanes": 4}),
        ({"lanes": 4}, [], {"lanes": 4}),
    ],
)
def test_what_is_wrong_can_be_noted_and_the_rest_be_looked_at(
    table: dict[str, Any], wrong: list[str], taken: dict[str, Any]
) -> None:
    problems = Problems()
    recipe = read_table(Recipe, table, "job", problems)
    assert {key: getattr(recipe, key) for key in taken} == taken
    assert len(problems.texts) == len(wrong)
    assert all(part in text for part, text in zip(wrong, problems.texts, strict=True))


def test_a_problem_is_noted_once_and_other_errors_pass_through() -> None:
    problems = Problems()
    for text in ("first", "second", "first"):
        with problems:
            raise ConfigError(text)
    with pytest.raises(ZeroDivisionError), problems:
        _ = 1 // 0
    assert problems.texts == ["first", "second"] and problems.note("second") == 2
    Problems().refuse()


WEIGHTED = {"a": {"path": "a", "weight": 3}, "b": {"path": "b"}, "c": {"path": "c", "weight": 1.5}, "d": {"path": "d"}}


def test_a_weight_that_is_missing_where_others_are_given_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        from_table(Recipe, {"sources": WEIGHTED}, "job")
    text = str(refusal.value)
    assert "job.sources: there is no weight for 'b', 'd', and other sources have one (a = 3, c = 1.5)" in text
    assert "Give each source a weight; or give none, and all shares are equal." in text
    (tmp_path / "r.toml").write_text("[sources.a]\npath = 'a'\nweight = 3\n[sources.b]\npath = 'b'\n", "utf-8")
    with pytest.raises(ConfigError, match=r"no weight for 'b', and other sources have one \(a = 3\)"):
        load_recipe(tmp_path / "r.toml")
    none = {name: {"path": name} for name in "abc"}
    assert {s.weight for s in from_table(Recipe, {"sources": none}, "job").sources.values()} == {1.0}


@each_key
def test_every_key_has_a_documentation_sentence(cls: type, key: str) -> None:
    field = next(f for f in dataclasses.fields(cls) if f.name == key)
    assert field.metadata["doc"].endswith(".")


def test_the_paths_in_a_recipe_file_are_relative_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    file = tmp_path / "configs" / "r.toml"
    file.parent.mkdir()
    file.write_text(
        'lanes = 4\n[sources.a]\npath = "../data/a"\nweight = 1\n[sources.b]\npath = "/data/b"\nweight = 3\n'
        '[sources.c]\npath = "hf://c"\nweight = 1\n[sources.d]\npath = "~/d"\nweight = 1\n',
        "utf-8",
    )
    recipe = load_recipe(file)
    assert recipe.lanes == 4
    assert {name: source.path for name, source in recipe.sources.items()} == {
        "a": str(file.parent / "../data/a"),
        "b": "/data/b",
        "c": "hf://c",
        "d": "/somewhere/d",
    }
    assert recipe.sources["b"].weight == 3.0


def test_a_job_in_place_of_a_recipe_is_answered_with_the_commands_for_a_job(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("[zephon]\nlanes = 4\n", "utf-8")
    with pytest.raises(
        ConfigError, match=r"is a job, not a recipe.*explain .*job\.toml, or check .*--job\.config_file"
    ):
        load_recipe(tmp_path / "job.toml")


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"lanes = ", "not valid TOML"), (b'a = "\xff"', "not valid TOML"), (b"a = 1\na = 2", "not valid TOML")],
    ids=["cut", "not utf-8", "twice"],
)
def test_a_damaged_toml_file_is_refused_by_name(content: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"r\.toml' is {problem}"):
        load_toml(tmp_path / "r.toml")


def test_a_toml_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such TOML file: .*nowhere\.toml"):
        load_toml(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_toml(tmp_path)


def test_the_nearest_name_is_offered_or_all_of_them() -> None:
    assert nearest("lane", ["lanes", "seed"]) == "Did you mean 'lanes'?"
    assert nearest("zzz", ["seed", "lanes"]) == "Valid: lanes, seed."
