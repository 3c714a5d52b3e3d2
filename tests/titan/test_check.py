"""`torchtitan-zephon check` on TorchTitan: the same tokenizer, defaults and rules, and real checkpoints."""

from __future__ import annotations

import importlib
import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchtitan")

import torch.distributed.checkpoint as dcp
from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing
from torchtitan.components.tokenizer import HuggingFaceTokenizer

from tests.scenarios import BOS, EOS, rank_steps, texts_of, tokenizer_folder, write_jsonl
from tests.titan.scenarios import look_at_checkpoint
from torchtitan_zephon import ConfigError, RunSettings, StateError, ZephonError
from torchtitan_zephon.cli import main
from torchtitan_zephon.config import Recipe
from torchtitan_zephon.errors import Problems
from torchtitan_zephon.plan.layout import Layout
from torchtitan_zephon.run.stream import RankStream
from torchtitan_zephon.titan.check import Report, check, find_release
from torchtitan_zephon.titan.check.resume import checkpoint_of
from torchtitan_zephon.titan.check.sources import tokenizer_of
from torchtitan_zephon.titan.check.stated import DEFAULTS
from torchtitan_zephon.titan.check.text import check_text
from torchtitan_zephon.titan.checkpoint import Restart, checkpoint_to_load, read_loader_state
from torchtitan_zephon.titan.feed import Feed, tokenizer_spec
from torchtitan_zephon.titan.generations import installed
from torchtitan_zephon.titan.job import Job, parse_job, read_job
from torchtitan_zephon.titan.preflight import preflight
from torchtitan_zephon.titan.reading import READING
from torchtitan_zephon.titan.resume import RESUME

ROOT = Path(__file__).resolve().parents[2]
GENERATION = installed()
VERSION = GENERATION.version
OLDER = VERSION == "0.2.2"
STEPS = 3
JOB = """
[job]
dump_folder = "{folder}/out"
[model]
name = "llama3"
flavor = "debugmodel"
hf_assets_path = "{tokenizer}"
[training]
global_batch_size = 16
local_batch_size = 2
seq_len = 32
[zephon]
lanes = 8
seed = 5
chunk_bytes = 4096
[zephon.sources.news]
path = "news"
[zephon.sources.wiki]
path = "wiki"
"""


def job_of(job_file: Path, *overrides: str) -> Job:
    return parse_job([f"--job.config_file={job_file}", *overrides], GENERATION.stock_recipe)


def report_of(job_file: Path, checkpoint: Path | None, *overrides: str, dp: list[int] | None = None) -> Report:
    problems = Problems()
    job = read_job([f"--job.config_file={job_file}", *overrides], GENERATION.stock_recipe, problems)
    return check(job, find_release(None), dp, checkpoint, problems)


def save(folder: Path, state: dict[str, Any]) -> Path:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder


@pytest.fixture(scope="module")
def job_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job with a checkpoint of its stream behind step 3, and an older one, in its dump folder."""
    folder = tmp_path_factory.mktemp("check")
    for name, first in (("news", 0), ("wiki", 10_000)):
        write_jsonl(folder / name / "a.jsonl", texts_of(200, first=first))
    file = folder / "job.toml"
    file.write_text(JOB.format(folder=folder, tokenizer=tokenizer_folder()), "utf-8")
    program = report_of(file, None).train.reading.program
    layout = Layout(lanes=8, global_batch_size=16, local_batch_size=2)
    stream = RankStream(program, layout, RunSettings())
    for step, number in ((1, 1), (STEPS, 2)):
        rank_steps(stream, number)
        state = {"dataloader": stream.state_dict(), "train_state": {"step": step}}
        save(folder / "out" / "checkpoint" / f"step-{step}", state)
    stream.close()
    (folder / "out" / "checkpoint" / "step-9").mkdir()  # its save was cut off
    return file


def checkpoints(job_file: Path) -> Path:
    return job_file.parent / "out" / "checkpoint"


# ---- the tokenizer


def adds(folder: Path, *tokens: str, config: object = None) -> Path:
    """The small tokenizer in ``folder`` with a post-processor that adds ``tokens`` and the given config file."""
    tokenizer = Tokenizer.from_file(str(tokenizer_folder() / "tokenizer.json"))
    if tokens:
        before, after = (f"{BOS} " if BOS in tokens else ""), (f" {EOS}" if EOS in tokens else "")
        tokenizer.post_processor = TemplateProcessing(
            single=f"{before}$A{after}", special_tokens=[(t, tokenizer.token_to_id(t)) for t in tokens]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return folder


def padded(folder: Path) -> Path:
    tokenizer = Tokenizer.from_file(str(tokenizer_folder() / "tokenizer.json"))
    tokenizer.enable_padding(length=8)
    tokenizer.enable_truncation(4)
    tokenizer.add_tokens([AddedToken("extra", normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def from_words(folder: Path, vocabulary: str, merges: bool) -> Path:
    """A folder without tokenizer.json: a vocabulary as JSON or lines, with merges or without."""
    words = ["[UNK]", "a", "b", "c", "ab", "abc", EOS]
    if vocabulary == "vocab.json":
        (folder / vocabulary).write_text(json.dumps({word: i for i, word in enumerate(words)}), "utf-8")
    else:
        (folder / vocabulary).write_text("".join(f"{word}\n" for word in words), "utf-8")
    if merges:
        (folder / "merges.txt").write_text("#version: 0.2\na b\n\nab c\n", "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOS}), "utf-8")
    return folder


NAMED = {"bos_token": BOS, "eos_token": EOS}
LISTED = {
    "bos_token": {"content": BOS, "lstrip": True, "__type": "AddedToken"},
    "pad_token": "<|pad|>",
    "eos_token": EOS,
    "add_bos_token": False,
    "added_tokens_decoder": {
        "400": {"content": "<|tool|>", "special": False, "normalized": False},
        "1": {"content": EOS},
        "401": "no table, so not a token",
    },
}
TOKENIZERS = {
    "demo": lambda folder: ROOT / "demo" / "tokenizer",
    "small": lambda folder: tokenizer_folder(),
    "adds BOS": lambda folder: adds(folder, BOS, config=NAMED),
    "adds EOS": lambda folder: adds(folder, EOS, config=NAMED),
    "adds both": lambda folder: adds(folder, BOS, EOS, config=NAMED),
    "one token for both": lambda folder: adds(folder, config={"bos_token": EOS, "eos_token": EOS}),
    "one new token for both": lambda folder: adds(folder, config={"bos_token": "<|x|>", "eos_token": "<|x|>"}),
    "a list of added tokens": lambda folder: adds(folder, config=LISTED),
    "tokens that are new": lambda folder: adds(folder, config={"bos_token": "<s>", "eos_token": "</s>"}),
    "EOS alone": lambda folder: adds(folder, config={"bos_token": None, "eos_token": EOS}),
    "an empty config": lambda folder: adds(folder, config={}),
    "no config": lambda folder: adds(folder),
    "padded and cut": padded,
    "vocab.json, merges": lambda folder: from_words(folder, "vocab.json", merges=True),
    "vocab.json": lambda folder: from_words(folder, "vocab.json", merges=False),
    "vocab.txt": lambda folder: from_words(folder, "vocab.txt", merges=False),
}


@pytest.mark.parametrize("make", TOKENIZERS.values(), ids=TOKENIZERS)
@pytest.mark.parametrize("recipe", [Recipe(), Recipe(add_bos=False), Recipe(add_eos=False)], ids=["", "-bos", "-eos"])
def test_the_tokenizer_is_to_the_last_id_the_one_that_torchtitan_gives_the_loader(
    make: Any, recipe: Recipe, job_file: Path, tmp_path: Path
) -> None:
    folder = make(tmp_path)
    job = job_of(job_file, "--model.hf_assets_path", str(folder))
    ours = tokenizer_of(job, recipe)
    theirs = tokenizer_spec(HuggingFaceTokenizer(tokenizer_path=str(folder)), recipe)
    assert ours.identity == theirs.identity


# ---- the same rules as a start


def test_what_a_job_does_not_state_is_what_torchtitan_takes(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('[training]\nglobal_batch_size = 16\n[zephon.sources.a]\npath = "a"\n', "utf-8")
    config = GENERATION.load().build_config(job_of(file))
    for (section, key), default in DEFAULTS.items():
        if OLDER:
            table = getattr(config, section)
        elif section in ("job", "model"):
            table = config
        else:
            table = config.validator if section == "validation" else getattr(config, section)
        assert getattr(table, key) == default, (section, key)


def test_the_stream_and_the_degrees_are_those_of_the_loader(job_file: Path) -> None:
    held = f"--zephon.validation.sources.held.path={job_file.parent / 'news'}"
    report = report_of(job_file, None, held, "--validation.enable", dp=[1, 4, 6])
    assert report.validation is not None and report.job.validation is not None
    tokenizer = HuggingFaceTokenizer(tokenizer_path=str(tokenizer_folder()))
    settings = report.job.settings
    train = Feed(recipe=report.job.recipe, settings=settings, global_batch_size=16)
    once = Feed(recipe=report.job.validation, settings=settings, global_batch_size=16, infinite=False)
    for feed, part in ((train, report.train), (once, report.validation)):
        assert part.reading.program is not None
        assert part.reading.program.identity == feed.program(32, tokenizer).identity
        for degree in part.degrees:
            if degree.problem is None:
                layout = feed.layout(degree.dp, 0, 2)
                assert (layout.global_batch_size, layout.local_batches) == (
                    degree.global_batch_size,
                    degree.local_batches,
                )
            else:
                with pytest.raises(ConfigError) as error:
                    feed.layout(degree.dp, 0, 2)
                assert str(error.value) == degree.problem


def test_the_jobs_other_sections_are_checked_by_the_installed_release(job_file: Path) -> None:
    report = report_of(job_file, None)
    assert report.release.unchecked is None and report.vocab_size == 2048
    assert f"{VERSION}, installed" in check_text(report)
    wrong = report_of(job_file, None, "--training.stepps", "20", "--model.flavor", "70C", "--metrics.log_freq", "often")
    assert sorted(re.split("[:=]", text)[0].strip() for text in wrong.problems) == [
        *("metrics.log_freq", "model.flavor", "training.stepps"),
    ]
    assert f"training.stepps: TorchTitan {VERSION} has no such key" in "".join(wrong.problems)
    assert "other sections do not fit it" in check_text(wrong) and wrong.vocab_size is None
    assert "lama3" in report_of(job_file, None, "--model.name", "lama3").problems[0]


def test_a_tokenizer_larger_than_the_models_vocabulary_is_refused(job_file: Path, tmp_path: Path) -> None:
    folder = large_tokenizer(tmp_path)
    too_small = ("--model.hf_assets_path", str(folder))
    [problem] = report_of(job_file, None, *too_small).problems
    assert "vocabulary has 2048 entries" in problem
    others = ("--training.stepps", "20", "--model.flavour", "debugmodel", "--zephon.sources.news.path", "nowhere")
    told = report_of(job_file, checkpoints(job_file), *too_small, *others)
    assert len(told.problems) == 4 and problem in told.problems


# ---- checkpoints


@pytest.mark.parametrize("place", ["out", "out/checkpoint", "out/checkpoint/step-3"])
def test_the_newest_complete_checkpoint_is_found_and_can_be_resumed(job_file: Path, place: str) -> None:
    report = report_of(job_file, job_file.parent / place)
    assert report.good and report.resume is not None
    assert report.resume.path == checkpoints(job_file) / "step-3"
    text = check_text(report)
    assert f"checkpoint {report.resume.path}\n  behind step 3, 8 lanes, global batch 16, state format " in text
    assert "the job can resume from it" in text and text.endswith("; can resume")


def test_an_older_step_named_outright_is_the_one_checked(job_file: Path) -> None:
    report = report_of(job_file, checkpoints(job_file) / "step-1")
    assert report.resume is not None and report.resume.possible and report.resume.step == 1
    start(report, report.resume.path)


def test_every_field_that_differs_is_told_the_long_ones_on_lines_of_their_own(job_file: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "news" / "a.jsonl", texts_of(201))
    changed = ("--zephon.seed", "6", "--training.global_batch_size", "32", "--zephon.sources.news.path")
    report = report_of(
        job_file,
        checkpoints(job_file),
        *(*changed, str(tmp_path / "news"), "--model.hf_assets_path", str(ROOT / "demo" / "tokenizer")),
    )
    assert not report.good and report.resume is not None
    fields = [change.split(": ")[0] for change in report.resume.changes]
    assert fields == [
        "global_batch_size",
        "seed",
        "shuffle_seed",
        "sources.news.shards.a.jsonl",
        "tokenizer.sha256",
    ]
    text = check_text(report)
    indent = " " * 8
    assert f"\n{indent}global_batch_size: 16 -> 32\n{indent}seed: 5 -> 6\n" in text
    assert re.search(rf"\n{indent}tokenizer.sha256:\n{indent}    \"\w{{64}}\"\n{indent} -> \"\w{{64}}\"\n", text)
    assert text.endswith("; cannot resume; 1 problem")
    words = " ".join(text.split())
    assert "To train on with a new stream: --checkpoint.exclude_from_loading dataloader." in words
    assert 'in batches of another size: zephon.allow_changes = ["global_batch_size"].' in words
    assert max(map(len, text.splitlines())) <= 100 or str(tmp_path) in text


def test_another_global_batch_is_allowed_where_the_job_says_so(job_file: Path) -> None:
    wider = ("--training.global_batch_size", "32")
    refused = report_of(job_file, checkpoints(job_file), *wider).resume
    assert refused is not None and refused.changes == ("global_batch_size: 16 -> 32",)
    report = report_of(job_file, checkpoints(job_file), *wider, "--zephon.allow_changes", '["global_batch_size"]')
    assert report.good and "global_batch_size goes from 16 to 32" in check_text(report)


def state_of(job_file: Path) -> dict[str, Any]:
    return read_loader_state(checkpoints(job_file) / "step-3")


def start(report: Report, path: Path) -> None:
    """Look at the checkpoint as a start does."""
    assert report.train.reading.program is not None
    look_at_checkpoint(report.train.reading.program, report.job.settings, path, 16)


def both_refuse(job_file: Path, path: Path, *overrides: str) -> str:
    """The first problem of the checkpoint at ``path``, which a start must refuse too."""
    report = report_of(job_file, path, *overrides)
    assert report.resume is not None and not report.resume.possible and not report.good
    with pytest.raises(StateError):
        start(report, path)
    return report.resume.problems[0]


def test_a_trainer_at_another_step_than_the_stream_is_told(job_file: Path, tmp_path: Path) -> None:
    path = save(tmp_path / "step-5", {"dataloader": state_of(job_file), "train_state": {"step": 5}})
    assert "trainer behind step 5 and the data stream behind its step 3" in both_refuse(job_file, path)
    ignored = report_of(job_file, path, "--checkpoint.exclude_from_loading", "train_state").resume
    assert ignored is not None and ignored.possible


def lacking(state: dict[str, Any]) -> dict[str, Any]:
    return {"stream": state["stream"], "lane": {k: v for k, v in state["lane"].items() if k != "00005"}}


def exchanged(state: dict[str, Any]) -> dict[str, Any]:
    return {"stream": state["stream"], "lane": {**state["lane"], "00005": state["lane"]["00006"]}}


def stray(state: dict[str, Any]) -> dict[str, Any]:
    return {"stream": state["stream"], "lane": {**state["lane"], "00008": state["lane"]["00006"]}}


def damaged(state: dict[str, Any]) -> dict[str, Any]:
    return {"stream": state["stream"][:-20], "lane": state["lane"]}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [(lacking, "no state of lane 5"), (exchanged, "lane 5 says"), (stray, "holds lane '00008'"), (damaged, "damaged")],
)
def test_a_checkpoint_that_is_not_whole_cannot_be_resumed(
    job_file: Path, tmp_path: Path, spoil: Any, message: str
) -> None:
    state = {"dataloader": spoil(state_of(job_file)), "train_state": {"step": 3}}
    assert message in both_refuse(job_file, save(tmp_path / "step-3", state))


def test_a_checkpoint_without_a_stream_or_with_a_file_cut_short_cannot_be_resumed(
    job_file: Path, tmp_path: Path
) -> None:
    foreign = save(tmp_path / "step-4", {"model": {"w": 1}})
    assert both_refuse(job_file, foreign)
    cut = save(tmp_path / "step-5", {"dataloader": state_of(job_file), "train_state": {"step": 3}})
    (file,) = cut.glob("*.distcp")
    file.write_bytes(file.read_bytes()[:100])
    assert file.name in both_refuse(job_file, cut)


def test_leaving_the_loader_out_is_judged_as_training_does_and_warned_of_what_comes_again(job_file: Path) -> None:
    left_out = ("--checkpoint.exclude_from_loading", '["dataloader"]')
    same = report_of(job_file, checkpoints(job_file), *left_out)
    text = " ".join(check_text(same).split())
    assert same.good and same.resume is not None and same.resume.new_stream
    assert "a new stream begins there, behind step 3." in text and text.endswith("; begins a new stream")
    assert "Warning: checkpoint.exclude_from_loading" in text and "news (1 of 1 files), wiki (1 of 1 files)" in text
    other = ("--zephon.sources.wiki.weight=1", "--zephon.sources.news.weight=3", "--training.seq_len=64")
    changed = report_of(job_file, checkpoints(job_file), *left_out, *other)
    assert changed.good and "a recipe with the same seed" in " ".join(check_text(changed).split())
    assert not report_of(job_file, checkpoints(job_file), *other).good
    anew = report_of(job_file, checkpoints(job_file), *left_out, *other, "--zephon.seed=6")
    assert anew.good and "Warning" not in check_text(anew)


def test_leaving_the_loader_out_does_not_help_a_checkpoint_that_cannot_be_loaded(
    job_file: Path, tmp_path: Path
) -> None:
    left_out = ("--checkpoint.exclude_from_loading", '["dataloader"]')
    foreign = save(tmp_path / "step-4", {"model": {"w": 1}})
    [problem] = report_of(job_file, foreign, *left_out).problems
    assert "holds the model only" in problem
    stock = save(tmp_path / "step-5", {"dataloader": {"dp_rank_0": b"x"}, "train_state": {"step": 5}})
    assert report_of(job_file, stock, *left_out).good
    assert "another data loader" in report_of(job_file, stock).problems[0]


def test_a_folder_without_a_checkpoint_means_a_new_stream(
    job_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(job_file), "--checkpoint", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith("; begins a new stream\n")
    (tmp_path / "step-7").mkdir()  # its save was cut off
    assert main(["check", str(job_file), "--checkpoint", str(tmp_path)]) == 0
    assert main(["check", str(job_file), "--checkpoint", str(tmp_path / "step-7")]) == 1
    assert "its save was cut off" in " ".join(capsys.readouterr().out.split())
    assert main(["check", str(job_file), "--checkpoint", str(tmp_path / "none")]) == 1
    assert main(["check", str(job_file), "--checkpoint", str(checkpoints(job_file)), "--zephon.seed=6"]) == 1
    assert "seed: 5 -> 6" in capsys.readouterr().out


def test_a_job_that_begins_from_another_runs_checkpoint_says_which(job_file: Path, tmp_path: Path) -> None:
    begin = ("--checkpoint.enable", "--job.dump_folder", str(tmp_path), "--checkpoint.no_initial_load_model_only")
    path = ("--checkpoint.initial_load_path", str(checkpoints(job_file) / "step-1"))
    report = report_of(job_file, tmp_path, *begin, *path)
    text = check_text(report)
    assert report.good and report.would_load == checkpoints(job_file) / "step-1"
    assert "nothing complete is saved there" in text and f"--checkpoint {report.would_load}" in text
    assert "begins a new stream" not in text


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("--checkpoint.enable",),
        ("--checkpoint.enable", "--checkpoint.load_step", "1"),
        ("--checkpoint.enable", "--checkpoint.load_step", "0"),
        ("--checkpoint.enable", "--checkpoint.folder", "none"),
        ("--checkpoint.enable", "--checkpoint.folder", "none", "--checkpoint.initial_load_path", "{folder}/step-1"),
        (
            "--checkpoint.enable", "--checkpoint.folder", "none", "--checkpoint.initial_load_path", "{folder}/step-1",
            "--checkpoint.no_initial_load_model_only",
        ),
    ],
)  # fmt: skip
def test_the_checkpoint_the_job_would_load_is_the_trainers_choice(job_file: Path, overrides: tuple[str, ...]) -> None:
    words = [word.format(folder=checkpoints(job_file)) for word in overrides]
    report = report_of(job_file, None, *words)
    table = {**report.job.sections.get("checkpoint", {})}
    restart = Restart(
        enable=table.get("enable", False),
        folder=job_file.parent / "out" / table.get("folder", "checkpoint"),
        load_step=table.get("load_step", -1),
        initial_load_path=table.get("initial_load_path"),
        initial_load_model_only=table.get("initial_load_model_only", True),
        initial_load_if_no_folder=GENERATION.initial_load_if_no_folder,
        exclude_from_loading=[],
    )
    assert report.would_load == checkpoint_of(report.job, GENERATION) == checkpoint_to_load(restart)
    if report.would_load is not None:
        assert f"the job would load {report.would_load}" in check_text(report)


def test_a_step_to_load_that_is_not_complete_is_told(job_file: Path) -> None:
    report = report_of(job_file, None, "--checkpoint.enable", "--checkpoint.load_step", "9")
    text = check_text(report)
    assert not report.good
    assert "there is no complete checkpoint" in text and text.endswith("; 1 problem")


def test_the_check_leaves_no_file_behind(job_file: Path) -> None:
    before = sorted(job_file.parent.rglob("*"))
    report_of(job_file, checkpoints(job_file), "--zephon.ledger")
    assert sorted(job_file.parent.rglob("*")) == before


def test_the_step_the_job_would_load_is_the_one_checked_in_a_folder_of_steps(job_file: Path) -> None:
    report = report_of(job_file, checkpoints(job_file), "--checkpoint.load_step", "1")
    assert report.resume is not None and report.resume.path.name == "step-1"
    [problem] = report_of(job_file, checkpoints(job_file), "--checkpoint.load_step", "8").problems
    assert re.search(r"no complete checkpoint at .*step-8.*complete there: \[1, 3\]", problem)


def test_a_checkpoint_of_the_model_alone_is_told_with_the_newest_whole_step(job_file: Path, tmp_path: Path) -> None:
    save(tmp_path / "step-4", {"dataloader": state_of(job_file), "train_state": {"step": 3}})
    save(tmp_path / "step-6", {"model": {"w": 1}})
    report = report_of(job_file, tmp_path)
    assert report.resume is not None and not report.good
    assert "holds the model only" in report.resume.problems[0]
    assert "Go on from step 4" in report.resume.problems[0]


def test_a_job_with_nothing_left_to_train_or_that_loads_nothing_is_noted(job_file: Path) -> None:
    done = report_of(job_file, checkpoints(job_file), "--training.steps", "3", "--checkpoint.enable").resume
    assert done is not None and done.notes[0].startswith("training.steps = 3 is no further than the checkpoint")
    off = report_of(job_file, checkpoints(job_file), "--checkpoint.no_enable").resume
    assert off is not None and off.notes[0].startswith("checkpoint.enable is false")


# ---- one list of findings


def refused_by_the_trainer(job: Job) -> str:
    """The first problem that keeps ``job`` from starting on one rank."""
    module = GENERATION.load()
    config = module.build_config(job)
    if OLDER:
        spec = module.spec_of(config)
        start = module.start_of(job, config, spec, 1, lambda: spec.build_tokenizer_fn(config))
    else:
        start = importlib.import_module("torchtitan_zephon.titan.v030").start_of(config, 1)
    with pytest.raises(ZephonError) as error:
        preflight(start)
    return str(error.value)


def large_tokenizer(folder: Path) -> Path:
    tokens = {str(n): {"content": f"<|{n}|>"} for n in range(2000)}
    return adds(folder, config={**NAMED, "added_tokens_decoder": tokens})


SPOILT: dict[str, Any] = {
    "the tokenizer cannot be loaded": lambda folder: ["--model.hf_assets_path", str(folder / "nowhere")],
    "the model has too few ids": lambda folder: ["--model.hf_assets_path", str(large_tokenizer(folder))],
    "a source cannot be opened": lambda folder: ["--zephon.sources.wiki.path", "nowhere"],
    "a record cannot be read": lambda folder: ["--zephon.sources.wiki.field", "body"],
}
SPOILT_CHECKPOINT: dict[str, Any] = {
    "the checkpoint is not whole": lambda state: {"model": {"w": 1}},
    "its loader state cannot be read": lambda state: {"dataloader": {"dp_rank_0": b"x"}, "train_state": {"step": 3}},
    "another job made it": lambda state: {"dataloader": state, "train_state": {"step": 3}},
    "a lane cannot continue": lambda state: {"dataloader": lacking(state), "train_state": {"step": 3}},
    "trainer and stream are at two steps": lambda state: {"dataloader": state, "train_state": {"step": 5}},
}


def test_every_finding_is_provoked_here() -> None:
    assert list(SPOILT) == [finding.name for finding in READING]
    assert list(SPOILT_CHECKPOINT) == [finding.name for finding in RESUME]


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_what_the_trainer_raises_of_the_data_is_what_the_check_tells(
    job_file: Path, tmp_path: Path, spoil: Any
) -> None:
    overrides = spoil(tmp_path)
    told = report_of(job_file, None, *overrides, dp=[1]).problems
    assert [refused_by_the_trainer(job_of(job_file, *overrides))] == list(told)


@pytest.mark.parametrize("name", SPOILT_CHECKPOINT)
def test_what_the_trainer_raises_of_a_checkpoint_is_what_the_check_tells(
    job_file: Path, tmp_path: Path, name: str
) -> None:
    save(tmp_path / "checkpoint" / "step-3", SPOILT_CHECKPOINT[name](state_of(job_file)))
    overrides = ["--job.dump_folder", str(tmp_path), "--checkpoint.enable"]
    if name == "another job made it":
        overrides += ["--zephon.seed", "6", "--training.global_batch_size", "32"]
    told = report_of(job_file, tmp_path, *overrides, dp=[1]).problems
    assert [refused_by_the_trainer(job_of(job_file, *overrides))] == list(told)


def test_of_several_problems_the_trainer_raises_the_one_told_first(job_file: Path) -> None:
    overrides = ["--zephon.sources.wiki.path", "nowhere", "--zephon.sources.news.path", "gone"]
    overrides += ["--zephon.lanes", "10", "--checkpoint.enable"]
    told = report_of(job_file, None, *overrides, dp=[1]).problems
    assert told[0] == f"does not fit on 1 data-parallel ranks: {refused_by_the_trainer(job_of(job_file, *overrides))}"
    told = report_of(job_file, None, *overrides[:4], dp=[1]).problems
    assert len(told) == 2 and told[0] == refused_by_the_trainer(job_of(job_file, *overrides[:4]))
