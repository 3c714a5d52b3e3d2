"""Every mesh: peers of a data coordinate get the same tensors, coordinates share out each step, a change of mesh
continues exactly, and the checkpoint has each lane once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchtitan")

import torch.distributed.checkpoint as dcp
from torchtitan.components.tokenizer import HuggingFaceTokenizer

from tests.scenarios import corpus, tokenizer_folder
from tests.titan.mesh_rank import BATCH, MESHES, PROCESSES, SEQ_LEN, STEPS, recipe, sequences
from tests.titan.scenarios import build, forked
from torchtitan_zephon import RunSettings
from torchtitan_zephon.titan.feed import Feed

pytestmark = pytest.mark.slow
NUMBERS = {name: number for number, name in enumerate(MESHES)}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What eight processes wrote on their way through all meshes; ``data`` is what they read."""
    out = tmp_path_factory.mktemp("mesh")
    corpus(out / "data", 3000)
    code, output = forked(PROCESSES, "tests.titan.mesh_rank", out / "data", tokenizer_folder(), out)
    assert code == 0, output[-4000:]
    return out


@pytest.fixture(scope="module")
def straight(out: Path) -> list[list[str]]:
    """Each step of one process alone, without a stop."""
    feed = Feed(recipe=recipe(out / "data"), settings=RunSettings(), global_batch_size=BATCH)
    loader = build(feed, HuggingFaceTokenizer(tokenizer_path=str(tokenizer_folder())), seq_len=SEQ_LEN, local=BATCH)
    batches = iter(loader)
    steps = [sequences(next(batches)) for _ in range(STEPS * len(MESHES))]
    loader.stream.close()
    return steps


def processes(out: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads((out / f"{rank}.json").read_text())[NUMBERS[name]] for rank in range(PROCESSES)]


@pytest.mark.parametrize("name", MESHES)
def test_a_mesh_is_fed_the_global_batches_of_an_unbroken_run(out: Path, straight: list[list[str]], name: str) -> None:
    sizes, _ = MESHES[name]
    degree = sizes.get("dp_replicate", 1) * sizes.get("dp_shard", 1)
    by_coordinate: dict[int, list[list[str]]] = {}
    for process in processes(out, name):
        assert process["degree"] == degree
        steps = by_coordinate.setdefault(process["coordinate"], process["steps"])
        assert steps == process["steps"], "peers of a coordinate were given different data"
    assert sorted(by_coordinate) == list(range(degree))
    first = STEPS * NUMBERS[name]
    for t in range(STEPS):
        fed = [h for c in range(degree) for h in by_coordinate[c][t]]
        assert fed == straight[first + t]


@pytest.mark.parametrize("name", MESHES)
def test_each_lane_is_in_the_checkpoint_of_a_mesh_once(out: Path, name: str) -> None:
    keys = list(dcp.FileSystemReader(str(out / f"checkpoint-{NUMBERS[name]}")).read_metadata().state_dict_metadata)
    assert sorted(keys) == [f"dataloader.lane.{lane:05d}" for lane in range(16)] + ["dataloader.stream"]
