"""torchtitan_zephon from this checkout, as in the README, with 8 lanes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
from worker import Job

from torchtitan_zephon import Dataset, Pipeline, StaticMixtureWorkSource

LANES = 8


class Loader:
    def __init__(self, job: Job, states: list[bytes]) -> None:
        names = {s.name: s for s in job.sources()}
        paths = {n: f"{job.remote}/{n}" if job.remote else str(p) for n, p in names.items()}
        source = StaticMixtureWorkSource(
            datasets=[Dataset.from_path(n, path) for n, path in paths.items()],
            mixture=dict.fromkeys(names, 1.0),
            seed=1,
        )
        self.stream = (
            Pipeline(source)
            .tokenize(tokenizer_id=str(job.tokenizer), parallelism=job.workers)
            .pack_flat(max_length=job.tokens)
            .shuffle(buffer_size=128)
            .batch(microbatch_size=job.rows)
            .options(
                lanes=LANES, global_batch_size=job.rows * job.step_batches * job.world, tokenizer_backend=job.backend
            )
            .for_rank(job.rank, job.world)
        )
        if states:
            # Lanes are separate keys of the checkpoint: a rank gets those it names, whoever saved them.
            saved = [json.loads(s) for s in states]
            lanes = {k: v.encode() for s in saved for k, v in s["lane"].items()}
            wanted = self.stream.state_dict()["lane"]
            self.stream.load_state_dict({"stream": saved[0]["stream"].encode(), "lane": {k: lanes[k] for k in wanted}})

    def __iter__(self) -> Iterator[np.ndarray]:
        for batch in self.stream:
            yield batch.input

    def state(self) -> bytes:
        state = self.stream.state_dict()
        return json.dumps(
            {"stream": state["stream"].decode(), "lane": {k: v.decode() for k, v in state["lane"].items()}}
        ).encode()

    def close(self) -> None:
        self.stream.close()
