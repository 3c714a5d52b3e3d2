"""The loader in DCP: 16 ranks save, 8, 32 and 64 load; every global batch is the one of an unbroken run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp

from tests.scenarios import corpus, tokenizer_folder
from torchtitan_zephon import StateError
from torchtitan_zephon.titan.checkpoint import read_loader_state
from torchtitan_zephon.verify import verify

ROOT = Path(__file__).parents[2]
SAVED_AT, STEPS = 3, 6


def run(processes: int, folder: Path, name: str, *arguments: object) -> list[list[str]]:
    """Hashes of the sequences of each global batch, in canonical order, of a torchrun launch."""
    out = folder / name
    out.mkdir()
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes),
        "-m", "tests.titan.dcp_rank", str(folder / "data"), str(tokenizer_folder()), str(out), *map(str, arguments),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads(file.read_text()) for file in sorted(out.glob("*.json"))]
    assert len(ranks) == processes
    coordinates = {rank["coordinate"]: rank["steps"] for rank in ranks}
    assert all(coordinates[rank["coordinate"]] == rank["steps"] for rank in ranks), "peers were given different data"
    ordered = [coordinates[c] for c in sorted(coordinates)]
    return [[h for steps in ordered for h in steps[t]] for t in range(len(ordered[0]))]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[str]]]:
    """A folder with the checkpoint of 16 ranks at step 3, and the global batches of an unbroken run."""
    folder = tmp_path_factory.mktemp("dcp")
    corpus(folder / "data", 600)
    straight = run(1, folder, "straight", STEPS)
    before = run(16, folder, "sixteen", SAVED_AT, "--save", folder / "checkpoint")
    assert before == straight[:SAVED_AT]
    return folder, straight


@pytest.mark.parametrize("processes", [8, 32, 64])
def test_a_checkpoint_of_16_ranks_continues_on_another_number(
    saved: tuple[Path, list[list[str]]], processes: int
) -> None:
    folder, straight = saved
    arguments = (STEPS - SAVED_AT, "--load", folder / "checkpoint", "--save", folder / f"again-{processes}")
    assert run(processes, folder, str(processes), *arguments) == straight[SAVED_AT:]


def test_two_peers_of_a_data_coordinate_get_the_same_and_save_it_once(saved: tuple[Path, list[list[str]]]) -> None:
    folder, straight = saved
    arguments = (STEPS - SAVED_AT, "--load", folder / "checkpoint", "--save", folder / "peers", "--peers", 2)
    assert run(8, folder, "peers-out", *arguments) == straight[SAVED_AT:]
    keys = list(dcp.FileSystemReader(str(folder / "peers")).read_metadata().state_dict_metadata)
    assert sorted(keys) == sorted({"dataloader.stream", *(f"dataloader.lane.{n:05d}" for n in range(64))})


def test_checkpoints_of_two_runs_are_compared_without_data(saved: tuple[Path, list[list[str]]]) -> None:
    folder, _ = saved
    run(2, folder, "two", STEPS - SAVED_AT, "--load", folder / "checkpoint", "--save", folder / "end-2")
    run(4, folder, "four", STEPS - SAVED_AT, "--load", folder / "checkpoint", "--save", folder / "end-4")
    assert verify(folder / "end-2", folder / "end-4").same
    assert "step 3 against step 6" in verify(folder / "checkpoint", folder / "end-4").text


def test_the_state_of_all_lanes_is_read_by_one_process(saved: tuple[Path, list[list[str]]]) -> None:
    folder, _ = saved
    state = read_loader_state(folder / "checkpoint")
    assert len(state["lane"]) == 64
    assert all(json.loads(v)["sequences"] == SAVED_AT for v in state["lane"].values())


def save(state: dict[str, object], folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        dcp.save(state, checkpoint_id=folder, no_dist=True)


def test_a_checkpoint_without_loader_state_is_refused_with_the_way_out(tmp_path: Path) -> None:
    save({"model": {"w": 1}}, tmp_path / "model-only")
    with pytest.raises(StateError, match=r"no loader state.*exclude_from_loading dataloader"):
        read_loader_state(tmp_path / "model-only")


def test_a_checkpoint_of_another_loader_is_refused_with_the_way_out(tmp_path: Path) -> None:
    save({"dataloader": {"dp_rank_0": b"x", "world_size": 4}}, tmp_path / "stock")
    with pytest.raises(StateError, match=r"another data loader.*exclude_from_loading dataloader"):
        read_loader_state(tmp_path / "stock")
