"""The data loader that TorchTitan is given: a thin coat of torch over ``RankStream``.

What flows in: a ``Feed`` (recipe, run settings, global batch size) and TorchTitan's runtime
arguments. What flows out: batches as int64 tensors [local batch, seq_len] on the CPU, and a state
of plain bytes keyed by lane, which the stock checkpointer saves under ``dataloader`` and hands to
any rank that names the lane. A rank keeps no state that belongs to its number. Each generation
derives its loader from ``StreamLoader``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.metrics import BaseLogger
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.tools.logging import logger

from ..errors import StateError
from ..metrics import Gauges
from ..run.agree import alone
from ..run.statement import statement
from ..run.stream import RankStream
from ..run.together import open_together
from ..state import NEW_STREAM
from . import training_began
from .feed import Feed
from .ranks import StoreBoard, exchange_of_job

TorchBatch = tuple[dict[str, torch.Tensor], torch.Tensor]


class StreamLoader(BaseDataLoader):
    """Global batch t is the same bytes in the same order, whatever ``dp_world_size`` is."""

    columns: tuple[str, ...]
    """What the model is given, as the stock loader of the generation does; labels come besides."""

    def __init__(
        self,
        feed: Feed,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: BaseTokenizer,
        seq_len: int,
        local_batch_size: int,
    ) -> None:
        layout = feed.layout(dp_world_size, dp_rank, local_batch_size)
        exchange = exchange_of_job()
        program = open_together(
            exchange,
            lambda opening: feed.program(seq_len, tokenizer, opening),
            lambda program: statement(program, layout),
        )
        self.stream = RankStream(program, layout, feed.settings, first_step=feed.first_step, exchange=exchange)
        self.gauges = Gauges(self.stream)
        if dp_rank == 0:
            logger.info(
                "zephon data loader, rank 0 of %d, lanes %s: %s", dp_world_size, layout.own_lanes, program.explain()
            )
            program.warn()

    def __iter__(self) -> Iterator[TorchBatch]:
        training_began.set()
        for batch in self.gauges.timed(self.stream):
            columns = {name: torch.from_numpy(batch.columns[name]) for name in self.columns}
            yield columns, torch.from_numpy(batch.labels)
        logger.info(
            "zephon: end of data after %d steps; this rank's balance: %s", self.stream.step, self.stream.balance
        )

    def state_dict(self) -> dict[str, Any]:
        """See ``RankStream.state_dict``."""
        return self.stream.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raises ``StateError`` if there is nothing to load: a silent fresh start would repeat data."""
        if not state_dict:
            raise StateError(f"the checkpoint has no loader state. {NEW_STREAM}")
        self.stream.load_state_dict(state_dict)
        began = f" of the stream that began behind step {self.stream.first_step}" * (self.stream.first_step > 0)
        logger.info("zephon: continuing behind step %d%s", self.stream.step, began)


class DataMetrics:
    """TorchTitan's metric logger, with the loader's figures beside the trainer's in every line of training."""

    def __init__(self, processor: Any, loader: StreamLoader) -> None:
        """Takes the place of the logger in ``processor``."""
        self._logger, self._loader = processor.logger, loader
        self._logs = type(self._logger) is not BaseLogger  # the one of ranks that do not log
        processor.logger = self
        if loader.stream.exchange is not alone:  # the first batch's exchange lies between these posts and any reading
            loader.gauges.share(StoreBoard(loader.stream.layout), processor.should_log)

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """Validation lines, which have the same step, pass as they are."""
        if self._logs and not any(name.startswith("validation_metrics/") for name in metrics):
            metrics = {**metrics, **self._loader.gauges.read()}
        self._logger.log(metrics, step)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)
