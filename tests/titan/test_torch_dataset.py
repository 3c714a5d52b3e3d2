"""A pipeline in torchdata's StatefulDataLoader delivers the pipeline's own batches and resumes exactly."""

from __future__ import annotations

import pytest

pytest.importorskip("torchdata")

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from torchtitan_zephon import ConfigError, Dataset, Pipeline, StaticMixtureWorkSource
from torchtitan_zephon.torch_dataset import TorchDataset


def pipeline() -> Pipeline:
    source = StaticMixtureWorkSource(datasets=[Dataset.from_path("books", "demo/data/books")], mixture={"books": 1.0})
    stages = Pipeline(source).tokenize(tokenizer_id="demo/tokenizer").pack_flat(max_length=128)
    return stages.shuffle(buffer_size=16).batch(microbatch_size=2).options(lanes=4, global_batch_size=4)


def loader(num_workers: int = 0) -> StatefulDataLoader:
    return StatefulDataLoader(TorchDataset(pipeline()), batch_size=None, num_workers=num_workers)


def test_a_stateful_data_loader_resumes_where_it_was_saved() -> None:
    direct = iter(pipeline())
    expected = [torch.from_numpy(next(direct).input) for _ in range(12)]
    first = loader()
    batches = iter(first)
    for k in range(6):
        assert torch.equal(next(batches)["input"], expected[k])
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    rest = iter(second)
    for k in range(6, 12):
        assert torch.equal(next(rest)["input"], expected[k])


def test_worker_processes_are_refused() -> None:
    with pytest.raises(ConfigError, match="worker processes would each deliver the whole stream"):
        next(iter(loader(2)))
