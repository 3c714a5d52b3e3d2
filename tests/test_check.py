"""`torchtitan-zephon check`: what fits, in numbers and in words, without a GPU, TorchTitan or torch."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import tokenizers

from tests.scenarios import BOS, EOS, texts_of, tokenizer_folder, write_jsonl, write_parquet
from torchtitan_zephon import ConfigError
from torchtitan_zephon.cli import VERSION, main
from torchtitan_zephon.errors import Problems
from torchtitan_zephon.plan.chunking import Chunk
from torchtitan_zephon.program import Program
from torchtitan_zephon.titan.check import Release, Report, check, find_release
from torchtitan_zephon.titan.check.text import WIDTH, check_text
from torchtitan_zephon.titan.generations import NEWEST, SUPPORTED
from torchtitan_zephon.titan.job import read_job

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "train_configs" / "demo.toml"
JOB = """
[model]
hf_assets_path = "{tokenizer}"
[training]
global_batch_size = 32
local_batch_size = 4
seq_len = 64
[zephon]
lanes = 16
[zephon.sources.news]
path = "news"
weight = 3
[zephon.sources.wiki]
path = "wiki.parquet"
weight = 1
"""


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """A job on two JSONL shards and a Parquet file, with the demo's tokenizer."""
    for part in range(2):
        write_jsonl(tmp_path / "news" / f"{part}.jsonl", texts_of(300, first=1000 * part))
    write_parquet(tmp_path / "wiki.parquet", texts_of(400, first=5000))
    (tmp_path / "job.toml").write_text(JOB.format(tokenizer=ROOT / "demo" / "tokenizer"), "utf-8")
    return tmp_path / "job.toml"


def report_of(job_file: Path, *overrides: str, dp: list[int] | None = None, version: str = "0.3.0") -> Report:
    """The report where TorchTitan is not installed."""
    found = Problems()
    job = read_job([f"--job.config_file={job_file}", *overrides], SUPPORTED[version].stock_recipe, found)
    return check(job, Release(generation=SUPPORTED[version], unchecked="it is not installed"), dp, None, found)


def not_installed() -> str:
    """A release that is not the one installed here."""
    try:
        present = metadata.version("torchtitan").partition("+")[0]
    except metadata.PackageNotFoundError:
        present = ""
    return next(version for version in SUPPORTED if version != present)


def command(*words: object) -> int:
    return main(["check", *map(str, words), "--torchtitan", not_installed()])


def problems(report: Report) -> dict[int, str]:
    return {d.dp: d.problem for d in report.train.degrees if d.problem is not None}


def all_chunks(program: Program, source: int) -> list[Chunk]:
    table = program.tables[source]
    chunks = []
    for run in range(table.num_runs):
        k, last = 0, False
        while not last:
            chunk, last = table.chunk(0, run, k)
            chunks.append(chunk)
            k += 1
    return chunks


# ---- sources


def test_each_source_is_listed_with_what_it_holds(job_file: Path) -> None:
    news, wiki = report_of(job_file).train.reading.sources
    sizes = [file.stat().st_size for file in (job_file.parent / "news").iterdir()]
    assert (news.name, news.share, news.manifest.format, len(news.manifest.shards)) == ("news", 0.75, "jsonl", 2)
    assert (wiki.name, wiki.share, wiki.manifest.format, len(wiki.manifest.shards)) == ("wiki", 0.25, "parquet", 1)
    assert news.num_bytes == sum(sizes)
    assert news.lane_chunks == news.chunks / 16


def test_the_estimate_of_a_sources_tokens_is_that_of_reading_it_all_where_the_sample_is_all(job_file: Path) -> None:
    train = report_of(job_file).train
    for number, source in enumerate(train.reading.sources):
        tokens = sum(
            len(train.reading.program.work(chunk).documents.ids) for chunk in all_chunks(train.reading.program, number)
        )
        assert math.isclose(source.tokens, tokens, rel_tol=0.01)


def test_a_long_source_name_is_cut_and_the_table_stays_within_its_width(job_file: Path) -> None:
    name = "long-name-" * 8
    long = (f"--zephon.sources.{name}.path={job_file.parent / 'news'}", f"--zephon.sources.{name}.weight=1")
    text = check_text(report_of(job_file, *long, dp=list(range(1, 33))))
    assert max(map(len, text.splitlines()[1:])) <= WIDTH
    assert "long-name-long-name..." in text


# ---- degrees


def test_by_default_every_degree_that_fits_is_shown(job_file: Path) -> None:
    report = report_of(job_file)
    assert report.good
    assert [dataclasses.astuple(d)[:7] for d in report.train.degrees] == [
        (1, 1, 32, (16, 16), 32, 4, 8),
        (2, 2, 32, (8, 8), 16, 4, 4),
        (4, 4, 32, (4, 4), 8, 4, 2),
        (8, 8, 32, (2, 2), 4, 4, 1),
    ]


def test_a_degree_that_does_not_fit_is_told_with_the_nearest_that_does(job_file: Path) -> None:
    report = report_of(job_file, dp=[4, 6, 16])
    assert not report.good
    assert set(problems(report)) == {6, 16}
    assert "lanes = 16 cannot be shared out evenly over 6" in problems(report)[6]
    assert "use 4 or 8" in problems(report)[6]
    assert "local batch of 2" in problems(report)[16]


def test_shared_lanes_are_shown_as_a_range_and_more_degrees_fit(job_file: Path) -> None:
    batch = ("--training.global_batch_size", "48", "--training.local_batch_size", "2")
    assert set(problems(report_of(job_file, *batch, dp=[3]))) == {3}
    report = report_of(job_file, *batch, "--zephon.shared_lanes", dp=[3, 24])
    assert [(d.dp, d.lanes) for d in report.train.degrees] == [(3, (6, 6)), (24, (1, 2))]
    report = report_of(job_file, *batch, "--zephon.shared_lanes", "--zephon.lanes", "8", dp=[3, 6])
    assert [(d.dp, d.lanes) for d in report.train.degrees] == [(3, (3, 4)), (6, (2, 2))]
    assert "3 to 4" in check_text(report)
    everywhere = [d.dp for d in report_of(job_file, *batch, "--zephon.shared_lanes").train.degrees]
    assert everywhere == [1, 2, 3, 4, 6, 8, 12, 24]


def test_where_no_degree_fits_one_says_why(job_file: Path) -> None:
    report = report_of(job_file, "--zephon.lanes", "10")
    assert "cannot be taken evenly from 10 lanes" in problems(report)[1]


@pytest.mark.parametrize("key", ["tensor_parallel_degree", "pipeline_parallel_degree", "context_parallel_degree"])
def test_other_parallelism_multiplies_the_gpus_and_nothing_else(job_file: Path, key: str) -> None:
    plain, other = report_of(job_file), report_of(job_file, f"--parallelism.{key}", "4")
    assert [d.gpus for d in other.train.degrees] == [4 * d.dp for d in plain.train.degrees]
    assert [dataclasses.replace(d, gpus=d.dp) for d in other.train.degrees] == list(plain.train.degrees)
    assert "x 4 (" in check_text(other)


def test_a_fixed_shard_degree_leaves_one_degree(job_file: Path) -> None:
    fixed = (
        "--parallelism.data_parallel_shard_degree",
        "4",
        "--parallelism.data_parallel_replicate_degree",
        "2",
    )
    assert [d.dp for d in report_of(job_file, *fixed).train.degrees] == [8]
    assert "fix the data-parallel degree at 8" in problems(report_of(job_file, *fixed, dp=[4]))[4]


def test_a_replicate_degree_must_divide_the_ranks(job_file: Path) -> None:
    two = ("--parallelism.data_parallel_replicate_degree", "2")
    assert [d.dp for d in report_of(job_file, *two).train.degrees] == [2, 4, 8]
    assert "does not divide 1 data-parallel ranks. Use 2" in problems(report_of(job_file, *two, dp=[1]))[1]


def test_a_degree_below_one_is_refused_by_its_key(job_file: Path) -> None:
    report = report_of(
        job_file, "--parallelism.tensor_parallel_degree", "0", "--parallelism.context_parallel_degree", "-2"
    )
    assert report.problems == (
        "parallelism.tensor_parallel_degree = 0 must be 1 or more.",
        "parallelism.context_parallel_degree = -2 must be 1 or more.",
    )


def test_a_pipelines_microbatches_must_divide_too_where_the_release_draws_them(job_file: Path) -> None:
    pipeline = (
        "--parallelism.pipeline_parallel_degree",
        "2",
        "--parallelism.pipeline_parallel_microbatch_size",
        "3",
    )
    assert "local_batch_size = 3" in problems(report_of(job_file, *pipeline, dp=[8]))[8]
    assert problems(report_of(job_file, *pipeline, dp=[8], version="0.2.2")) == {}


# ---- validation


def validated(job_file: Path, path: Path) -> Path:
    job_file.write_text(f'{job_file.read_text("utf-8")}\n[zephon.validation.sources.held]\npath = "{path}"\n', "utf-8")
    return job_file


def test_a_validation_pass_takes_the_smallest_batch_of_each_degree(job_file: Path) -> None:
    job = validated(job_file, job_file.parent / "news")
    report = report_of(job, "--validation.enable", dp=[2, 8])
    assert report.validation is not None
    assert [s.name for s in report.validation.reading.sources] == ["held"]
    assert [(d.global_batch_size, d.problem) for d in report.validation.degrees] == [(16, None), (32, None)]
    assert not report.validation.reading.program.recipe.repeat
    some = report_of(job, "--validation.enable", "--validation.steps", "5", dp=[2]).validation
    assert some is not None and some.degrees[0].global_batch_size == 32 and some.reading.program.recipe.repeat


def test_a_validation_that_does_not_fit_fails_the_check(job_file: Path) -> None:
    job = validated(job_file, job_file.parent / "news")
    fits = report_of(job, "--validation.enable", dp=[8])
    wide = report_of(job, "--validation.enable", "--zephon.validation.lanes", "4", dp=[8])
    assert fits.good and not wide.good
    assert "validation on data-parallel ranks" in check_text(wide) and "lanes = 4 cannot" in check_text(wide)


def test_a_validation_that_is_not_enabled_is_not_opened(job_file: Path) -> None:
    report = report_of(validated(job_file, Path("/nowhere/at/all")))
    assert report.good and report.validation is None
    assert "validation.enable is not true" in check_text(report)


# ---- the command


def test_the_command_answers_with_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(DEMO) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "yes: fits on 1, 2, 4, 8 data-parallel ranks"
    assert f"{not_installed()} assumed (it is not installed)" in out
    assert command(DEMO, "--dp", "8,3") == 1
    assert "no: fits on 8 data-parallel ranks; does not fit on 3; 1 problem" in capsys.readouterr().out


def test_the_same_question_has_the_same_answer(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for _ in range(2):
        command(DEMO, "--dp", "3,4")
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert max(map(len, outputs[0].splitlines())) <= WIDTH


def test_overrides_are_those_of_training_wherever_they_stand(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--training.seq_len", "64", DEMO, "--dp=4", "--zephon.lanes=8", "--checkpoint.no_enable") == 0
    out = capsys.readouterr().out
    assert "32 sequences of 64 tokens" in out and "8 lanes" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([DEMO, "--zephon.lans", "8"], "zephon.lans: no such key. Did you mean 'lanes'?"),
        ([DEMO, "--training.global_batch_size", "-1"], "grows with the GPU count"),
        ([DEMO, "--training.seq_len", "long"], "training.seq_len = 'long' is a str"),
        ([DEMO, "--training.seq_len", "1"], "seq_len = 1 must be 2 or more"),
        ([DEMO, "--model.hf_assets_path", "no/such"], "model.hf_assets_path = 'no/such' is not a folder"),
        ([DEMO, "--zephon.sources.books.path", "no/such"], "no file or folder"),
        ([DEMO, "--zephon.sources.books.field", "body"], "body"),
        ([DEMO, "--zephon.sources.books.weight", "0"], "weight of source 'books' is 0.0"),
        ([DEMO, "--zephon.recipe", "no.toml"], "no such TOML file"),
        ([DEMO, "--checkpoint", "no/such"], "there is no folder 'no/such'"),
        ([DEMO, "--zephon.pack", "first_fit", "--zephon.label_shift", "sequence"], "label_shift = 'sequence' would"),
    ],
    ids=["key", "batch", "type", "length", "tokenizer", "source", "field", "weight", "recipe", "checkpoint", "clash"],
)
def test_a_wrong_job_is_one_problem_and_exit_code_1(
    words: list[object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*words) == 1
    printed = capsys.readouterr()
    assert message in " ".join(printed.out.split()) and printed.err == ""
    assert "\nthere is 1 problem\n 1. " in printed.out and printed.out.splitlines()[-1].endswith("1 problem")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.toml"], "no such TOML file: 'nowhere.toml'"),
        ([ROOT / "configs" / "demo.toml"], "is a recipe, not a job"),
        ([DEMO, "--training.steps", "1", "--training.steps.x", "1"], "'steps' was given a value before"),
    ],
    ids=["no file", "recipe", "override"],
)
def test_what_cannot_be_parsed_at_all_is_one_paragraph_and_exit_code_2(
    words: list[object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*words) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.startswith("torchtitan-zephon: ")
    assert printed.out == ""


WRONG = """
[model]
hf_assets_path = "no/such/tokenizer"
[training]
global_batch_size = 32
local_batch_size = 4
seq_len = 64
[trainign]
steps = 3
[zephon]
lans = 16
workers = 0
[zephon.sources.news]
path = "news"
weight = 3
[zephon.sources.gone]
path = "gone"
weight = 1
[zephon.sources.body]
path = "news"
weight = 1
field = "body"
[zephon.sources.misspelt]
path = "news"
wieght = 1
"""


def test_all_problems_of_a_job_are_told_in_one_answer(job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job_file.write_text(WRONG, "utf-8")
    assert command(job_file, "--dp", "4,3,5", "--checkpoint", "no/such", "--zephon.sources.cli.path", "data") == 1
    out = capsys.readouterr().out
    told = " ".join(out.partition("problems\n")[2].split())
    expected = [
        "job.toml: no section [trainign]. Did you mean 'training'?",
        "zephon.lans: no such key. Did you mean 'lanes'?",
        "zephon.sources.misspelt.wieght: no such key. Did you mean 'weight'?",
        "zephon.sources: there is no weight for 'cli', and other sources have one (news = 3, gone = 1, body = 1).",
        "zephon.workers = 0 is out of range; allowed: 1 to 1024.",
        "does not fit on 3 data-parallel ranks: lanes = 32",
        "does not fit on 5 data-parallel ranks: lanes = 32",
        "model.hf_assets_path = 'no/such/tokenizer' is not a folder",
        "source 'body', shard '0.jsonl', line at byte 0: there is no field 'body'",
        f"source 'cli': there is no file or folder '{ROOT / 'data'}'; '{ROOT}' is there, and has no 'data'. "
        "It is stated as 'data' on the command line",
        f"source 'gone': there is no file or folder '{job_file.parent / 'gone'}'; '{job_file.parent}' is there, and "
        "has no 'gone'. It is stated as 'gone' in "
        f"'{job_file}', and a relative path in a TOML file is relative to that file",
        "there is no folder 'no/such'",
    ]
    places = [told.find(text) for text in expected]
    assert -1 not in places, expected[places.index(-1)]
    assert out.splitlines()[-1] == "no: fits on 4 data-parallel ranks; does not fit on 3, 5; 12 problems"
    rows = dict(re.findall(r"^ +(\d+) +\d+ +no: problem (\d+)$", out, re.MULTILINE))
    for dp, number in rows.items():
        assert f"\n{number:>2}. does not fit on {dp} data-parallel ranks" in out
    assert set(rows) == {"3", "5"}


def test_a_source_that_cannot_be_read_hides_no_other(job_file: Path) -> None:
    more = (f"--zephon.sources.{name}.{key}" for name in "ab" for key in ("path=nowhere", "weight=1"))
    report = report_of(job_file, *more)
    assert [source.name for source in report.train.reading.sources] == ["news", "wiki"]
    assert report.train.reading.program is None and report.train.reading.tokenize is not None
    assert [text[:11] for text in report.problems] == ["source 'a':", "source 'b':"]
    whole = report_of(job_file).train.reading.sources
    shown = report.train.reading.sources
    assert [dataclasses.replace(s, share=0) for s in shown] == [dataclasses.replace(s, share=0) for s in whole]
    assert [s.share for s in shown] == [3 / 6, 1 / 6]


def test_a_length_that_no_sequence_can_have_hides_nothing_else(job_file: Path) -> None:
    more = [f"--zephon.sources.{name}.{key}" for name in "ab" for key in ("path=nowhere", "weight=1")]
    for also in ((), ("--model.hf_assets_path=nowhere",)):
        report = report_of(job_file, *more, "--training.seq_len=1", *also)
        starts = ["seq_len = 1 ", *["model.hf_as"] * len(also), "source 'a':", "source 'b':"]
        assert sorted(text[:11] for text in report.problems) == sorted(start[:11] for start in starts)


def test_a_problem_of_training_and_validation_alike_is_told_once(job_file: Path) -> None:
    wrong = ("--model.hf_assets_path=nowhere", "--parallelism.data_parallel_shard_degree=4")
    report = report_of(validated(job_file, job_file.parent / "news"), "--validation.enable", *wrong, dp=[3])
    assert report.validation is not None and len(report.problems) == 2
    assert report.train.misfits == report.validation.misfits == {3: 1}


def test_the_checkpoint_place_of_a_job_that_has_not_begun_means_a_new_stream(
    job_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(job_file.parent)  # where nothing was ever saved
    for place in ("outputs", "./outputs/checkpoint", job_file.parent / "outputs"):
        assert command("job.toml", "--dp", "4", "--checkpoint", place) == 0
        out = capsys.readouterr().out
        assert "nothing complete is saved there" in out and "the job begins a new stream" in out
        assert out.splitlines()[-1] == "yes: fits on 4 data-parallel ranks; begins a new stream"
    assert command("job.toml", "--dp", "4", "--checkpoint", "output") == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "there is no folder 'output'" in out and "this job's own checkpoints are in 'outputs/checkpoint'" in out
    assert command("job.toml", "--dp", "4", "--checkpoint", "output", "--job.dump_folder", "output") == 0


def test_the_version_is_said_alone_and_in_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"{VERSION}\n"
    command(DEMO, "--dp", "4")
    zephon = capsys.readouterr().out.splitlines()[1]
    assert re.sub(r"\W+", " ", zephon.removeprefix("zephon")).strip() in re.sub(r"\W+", " ", VERSION)


# ---- explain


def explained(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    code = main(["explain", *map(str, words)])
    printed = capsys.readouterr()
    return code, " ".join((printed.out + printed.err).split())


def test_a_job_is_explained_with_its_tokenizer_back_end_and_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    other = ("--torchtitan", not_installed())
    code, text = explained(capsys, DEMO, *other)
    assert code == 0 and "16 lanes, seed 20" in text and "pack wrap to 128 tokens" in text
    hf = explained(
        capsys, DEMO, *other, "--zephon.tokenizer_backend", "hf", "--training.seq_len=64", "--zephon.lanes=8"
    )
    assert hf[0] == 0 and "by tokenizers" in hf[1] and "8 lanes" in hf[1] and "to 64 tokens" in hf[1]


def test_a_recipe_is_explained_on_the_back_end_that_a_job_would_take(capsys: pytest.CaptureFixture[str]) -> None:
    recipe, tokenizer = ROOT / "configs" / "demo.toml", ROOT / "demo" / "tokenizer"
    code, text = explained(capsys, recipe, "--tokenizer", tokenizer, "--seq-len", 128)
    job = explained(capsys, DEMO)[1]
    assert code == 0 and text.rpartition("; by ")[2].split()[0] == job.rpartition("; by ")[2].split()[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([ROOT / "configs" / "demo.toml"], "is a recipe, which names no tokenizer: add --tokenizer FOLDER"),
        ([ROOT / "configs" / "demo.toml", "--tokenizer", "x", "--zephon.lanes", "8"], "--zephon.lanes is for a job"),
        ([DEMO, "--tokenizer", "demo/tokenizer"], "is a job, which names its tokenizer"),
        ([DEMO, "--seq-len", "64"], "--training.seq_len 2048"),
        (["nowhere.toml"], "no such TOML file: 'nowhere.toml'"),
    ],
)
def test_what_explain_cannot_take_is_answered_with_the_right_command(
    words: list[object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = explained(capsys, *words)
    assert code == 2 and message in text


@pytest.mark.parametrize("words", [["--dp", "4,x"], ["--dp", "0"], ["--frob"], ["--torchtitan", "1.0"]])
def test_a_wrong_use_is_exit_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["check", str(DEMO), *words])
    assert exit_.value.code == 2
    assert words[-1] in capsys.readouterr().err


def test_labels_are_those_of_the_release_asked_for(job_file: Path) -> None:
    assert "labels within each document" in check_text(report_of(job_file, version="0.3.0"))
    assert "labels within each sequence" in check_text(report_of(job_file, version="0.2.2"))


def test_without_torchtitan_the_newest_release_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert find_release(None) == Release(generation=NEWEST, unchecked="it is not installed")


def test_an_installed_release_that_is_not_supported_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "9.9.9")
    with pytest.raises(ConfigError, match=r"9\.9\.9 is installed; supported"):
        find_release(None)
    assert find_release("0.2.2").unchecked is not None


def test_neither_torch_nor_torchtitan_is_needed() -> None:
    script = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'torchtitan', 'tyro']));"
        f"from torchtitan_zephon.cli import main; sys.exit(main(['check', {str(DEMO)!r}, '--dp', '4']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "assumed (it " in done.stdout and "yes: fits on 4" in done.stdout


# ---- what stands around a document


def with_tokenizer(job_file: Path, config: object) -> Path:
    """The job with the small tokenizer and this ``tokenizer_config.json``."""
    folder = job_file.parent / "tokenizer"
    folder.mkdir()
    shutil.copy(tokenizer_folder() / "tokenizer.json", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    job_file.write_text(JOB.format(tokenizer=folder), "utf-8")
    return folder


def test_a_document_is_shown_as_it_is_read_with_what_the_tokenizer_adds_itself(job_file: Path) -> None:
    folder = with_tokenizer(job_file, {"bos_token": BOS, "eos_token": EOS})
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    text = check_text(report_of(job_file))
    assert f"is read as  {BOS} text {EOS}  (BOS by tokenizer_config.json, EOS by" in text
    assert "Warning" not in text


def test_nothing_behind_a_document_is_warned_of_once_and_not_if_it_was_asked_for(job_file: Path) -> None:
    with_tokenizer(job_file, {"bos_token": BOS})
    report = report_of(job_file)
    text = " ".join(check_text(report).split())
    assert report.good
    assert text.count("Warning: nothing ends a document (BOS by tokenizer_config.json, no EOS named)") == 1
    assert f"one is read as {BOS} text, so the model cannot learn where one ends" in text
    assert "Warning" not in check_text(report_of(job_file, "--zephon.add_eos", "false"))


def test_characters_that_the_tokenizer_drops_are_warned_of_by_source(job_file: Path) -> None:
    folder = with_tokenizer(job_file, {"eos_token": EOS})
    data = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    del data["model"]["vocab"]["ð"]  # the first byte of an emoji
    data["model"]["merges"] = [m for m in data["model"]["merges"] if "ð" not in "".join(m)]
    (folder / "tokenizer.json").write_text(json.dumps(data), "utf-8")
    text = " ".join(check_text(report_of(job_file)).split())
    for name in ("news", "wiki"):
        assert f"Warning: source '{name}': " in text
    assert "are dropped without a trace, as the tokenizer has no token for them: '🚀' in " in text


def test_more_workers_than_the_segments_of_a_rank_can_keep_busy_are_warned_of(job_file: Path) -> None:
    assert "too little for workers" not in check_text(report_of(job_file))
    text = " ".join(check_text(report_of(job_file, "--zephon.workers", "1000")).split())
    assert re.search(
        r"Warning: with \d+ data-parallel ranks a rank has \d+ of the lanes.*too little for workers = 1000", text
    )


def test_a_tokenizer_folder_that_cannot_be_used_is_refused_with_the_way_out(job_file: Path) -> None:
    folder = with_tokenizer(job_file, {})
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    [said] = report_of(job_file).problems
    assert re.search(r"hf_assets_path = .*'tokenizer\.model', a SentencePiece.*save_pretrained", said)
    shutil.rmtree(folder)
    [said] = report_of(job_file).problems
    assert re.search(r"hf_assets_path = .*is not a folder.*relative to the working folder", said)


# ---- files


def test_the_files_of_each_source_and_those_left_out_are_said(job_file: Path) -> None:
    (job_file.parent / "news" / "README.md").touch()
    (job_file.parent / "news" / "latest.jsonl").symlink_to("1.jsonl")
    job = validated(job_file, job_file.parent / "news" / "0.jsonl")
    text = " ".join(check_text(report_of(job, "--validation.enable", dp=[2])).split())
    folder = str(job_file.parent / "news")
    assert f"'news' is read from {folder!r}: '0.jsonl', '1.jsonl' left out: 1 second name of a file" in text
    assert "'latest.jsonl' (is '1.jsonl'); 1 of another type: 'README.md'" in text
    assert f"'held' of the validation is read from {folder!r}: '0.jsonl'" in text
    assert f"{folder + '/0.jsonl'!r} is read by both 'news' and 'held' of the validation" in text
