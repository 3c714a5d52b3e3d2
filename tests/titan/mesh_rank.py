"""One process of tests/titan/test_mesh.py: loader, TorchTitan's own mesh and DCP, no model. Run under torchrun.

    torchrun ... -m tests.titan.mesh_rank DATA TOKENIZER OUT

Goes through ``MESHES``: on each, the loader of this process's data coordinate gives ``STEPS`` steps and is
saved with DCP; the next mesh loads that. Writes OUT/<rank>.json: for each mesh the coordinate, and
the hash of each sequence by step.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

from torchtitan_zephon.titan import cpu

cpu.activate()  # TorchTitan looks for its device when it is imported

# ruff: noqa: E402
import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torchtitan.components.tokenizer import HuggingFaceTokenizer
from torchtitan.distributed import ParallelDims

from tests.titan.scenarios import VERSION, build
from torchtitan_zephon import Recipe, RunSettings, SourceConfig
from torchtitan_zephon.titan.feed import Feed

PROCESSES, STEPS, BATCH, SEQ_LEN = 8, 2, 16, 32
MESHES: dict[str, tuple[dict[str, int], int]] = {
    "FSDP 8": ({"dp_shard": 8}, 2),
    "DDP 8": ({"dp_replicate": 8}, 1),
    "dp 4 x TP 2": ({"dp_shard": 4, "tp": 2}, 4),
    "dp 2 x TP 4": ({"dp_shard": 2, "tp": 4}, 1),
    "HSDP 2x2 x TP 2": ({"dp_replicate": 2, "dp_shard": 2, "tp": 2}, 2),
    "dp 4 x PP 2, micro-batches of 1": ({"dp_shard": 4, "pp": 2}, 1),
    "dp 4 x CP 2": ({"dp_shard": 4, "cp": 2}, 2),
    "HSDP 2x2 x CP 2": ({"dp_replicate": 2, "dp_shard": 2, "cp": 2}, 4),
    "dp 2 x PP 2 x TP 2": ({"dp_shard": 2, "pp": 2, "tp": 2}, 2),
    "dp 2 x CP 2 x TP 2": ({"dp_shard": 2, "cp": 2, "tp": 2}, 8),
    "PP 2 x CP 2 x TP 2": ({"pp": 2, "cp": 2, "tp": 2}, 4),
    "TP 8": ({"tp": 8}, 16),
}
"""Mesh sizes, and the local batch (with PP what 0.3.0 gives the loader: the micro-batch)."""


def recipe(data: Path) -> Recipe:
    sources = {path.stem: SourceConfig(path=str(path)) for path in sorted(data.iterdir())}
    return Recipe(sources=sources, lanes=16, chunk_bytes=4096, flush_every_sequences=6, shuffle_buffer_sequences=8)


def coordinate(sizes: dict[str, int]) -> tuple[int, int]:
    """Size of the mesh named ``batch`` and this process's place in it, as the trainers find them."""
    names = ("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep")
    every: dict[str, Any] = {name: sizes.get(name, 1) for name in names}
    if VERSION == "0.2.2":
        every["etp"] = 1
    dims = ParallelDims(**every, world_size=PROCESSES)
    if dims.dp_replicate * dims.dp_shard == 1:
        return 1, 0
    mesh = dims.get_mesh("batch")
    return mesh.size(), mesh.get_local_rank()


def main() -> None:
    data, tokenizer_folder, out = map(Path, sys.argv[1:])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tokenizer = HuggingFaceTokenizer(tokenizer_path=str(tokenizer_folder))
    found, before = [], None
    for number, (sizes, local) in enumerate(MESHES.values()):
        random.seed(rank), np.random.seed(rank), torch.manual_seed(rank)  # no generator of a process may matter
        degree, place = coordinate(sizes)
        feed = Feed(recipe=recipe(data), settings=RunSettings(workers=1), global_batch_size=BATCH)
        loader = build(feed, tokenizer, seq_len=SEQ_LEN, local=local, degree=degree, rank=place)
        if before:
            dcp.load({"dataloader": loader}, checkpoint_id=before)
        iterator = iter(loader)
        steps = [[h for _ in range(BATCH // degree // local) for h in sequences(next(iterator))] for _ in range(STEPS)]
        before = str(out / f"checkpoint-{number}")
        dcp.save({"dataloader": loader}, checkpoint_id=before)
        loader.stream.close()
        found.append({"coordinate": place, "degree": degree, "steps": steps})
    (out / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def sequences(batch: Any) -> list[str]:
    """The hash of each row as the model gets it."""
    columns, labels = batch
    tensors = [*columns.values(), labels]
    return [hashlib.sha256(b"".join(t[i].numpy().tobytes() for t in tensors)).hexdigest() for i in range(len(labels))]


if __name__ == "__main__":
    main()
