"""A job file and a command line become one ``Job``, or an error that names the key and the way out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchtitan_zephon import ConfigError
from torchtitan_zephon.errors import Problems
from torchtitan_zephon.titan.job import Job, literal, parse_job, parse_overrides, read_job

RECIPE = """
seed = 3
lanes = 8
[sources.news]
path = "data/news.jsonl"
weight = 0.7
[sources.wiki]
path = "/abs/wiki/*.parquet"
weight = 0.3
"""
JOB = """
[job]
dump_folder = "out"
[training]
global_batch_size = 16
[zephon]
recipe = "../configs/mix.toml"
workers = 3
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with ``configs/mix.toml`` and ``jobs/job.toml``, neither of them the working folder."""
    for name, text in {"configs/mix.toml": RECIPE, "jobs/job.toml": JOB}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text, "utf-8")
    return tmp_path


def parse(root: Path, *args: str, job: str = "", replace: bool = False) -> Job:
    """The job of ``root``, with ``job`` appended (or in place of it), and command-line ``args``."""
    path = root / "jobs" / "job.toml"
    if job:
        path.write_text(job if replace else path.read_text("utf-8") + job, "utf-8")
    return parse_job(["--job.config_file", str(path), *args], {})


def test_the_recipe_file_is_the_base_and_its_paths_are_relative_to_it(root: Path) -> None:
    job = parse(root)
    assert (job.recipe.seed, job.recipe.lanes, job.settings.workers) == (3, 8, 3)
    assert Path(job.recipe.sources["news"].path).resolve() == root / "configs/data/news.jsonl"
    assert job.recipe.sources["wiki"].path == "/abs/wiki/*.parquet"
    assert (job.device, job.validation, job.global_batch_size) == ("auto", None, 16)
    assert job.sections == {"job": {"dump_folder": "out"}, "training": {"global_batch_size": 16}}


def test_the_job_overrides_the_recipe_and_the_command_line_both(root: Path) -> None:
    stated = "lanes = 4\nseed = 4\n[zephon.sources.news]\nfield = 'body'\n"
    job = parse(root, "--zephon.sources.news.weight", "0.1", "--zephon.seed=5", job=stated)
    news = job.recipe.sources["news"]
    assert (job.recipe.lanes, job.recipe.seed) == (4, 5)
    assert (news.weight, news.field, Path(news.path).name) == (0.1, "body", "news.jsonl")
    assert list(job.recipe.sources) == ["news", "wiki"]


def test_a_path_is_relative_to_the_file_that_states_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "here").mkdir()
    monkeypatch.chdir(root / "here")
    stated = "[zephon.sources.job]\npath = 'j.jsonl'\nweight = 1\n[zephon.validation.sources.v]\npath = 'v.jsonl'\n"
    job = parse(root, "--zephon.sources.cli.path", "c.jsonl", "--zephon.sources.cli.weight", "1", job=stated)
    assert job.validation is not None
    assert Path(job.recipe.sources["job"].path) == root / "jobs/j.jsonl"
    assert Path(job.recipe.sources["cli"].path) == root / "here/c.jsonl"
    assert Path(job.validation.sources["v"].path) == root / "jobs/v.jsonl"


def test_a_recipe_named_on_the_command_line_is_relative_to_the_working_folder(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    (root / "other.toml").write_text("lanes = 2\n[sources.x]\npath = 'x.jsonl'\n", "utf-8")
    job = parse(root, "--zephon.recipe", "other.toml")
    assert job.recipe.lanes == 2
    assert Path(job.recipe.sources["x"].path) == root / "x.jsonl"


def test_validation_inherits_the_recipe_but_neither_its_sources_nor_its_shuffling(root: Path) -> None:
    job = parse(root, job="[zephon.validation]\nflush_every_sequences = 9\n[zephon.validation.sources.v]\npath = 'v'\n")
    valid = job.validation
    assert valid is not None
    assert (valid.seed, valid.lanes, valid.flush_every_sequences) == (3, 8, 9)
    assert (valid.shuffle_chunks, valid.shuffle_records, valid.shuffle_buffer_sequences) == (False, False, 0)
    assert list(valid.sources) == ["v"]
    assert job.recipe.shuffle_chunks


def test_the_ledger_is_a_switch_and_lies_in_the_dump_folder(root: Path) -> None:
    assert parse(root).settings.ledger is None
    assert parse(root, "--zephon.ledger").settings.ledger == "out/ledger"
    assert parse(root, "--zephon.ledger", "--job.dump_folder", "/d").settings.ledger == "/d/ledger"
    assert parse(root, "--zephon.no_ledger").settings.ledger is None


@pytest.mark.parametrize(
    ("args", "tables"),
    [
        (["--training.steps", "20"], {"training": {"steps": 20}}),
        (["--training.steps=20"], {"training": {"steps": 20}}),
        (["--optimizer.lr", "3e-4"], {"optimizer": {"lr": 3e-4}}),
        (["--checkpoint.load_step", "-1"], {"checkpoint": {"load_step": -1}}),
        (["--checkpoint.enable"], {"checkpoint": {"enable": True}}),
        (["--comm.x", "--metrics.log_freq", "1"], {"comm": {"x": True}, "metrics": {"log_freq": 1}}),
        (["--checkpoint.no_enable"], {"checkpoint": {"enable": False}}),
        (["--checkpoint.no-enable"], {"checkpoint": {"enable": False}}),
        (["--checkpoint.enable=false"], {"checkpoint": {"enable": False}}),
        (["--model.flavor", "8B"], {"model": {"flavor": "8B"}}),
        (["--model.flavor", '"8"'], {"model": {"flavor": "8"}}),
        (["--job.description", "a = b"], {"job": {"description": "a = b"}}),
        (["--job.description=a=b"], {"job": {"description": "a=b"}}),
        (["--job.description", "2024-01-01"], {"job": {"description": "2024-01-01"}}),
        (["--job.description", "1\nx = 2"], {"job": {"description": "1\nx = 2"}}),
        (["--compile.components", '["model"]'], {"compile": {"components": ["model"]}}),
        (["--training.steps", "1", "--training.steps", "2"], {"training": {"steps": 2}}),
        (["--zephon.sources.my-news.weight", "0.3"], {"zephon": {"sources": {"my-news": {"weight": 0.3}}}}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)  # fmt: skip
def test_an_override_is_a_toml_literal_or_a_string(args: list[str], tables: dict[str, Any]) -> None:
    assert parse_overrides(args) == tables


def test_a_section_is_known_by_its_newer_name_too(root: Path) -> None:
    assert parse(root, "--validator.freq", "5").sections["validation"] == {"freq": 5}
    assert parse(root, job="[profiler]\nenable_profiling = true\n").sections["profiling"] == {"enable_profiling": True}


@pytest.mark.parametrize("text", ["wrap", "a,b", "", "data/*.jsonl", "None", "1_", "07:32:00"])
def test_what_is_no_toml_literal_is_a_string(text: str) -> None:
    assert literal(text) == text


@pytest.mark.parametrize(
    ("args", "job", "message"),
    [
        (["train"], "", "argument 'train': expected --section.key value"),
        (["--steps", "3"], "", "argument '--steps': an override names a section and a key"),
        (["--trainign.steps", "3"], "", r"command line: no section \[trainign\]. Did you mean 'training'"),
        (["--zephon.lane", "8"], "", "zephon.lane: no such key. Did you mean 'lanes'"),
        (["--zephon.lanes", "eight"], "", "zephon.lanes = 'eight' is a str; expected int"),
        (["--zephon.lanes", "0"], "", "lanes = 0 is out of range"),
        (["--zephon.device", "tpu"], "", "zephon.device = 'tpu': not one of 'auto', 'cpu'"),
        (["--zephon.ledger", "folder"], "", "zephon.ledger = 'folder' is a str; expected bool"),
        (["--zephon.recipe", "nowhere.toml"], "", "no such TOML file: .*nowhere.toml"),
        (["--zephon.sources.nwes.weight", "0.3"], "", "zephon.sources.nwes has no path.*Did you mean 'news'"),
        (["--zephon.sources.news.wieght", "1"], "", "sources.news.wieght: no such key. Did you mean 'weight'"),
        (["--zephon.sources.news.weight", "0"], "", "weight of source 'news' is 0.0"),
        (["--zephon.sources.news", "x.jsonl"], "", "zephon.sources.news = 'x.jsonl' is a str"),
        (["--zephon", "3"], "", "an override names a section and a key"),
        (["--training.steps", "1", "--training.steps.x", "1"], "", "'steps' was given a value before"),
        (["--training.global_batch_size=-1"], "", "training.global_batch_size = -1; it must be"),
        (["--training.global_batch_size", "many"], "", "training.global_batch_size = 'many'; it must be"),
        (["--training.global_batch_size", "true"], "", "training.global_batch_size = True; it must be"),
        (["--validation.enable"], "", "validation.enable is true and there is no validation data"),
        ([], "[zephon.validation]\nseed = 1\n", "zephon.validation.sources: there is no data source"),
        ([], "[zephon.validation]\nlane = 1\n", "zephon.validation.lane: no such key"),
        ([], "[datasets]\n", r"job.toml: no section \[datasets\]"),
        ([], "[validator]\n[validation]\n", "one section under two names"),
        ([], "[training", "not valid TOML"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_job_is_an_error_that_says_what_and_how(root: Path, args: list[str], job: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(root, *args, job=job)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("[training]\nglobal_batch_size = 8\n", "zephon.sources: there is no data source. Add a table"),
        ("[zephon]\nrecipe = 3\n[training]\nglobal_batch_size = 8\n", "zephon.recipe = 3 is a int"),
        ("[zephon]\nlanes = 4\n", "training.global_batch_size is not set"),
        ("seed = 3\n[training]\nglobal_batch_size = 8\n", r"job.toml: no section \[seed\]"),
        ("training = 3\n", r"training = 3: \[training\] is a section of keys, not a value"),
    ],
)
def test_a_job_file_that_lacks_what_is_needed_is_refused(root: Path, job: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(root, job=job, replace=True)


def test_a_recipe_file_with_an_unknown_key_is_named(root: Path) -> None:
    (root / "configs/mix.toml").write_text("shufle_buffer_sequences = 3\n", "utf-8")
    with pytest.raises(ConfigError, match=r"mix.toml: shufle_buffer_sequences: .*Did you mean 'shuffle_buffer_seq"):
        parse(root)


def test_everything_that_is_wrong_with_a_job_is_told_at_once(root: Path) -> None:
    (root / "configs/mix.toml").write_text(RECIPE + "[shufle]\n", "utf-8")
    wrong = "[zephon.validation]\nlane = 1\n[trainer]\n"
    args = ("--zephon.lane", "8", "--zephon.workers", "0", "--zephon.device", "tpu", "--zephon.ledger", "folder")
    with pytest.raises(ConfigError) as refusal:
        parse(root, *args, "--validator.x", "1", "--trainign.steps", "3", "--training.global_batch_size=-1", job=wrong)
    said = [
        r"job.toml: no section \[trainer\]",
        r"command line: no section \[trainign\]. Did you mean 'training'",
        "training.global_batch_size = -1; it must be",
        "zephon.lane: no such key. Did you mean 'lanes'",
        "mix.toml: shufle: no such key of a recipe",
        "zephon.device = 'tpu': not one of 'auto', 'cpu'",
        "zephon.ledger = 'folder' is a str; expected bool",
        "zephon.workers = 0 is out of range",
        "zephon.validation.lane: no such key",
        "zephon.validation.sources: there is no data source",
    ]
    assert len(refusal.value.args) == len(said), refusal.value
    for text, pattern in zip(refusal.value.args, said, strict=True):
        assert re.search(pattern, text), (pattern, text)


def test_a_job_with_errors_can_be_looked_at_without_what_is_wrong(root: Path) -> None:
    problems = Problems()
    args = (
        "--zephon.lane",
        "8",
        "--zephon.sources.pathless.weight",
        "1",
        "--zephon.workers",
        "0",
        "--zephon.seed",
        "9",
    )
    job = read_job(["--job.config_file", str(root / "jobs" / "job.toml"), *args], {}, problems)
    assert (job.recipe.lanes, job.recipe.seed, list(job.recipe.sources)) == (8, 9, ["news", "wiki"])
    assert [text.split()[0].rstrip(":") for text in problems.texts] == [
        *("zephon.lane", "zephon.sources.pathless", "zephon.workers"),
    ]


def test_a_recipe_file_that_cannot_be_read_is_the_only_problem_with_its_sources(root: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse(root, "--zephon.recipe", "no.toml")
    here = str(Path.cwd())
    assert refusal.value.args == (
        f"no such TOML file: '{here}/no.toml'. It is stated as 'no.toml' on the command line, where a relative path is "
        f"relative to the working folder, '{here}'.",
    )
    with pytest.raises(ConfigError, match=r"job\.toml' is a job, not a recipe"):
        parse(root, "--zephon.recipe", str(root / "jobs" / "job.toml"))


def test_a_recipe_in_place_of_a_job_is_answered_with_what_to_write_and_the_right_command(root: Path) -> None:
    recipe = root / "configs" / "mix.toml"
    with pytest.raises(ConfigError) as refusal:
        parse_job(["--job.config_file", str(recipe)], {})
    assert f"'{recipe}' is a recipe, not a job" in str(refusal.value)
    assert f"torchtitan-zephon explain {recipe} --tokenizer FOLDER" in str(refusal.value)


@pytest.mark.parametrize("where", ["job", "command line", "validation"])
def test_a_source_without_a_weight_beside_others_is_asked_for_wherever_it_is_added(root: Path, where: str) -> None:
    held = "[zephon.validation.sources.more]\npath = 'v'\n[zephon.validation.sources.other]\npath = 'v'\nweight = 1\n"
    args, job = {
        "job": ((), "[zephon.sources.more]\npath = 'm'\n"),
        "command line": (("--zephon.sources.more.path", "m"), ""),
        "validation": ((), held),
    }[where]
    with pytest.raises(ConfigError, match=r"sources: there is no weight for 'more', and other sources have one"):
        parse(root, *args, job=job)


@pytest.mark.parametrize("args", [[], ["--training.steps", "3"], ["--job.config_file"]])
def test_a_command_line_without_a_job_file_is_refused(args: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"add --job.config_file path/to/job.toml"):
        parse_job(args, {})


def test_parsing_a_job_imports_neither_torch_nor_torchtitan(root: Path) -> None:
    code = (
        "import sys; from torchtitan_zephon import train; from torchtitan_zephon.titan.job import parse_job;"
        f"parse_job(['--job.config_file', {str(root / 'jobs/job.toml')!r}], {{}});"
        "print([m for m in ('torch', 'torchtitan') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def launch(*args: str) -> subprocess.CompletedProcess[str]:
    """The command in one process without torchrun."""
    command = [sys.executable, "-m", "torchtitan_zephon.train", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_shows_what_to_write() -> None:
    done = launch("--help")
    assert done.returncode == 0
    assert re.search(r"torchrun .*\n.*--job.config_file", done.stdout)


def test_an_error_is_one_wrapped_paragraph_and_exit_code_2(root: Path) -> None:
    done = launch("--job.config_file", str(root / "jobs/job.toml"), "--training.global_batch_size=-1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("torchtitan_zephon: training.global_batch_size = -1; it must be")
    assert max(map(len, done.stderr.splitlines())) <= 100


def test_without_torchrun_the_command_says_how_to_start_it(root: Path) -> None:
    done = launch("--job.config_file", str(root / "jobs/job.toml"))
    assert done.returncode == 2
    assert "not started by torchrun" in done.stderr


@pytest.mark.parametrize("value", ["global_batch_size", '["global_batch_size"]'])
def test_an_allowed_change_is_a_word_or_a_list(root: Path, value: str) -> None:
    assert parse(root, "--zephon.allow_changes", value).settings.allow_changes == ["global_batch_size"]
    with pytest.raises(ConfigError, match=r"allow_changes\[0\] = 'seed': not one of 'global_batch_size'"):
        parse(root, "--zephon.allow_changes", "seed")
