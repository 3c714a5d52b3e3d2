"""A pipeline for `torch.utils.data` and torchdata's ``StatefulDataLoader``; imports torch, so not by default.

What flows in: a ``Pipeline`` or what its ``for_rank`` returns. What flows out: dicts of int64 tensors
``input``, ``labels``, ``positions``, each [local batch, seq_len]. The batches are made already, so
the loader is given ``batch_size=None``. Reading and tokenising run on the pipeline's own threads, so
``num_workers`` stays 0; torchdata's workers would take a state in the middle of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from .errors import ConfigError
from .pipeline import Pipeline
from .run.stream import RankStream


class TorchDataset(IterableDataset[dict[str, torch.Tensor]]):
    """``StatefulDataLoader(TorchDataset(pipeline), batch_size=None)``; its state is the pipeline's."""

    def __init__(self, pipeline: Pipeline | RankStream) -> None:
        self._pipeline = pipeline

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        if (worker := get_worker_info()) is not None:
            raise ConfigError(
                f"num_workers = {worker.num_workers}: worker processes would each deliver the whole stream. Use "
                "num_workers=0, and more threads: Pipeline.options(workers=N)."
            )
        for batch in self._pipeline:
            yield {name: torch.from_numpy(column) for name, column in batch.columns.items()}

    def state_dict(self) -> dict[str, Any]:
        """Where the pipeline stands."""
        return self._pipeline.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go there."""
        self._pipeline.load_state_dict(state)
