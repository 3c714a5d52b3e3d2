"""One data-parallel rank of tests/titan/test_dcp.py: loader and DCP, no model. Run under torchrun.

    torchrun ... -m tests.titan.dcp_rank DATA TOKENIZER OUT STEPS [--load CHECKPOINT] [--save CHECKPOINT] [--peers P]

Writes OUT/<rank>.json: for every step, the hash of each of this rank's sequences in order. With
``--peers P``, P processes in a row share a data coordinate, as tensor-parallel peers do.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from tests.scenarios import rank_steps, row_bytes, small_pipeline

LANES = BATCH = 64


def sources_in(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.iterdir())}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("data", "tokenizer", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("--load")
    parser.add_argument("--save")
    parser.add_argument("--peers", type=int, default=1)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, degree = dist.get_rank() // options.peers, dist.get_world_size() // options.peers
    pipeline = small_pipeline(
        sources_in(options.data), lanes=LANES, global_batch_size=BATCH, local_batch_size=1, workers=1,
        tokenizer=options.tokenizer,
    )  # fmt: skip
    stream = pipeline.for_rank(rank, degree)
    if options.load:
        dcp.load({"dataloader": stream}, checkpoint_id=options.load)
    hashes = [
        [hashlib.sha256(row_bytes(batch, 0)).hexdigest() for batch in step]
        for step in rank_steps(stream, options.steps)
    ]
    if options.save:
        dcp.save({"dataloader": stream}, checkpoint_id=options.save)
    stream.close()
    (options.out / f"{dist.get_rank():03d}.json").write_text(json.dumps({"coordinate": rank, "steps": hashes}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
