"""TorchTitan 0.3.0's stock text loader for several sources. It shuffles nothing; it mixes packed sequences."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import numpy as np
from datasets import load_dataset
from torchtitan.components.tokenizer import HuggingFaceTokenizer
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS, HFDataSource, InterleavedHuggingFaceTextDataLoader
from worker import Job


def _load(path: str) -> object:
    return load_dataset("json", data_files=f"{path}/*.jsonl", split="train", streaming=True)


def _text(record: dict[str, str]) -> str:
    return record["text"]


class Loader:
    def __init__(self, job: Job, states: list[bytes]) -> None:
        for folder in job.sources():
            DATASETS[folder.name] = DatasetConfig(path=str(folder), loader=_load, sample_processor=_text)
        config = InterleavedHuggingFaceTextDataLoader.Config(
            sources=[HFDataSource(dataset=f.name, weight=1) for f in job.sources()], num_workers=job.workers
        )
        self.loader = config.build(
            dp_world_size=job.world,
            dp_rank=job.rank,
            tokenizer=HuggingFaceTokenizer(tokenizer_path=str(job.tokenizer)),
            seq_len=job.tokens,
            local_batch_size=job.rows,
            snapshot_every_n_steps=1,
        )
        if states:
            self.loader.load_state_dict({k: v for s in states for k, v in pickle.loads(s).items()})

    def __iter__(self) -> Iterator[np.ndarray]:
        for inputs, _ in self.loader:
            yield inputs["input"].numpy()

    def state(self) -> bytes:
        return pickle.dumps(self.loader.state_dict())

    def close(self) -> None:
        del self.loader
