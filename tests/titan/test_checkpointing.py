"""TorchTitan's checkpoint settings and what can befall a checkpoint folder: exact continuation, or a readable refusal.

The real trainer under torchrun; in this process where only the choice of the folder is in question.
"""

from __future__ import annotations

import json
import os
import shutil
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchtitan")

import torch.distributed.checkpoint as dcp

from tests.titan.scenarios import ROOT, VERSION, hashes, job_folder, refused, torchrun, train, trained
from torchtitan_zephon.errors import StateError
from torchtitan_zephon.ledger import read_ledger
from torchtitan_zephon.titan.checkpoint import (
    Restart,
    check_files,
    checkpoint_to_load,
    complete_steps,
    latest_step,
    read_loader_state,
)

pytestmark = pytest.mark.slow
STOP, STEPS = 3, 5
SAVE_ALL = ("--training.local_batch_size", "8", "--checkpoint.interval", "1", "--checkpoint.keep_latest_k", "0")
only_030 = pytest.mark.skipif(VERSION != "0.3.0", reason="0.2.2 has one checkpointer")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return job_folder(tmp_path_factory.mktemp("checkpointing"))


@pytest.fixture(scope="module")
def straight(folder: Path) -> dict[int, str]:
    """The global batches of one rank, straight through."""
    trained(folder, folder / "straight", 1, "--training.local_batch_size", "8", steps=STEPS)
    return hashes(folder / "straight")


@pytest.fixture(scope="module")
def stopped(folder: Path) -> Path:
    """The checkpoints of every step of a run of two ranks that stopped at step 3."""
    trained(folder, folder / "stopped", 2, *SAVE_ALL, steps=STOP)
    assert complete_steps(folder / "stopped" / "checkpoint") == [1, 2, 3]
    return folder / "stopped"


@pytest.fixture
def dump(stopped: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of that run."""
    copy = stopped.parent / request.node.name
    shutil.copytree(stopped, copy)
    return copy


def checkpoint(dump: Path, step: int) -> Path:
    return dump / "checkpoint" / f"step-{step}"


def continues(output: str, step: int) -> bool:
    """Whether the trainer and our loader both went on behind ``step``."""
    return f"zephon: continuing behind step {step}" in output and f"Training starts at step {step + 1}" in output


# ---- what TorchTitan keeps, and from where it goes on


def test_purged_steps_and_a_model_only_last_one_leave_a_way_to_go_on_exactly(
    folder: Path, straight: dict[int, str]
) -> None:
    dump, settings = folder / "purged", ("--training.local_batch_size", "8", "--checkpoint.interval", "1")
    kept = (*settings, "--checkpoint.keep_latest_k", "2")
    trained(folder, dump, 2, *kept, "--checkpoint.last_save_model_only", steps=STOP + 1)
    assert complete_steps(dump / "checkpoint") == [2, 3, 4], "two of the interval, and the last"
    text = refused(folder, dump, 1, *kept)
    assert "step-4' holds the model only" in text
    assert "Go on from step 3, the newest saved whole: --checkpoint.load_step 3." in text
    text = refused(folder, dump, 1, *kept, "--checkpoint.exclude_from_loading", "dataloader")
    assert "step-4' holds the model only" in text
    output = trained(folder, dump, 1, *kept, "--checkpoint.load_step", "3", steps=STEPS)
    assert continues(output, 3)
    assert "has step 4. Saves will write over these in place" in output
    assert complete_steps(dump / "checkpoint") == [3, 4, 5]
    assert hashes(dump) == straight


def test_an_older_step_is_gone_on_from_exactly(folder: Path, dump: Path, straight: dict[int, str]) -> None:
    output = trained(folder, dump, 1, *SAVE_ALL, "--checkpoint.load_step", "2", steps=STEPS)
    assert continues(output, 2)
    assert "has step 3. Saves will write over these in place" in output
    assert hashes(dump) == straight


def test_a_new_stream_behind_trained_weights_is_remembered_and_gone_on_with(folder: Path, dump: Path) -> None:
    seed = ("--training.local_batch_size", "8", "--zephon.seed", "9")
    output = trained(folder, dump, 1, *seed, "--checkpoint.exclude_from_loading", "dataloader", steps=STOP + 1)
    assert f"Training starts at step {STOP + 1}" in output
    stream = json.loads(read_loader_state(checkpoint(dump, STOP + 1))["stream"])
    assert (stream["first_step"], stream["step"]) == (STOP, 1)
    output = trained(folder, dump, 2, *seed, steps=STEPS)
    assert f"Training starts at step {STOP + 2}" in output
    stream = json.loads(read_loader_state(checkpoint(dump, STEPS))["stream"])
    assert (stream["first_step"], stream["step"]) == (STOP, STEPS - STOP)
    trained(folder, folder / "seed-9", 1, *seed, steps=STEPS - STOP)
    alone = [record.sha256 for _, record in sorted(read_ledger(folder / "seed-9" / "ledger").items())]
    name = next((folder / "seed-9" / "ledger").iterdir()).name
    assert [record.sha256 for _, record in sorted(read_ledger(dump / "ledger" / name).items())] == alone


def test_another_runs_checkpoint_is_gone_on_from_in_a_new_folder(
    folder: Path, stopped: Path, straight: dict[int, str]
) -> None:
    dump = folder / "initial"
    whole = ("--checkpoint.initial_load_path", str(checkpoint(stopped, 2)), "--checkpoint.no_initial_load_model_only")
    (dump / "checkpoint" / "step-1").mkdir(parents=True)  # what a first save leaves that was cut off
    job = (folder, dump, 1, "--training.local_batch_size", "8", *whole)
    if VERSION == "0.2.2":
        text = refused(*job)
        assert "exists without a complete checkpoint" in text and "train from random weights" in text
        shutil.rmtree(dump / "checkpoint")
    output = trained(*job, steps=STEPS)
    assert continues(output, 2)
    assert hashes(dump) == {step: straight[step] for step in range(3, STEPS + 1)}


# ---- damage


def test_a_step_whose_save_was_cut_off_is_passed_over_aloud(folder: Path, dump: Path, straight: dict[int, str]) -> None:
    (checkpoint(dump, 3) / ".metadata").unlink()
    output = trained(folder, dump, 1, *SAVE_ALL, steps=STEPS)
    assert "step-3 has no .metadata (its save was cut off); it is passed over" in output
    assert continues(output, 2)
    assert hashes(dump) == straight


def test_an_empty_file_is_refused_by_name(folder: Path, dump: Path) -> None:
    file = checkpoint(dump, 3) / "__1_0.distcp"
    size = file.stat().st_size
    file.write_bytes(b"")
    text = refused(folder, dump, 1)
    assert f"step-3' is damaged: __1_0.distcp has 0 bytes of {size}" in text
    assert "--checkpoint.load_step N" in text


def test_a_file_that_is_short_of_a_few_bytes_is_refused_by_name(stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint(stopped, 3), tmp_path / "step-3")
    check_files(tmp_path / "step-3")
    file = tmp_path / "step-3" / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(StateError, match=r"__0_0\.distcp has \d+ bytes of \d+, so it was cut short"):
        check_files(tmp_path / "step-3")
    file.unlink()
    with pytest.raises(StateError, match=r"__0_0\.distcp is missing"):
        check_files(tmp_path / "step-3")


def test_a_trainer_and_a_loader_of_two_moments_are_refused_with_both_steps(folder: Path, dump: Path) -> None:
    state: dict[str, Any] = {"dataloader": read_loader_state(checkpoint(dump, 3)), "train_state": {"step": 2}}
    shutil.rmtree(checkpoint(dump, 3))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        dcp.save(state, checkpoint_id=checkpoint(dump, 3), no_dist=True)
    text = refused(folder, dump, 1)
    assert "has the trainer behind step 2 and the data stream behind its step 3" in text


# ---- other loaders, other checkpointers


def stock_run(folder: Path, dump: Path) -> None:
    """Two steps of the stock trainer on its own loader, with a checkpoint of all."""
    flags = """
        --training.steps 2 --training.seq_len 32 --training.local_batch_size 8 --training.mixed_precision_param float32
        --checkpoint.enable --checkpoint.interval 100 --checkpoint.no-last-save-model-only
    """
    if VERSION == "0.2.2":
        flags += f"""
            --job.dump_folder {dump} --model.name llama3 --model.flavor debugmodel
            --model.hf_assets_path {ROOT}/demo/tokenizer --activation_checkpoint.mode none
            --training.dataset c4_test --training.dataset_path {folder}/data/books
        """
    else:
        flags += f"""
            --module tests.titan.stock_on_cpu --config llama3 --dump_folder {dump} --training.disable_cuda_graphs
            --hf_assets_path {ROOT}/demo/tokenizer --parallelism.spmd_backend partial_dtensor
            --dataloader.dataset c4_test --dataloader.dataset_path {folder}/data/books
        """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(dump))
        code, output = torchrun(1, "tests.titan.stock_on_cpu", *flags.split())
    assert code == 0, output[-4000:]


def test_a_checkpoint_of_the_stock_loader_is_refused_with_the_way_out(folder: Path) -> None:
    dump = folder / "stock"
    stock_run(folder, dump)
    text = refused(folder, dump, 1)
    assert "was made by another data loader (keys: dataloader." in text
    assert "To train on with a new stream: --checkpoint.exclude_from_loading dataloader." in text
    way_out = ("--training.local_batch_size", "8", "--checkpoint.exclude_from_loading", "dataloader")
    assert "Training starts at step 3" in trained(folder, dump, 1, *way_out, steps=3)


OTHER_CHECKPOINTER = """
    from dataclasses import dataclass

    from torchtitan.components.checkpointer import BaseCheckpointManager, CheckpointManager
    from torchtitan.config.override import override

    class Other(BaseCheckpointManager):
        @dataclass(kw_only=True, slots=True)
        class Config(BaseCheckpointManager.Config):
            pass

        def __init__(self, config, **states):
            self.enable, self.save_future = config.enable, None

        def _nothing(self, *arguments, **settings):
            pass

        _load = _save = _wait_for_saving = _maybe_wait_for_staging = _close = _nothing

    @override(target=CheckpointManager.Config, fqns=["checkpoint"], description="not DCP")
    def other(config):
        return Other.Config(enable=config.enable)
"""
"""Another checkpointer. 0.3.0's own second one cannot stand here: the ``torch_checkpointing`` that pip installs lacks a
module it imports, and its save and load are yet to be written."""


@only_030
def test_a_checkpointer_other_than_dcp_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other_checkpointer.py").write_text(textwrap.dedent(OTHER_CHECKPOINTER))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    code, output = train(folder, folder / "other", 1, "--override.imports", "other_checkpointer.other")
    assert code != 0
    assert "Training starts" not in output
    assert "checkpoint is of type Other.Config, whose checkpoints this loader cannot check" in " ".join(output.split())


# ---- the choice of the folder


def restart(folder: Path, **settings: Any) -> Restart:
    defaults: dict[str, Any] = {
        "enable": True, "folder": folder, "load_step": -1, "initial_load_path": None, "initial_load_model_only": True,
        "exclude_from_loading": [], "initial_load_if_no_folder": False,
    }  # fmt: skip
    return Restart(**{**defaults, **settings})


def test_a_folder_set_aside_under_a_name_with_step_is_the_newest_as_for_torchtitan(tmp_path: Path) -> None:
    for name in ("step-2", "step-9.bad"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".metadata").touch()
    assert latest_step(tmp_path) == 9
    with pytest.raises(StateError, match=r"no complete checkpoint at .*step-9'.*complete there: \[2\]"):
        checkpoint_to_load(restart(tmp_path))


def test_a_hugging_face_export_as_the_last_step_is_refused_as_model_only(tmp_path: Path) -> None:
    (tmp_path / "step-4").mkdir()
    (tmp_path / "step-4" / "model.safetensors.index.json").touch()
    path = checkpoint_to_load(restart(tmp_path))
    assert path == tmp_path / "step-4"
    with pytest.raises(StateError, match=r"holds the model only .* No step beside it was saved whole"):
        check_files(path)


@pytest.mark.parametrize("model_only", [True, False])
def test_an_initial_checkpoint_that_a_cut_off_first_save_would_hide_is_never_lost_in_silence(
    tmp_path: Path, model_only: bool
) -> None:
    settings = {"initial_load_path": str(tmp_path / "other"), "initial_load_model_only": model_only}
    chosen = None if model_only else tmp_path / "other"
    for only_without_folder in (True, False):  # 0.2.2, 0.3.0
        fresh = restart(tmp_path / "none", **settings, initial_load_if_no_folder=only_without_folder)
        assert checkpoint_to_load(fresh) == chosen
    (tmp_path / "step-1").mkdir()
    assert checkpoint_to_load(restart(tmp_path, **settings)) == chosen
    with pytest.raises(StateError, match="train from random weights"):
        checkpoint_to_load(restart(tmp_path, **settings, initial_load_if_no_folder=True))
