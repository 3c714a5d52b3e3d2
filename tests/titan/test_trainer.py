"""The real trainer on a CPU: stopped, resumed on other rank counts, refused where it must be."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torchtitan")

from torchtitan.components.tokenizer import HuggingFaceTokenizer

from tests.titan.scenarios import ROOT, STOCK_RECIPE, VERSION, build, hashes, job_folder, refused, torchrun, trained
from torchtitan_zephon import RunSettings
from torchtitan_zephon.titan.checkpoint import read_loader_state
from torchtitan_zephon.titan.feed import Feed
from torchtitan_zephon.titan.job import parse_job
from torchtitan_zephon.verify import verify

pytestmark = pytest.mark.slow
STEPS, STOP = 8, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return job_folder(tmp_path_factory.mktemp("trainer"))


@pytest.fixture(scope="module")
def stopped(folder: Path) -> Path:
    """The run of 4 ranks that stopped at step 4 with a checkpoint."""
    trained(folder, folder / "stopped", 4, steps=STOP)
    return folder / "stopped"


@pytest.fixture(scope="module")
def straight(folder: Path) -> dict[int, str]:
    """The global batches of 4 ranks, straight through."""
    trained(folder, folder / "straight", 4, "--metrics.enable_tensorboard")
    return hashes(folder / "straight")


@pytest.mark.parametrize("processes", [2, 8])
def test_a_run_of_4_ranks_goes_on_exactly_on_another_number(
    folder: Path, stopped: Path, straight: dict[int, str], processes: int
) -> None:
    dump = folder / f"resumed-{processes}"
    shutil.copytree(stopped, dump)
    output = trained(folder, dump, processes)
    assert f"Training starts at step {STOP + 1}" in output
    assert sorted(straight) == list(range(1, STEPS + 1))
    assert hashes(dump) == straight


def test_a_run_resumed_twice_on_other_ranks_goes_on_exactly(
    folder: Path, stopped: Path, straight: dict[int, str]
) -> None:
    dump = folder / "twice"
    shutil.copytree(stopped, dump)
    trained(folder, dump, 2, steps=STOP + 1)
    trained(folder, dump, 1, "--training.local_batch_size", "8", steps=STOP + 3)
    assert hashes(dump) == {step: straight[step] for step in range(1, STOP + 4)}
    assert verify(dump, folder / "straight").same


def test_tensor_parallel_peers_share_a_data_rank_and_save_each_lane_once(
    folder: Path, stopped: Path, straight: dict[int, str]
) -> None:
    dump = folder / "tensor-parallel"
    shutil.copytree(stopped, dump)
    trained(folder, dump, 4, "--parallelism.tensor_parallel_degree", "2", steps=STOP + 1)
    assert hashes(dump) == {step: straight[step] for step in range(1, STOP + 2)}
    assert len(list((dump / "ledger").rglob("*-of-2.*"))) == 4, "four processes fed two shares"
    state = read_loader_state(dump / "checkpoint" / f"step-{STOP + 1}")
    assert sorted(state["lane"]) == [f"{lane:05d}" for lane in range(16)]


@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param(("data_parallel_replicate_degree", "2"), id="HSDP 2x2"),
        pytest.param(
            ("pipeline_parallel_degree", "2"),
            id="PP 2 x FSDP 2",
            marks=pytest.mark.skipif(VERSION == "0.3.0", reason="its pipeline call needs a newer torch"),
        ),
    ],
)
def test_a_run_goes_on_exactly_on_another_mesh(
    folder: Path, stopped: Path, straight: dict[int, str], mesh: tuple[str, str]
) -> None:
    dump = folder / mesh[0]
    shutil.copytree(stopped, dump)
    changed = (f"--parallelism.{mesh[0]}", mesh[1], "--training.local_batch_size", "2")
    trained(folder, dump, 4, *changed, steps=STOP + 1)
    assert hashes(dump) == {step: straight[step] for step in range(1, STOP + 2)}


def test_the_loader_s_figures_are_in_the_trainer_s_own_log(folder: Path, straight: dict[int, str]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [events] = (folder / "straight").rglob("events.out.tfevents.*")
    log = EventAccumulator(str(events)).Reload()
    figures = {name: [e.value for e in log.Scalars(name)] for name in log.Tags()["scalars"]}
    ours = {name for name in figures if name.startswith("zephon/")}
    kinds = ("share", "share_error", "epoch", "estimate_error", "bad_records", "packed_share")
    sources = {f"zephon/{kind}/{name}" for kind in kinds for name in ("books", "docs")}
    plain = {"data_wait_seconds", "tokens_per_second", "ready_sequences", "restore_seconds"}
    assert ours == sources | {f"zephon/{name}" for name in plain}
    assert all(len(values) == STEPS for name, values in figures.items() if name in ours)
    for wait, books, docs in zip(
        figures["zephon/data_wait_seconds"], figures["zephon/share/books"], figures["zephon/share/docs"], strict=True
    ):
        assert wait > 0
        assert books + docs == pytest.approx(1)
    assert figures["zephon/share_error/books"][-1] == pytest.approx(figures["zephon/share/books"][-1] - 0.6, abs=1e-5)
    assert figures["zephon/epoch/docs"] == sorted(figures["zephon/epoch/docs"])
    assert figures["zephon/restore_seconds"] == [0] * STEPS
    # The rank that logs says of all four what one process that feeds all lanes would say, step by step.
    assert figures["zephon/share/books"] == pytest.approx(shares_of_all_lanes(folder), rel=1e-6)


def shares_of_all_lanes(folder: Path) -> list[float]:
    """Share of the first source in what a single process is handed up to each step of the job."""
    job = parse_job(["--job.config_file", str(folder / "straight.toml")], STOCK_RECIPE)
    feed = Feed(recipe=job.recipe, settings=RunSettings(), global_batch_size=job.global_batch_size)
    tokenizer = HuggingFaceTokenizer(tokenizer_path=str(ROOT / "demo" / "tokenizer"))
    loader = build(feed, tokenizer, seq_len=32, local=16)
    shares = []
    for _, _ in zip(range(STEPS), loader, strict=False):
        assert loader.stream.figures is not None
        delivered = loader.stream.figures.delivered_tokens
        shares.append(delivered[0] / sum(delivered))
    loader.stream.close()
    return shares


def test_an_asynchronous_save_holds_the_step_it_was_asked_at(folder: Path, straight: dict[int, str]) -> None:
    dump = folder / "async"
    trained(folder, dump, 2, "--checkpoint.async_mode", "async", "--checkpoint.interval", "2", steps=STOP)
    for step in (2, STOP):
        state = read_loader_state(dump / "checkpoint" / f"step-{step}")
        assert json.loads(state["stream"])["step"] == step
        assert {json.loads(lane)["sequences"] for lane in state["lane"].values()} == {step}
    assert hashes(dump) == {step: straight[step] for step in range(1, STOP + 1)}
    trained(folder, dump, 4, "--checkpoint.load_step", "2", steps=STOP + 1)
    assert hashes(dump) == {step: straight[step] for step in range(1, STOP + 2)}


def test_validation_passes_the_set_and_leaves_the_training_stream_alone(folder: Path, straight: dict[int, str]) -> None:
    output = trained(folder, folder / "validated", 2, validate=True)
    assert len(re.findall(r"validate step:", output)) >= 2
    assert hashes(folder / "validated") == straight


def test_changed_data_is_refused_by_name(folder: Path, stopped: Path) -> None:
    shard = folder / "data" / "books" / "persuasion-0.jsonl"
    before = shard.read_bytes()
    middle = before.index(b" the ", len(before) // 2) + 1
    shard.write_bytes(before[:middle] + b"T" + before[middle + 1 :])
    try:
        text = refused(folder, stopped, 2, launcher=torchrun)
    finally:
        shard.write_bytes(before)
    assert "sources.books.shards.persuasion-0.jsonl" in text
    assert "Put these back to continue the same stream" in text


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (("--zephon.lames", "8"), "zephon.lames: no such key. Did you mean 'lanes'?"),
        (("--zephon.lanes", "8"), "lanes: 16 -> 8"),
        (("--zephon.seed", "5"), "seed: 0 -> 5"),
        (("--training.global_batch_size", "32"), "global_batch_size: 16 -> 32"),
        (("--training.seq_len", "64"), "seq_len: 32 -> 64"),
        (("--zephon.sources.docs.weight", "-1"), "the weight of source 'docs' is -1"),
        (("--model.hf_assets_path", "nowhere"), "model.hf_assets_path = 'nowhere' is not a folder"),
        (("--checkpoint.load_step", "2"), "there is no complete checkpoint"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_job_that_cannot_continue_is_refused_before_a_model_is_built(
    folder: Path, stopped: Path, override: tuple[str, ...], said: str
) -> None:
    assert said in refused(folder, stopped, 1, *override)


def test_lanes_that_do_not_divide_are_refused_with_what_works(folder: Path) -> None:
    text = refused(folder, folder / "fresh", 3)
    assert "lanes = 16 cannot be shared out evenly over 3 data-parallel ranks" in text
    assert "With 16 lanes use 2 or 4 ranks" in text


def test_a_validation_layout_that_does_not_divide_is_refused_before_a_model_is_built(folder: Path) -> None:
    text = refused(folder, folder / "fresh-validation", 2, "--zephon.validation.lanes", "7", validate=True)
    assert "lanes = 7 cannot be shared out evenly over 2 data-parallel ranks" in text


def test_a_new_stream_with_the_trained_weights_is_asked_for_by_name(folder: Path, stopped: Path) -> None:
    dump = folder / "new-stream"
    shutil.copytree(stopped, dump)
    trained(folder, dump, 2, "--checkpoint.exclude_from_loading", "dataloader", "--zephon.seed", "9", steps=STOP + 1)
    assert len(list((dump / "ledger").iterdir())) == 2


def test_a_malformed_line_stops_the_job_with_its_place(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text(
        textwrap.dedent("""\
        {"text": "fine"}
        {"text": "not
    """)
    )
    text = refused(folder, folder / "bad", 2, "--zephon.sources.books.path", str(tmp_path / "bad.jsonl"))
    assert "source 'books', shard 'bad.jsonl', line at byte 17: not valid JSON" in text


def test_a_finite_stream_that_ends_early_says_how_far_it_came(folder: Path) -> None:
    held_out = str(folder / "data" / "held_out.jsonl")
    one_pass = ("--zephon.repeat", "false", "--zephon.sources.books.path", held_out, "--checkpoint.no_enable")
    output = trained(folder, folder / "one-pass", 2, *one_pass, "--zephon.sources.docs.path", held_out)
    assert "Ran out of data" in output
    assert re.search(r"zephon: end of data after \d steps; this rank's balance: \d+ records read", output)
    assert len(hashes(folder / "one-pass")) < STEPS


def test_ranks_that_share_lanes_train_on_after_losing_one_and_getting_it_back(
    folder: Path,
) -> None:
    dump = folder / "lost-a-rank"
    shared = ("--zephon.lanes", "4", "--training.global_batch_size", "12", "--zephon.shared_lanes")
    shared = (*shared, "--training.local_batch_size", "1")
    trained(folder, folder / "all-ranks", 4, *shared, steps=5)
    for processes, steps in ((4, 2), (3, 4), (4, 5)):
        trained(folder, dump, processes, *shared, steps=steps)
    assert hashes(dump) == hashes(folder / "all-ranks")
