"""The data loader that TorchTitan is given: a thin coat of torch over ``RankStream``.

What flows in: a ``Feed`` (recipe, run settings, global batch size) and TorchTitan's runtime
arguments. What flows out: batches as int64 tensors [local batch, seq_len] on the CPU, and a state
of plain bytes keyed by lane, which the stock checkpointer saves under ``dataloader`` and hands to
any rank that names the lane. A rank keeps no state that belongs to its number. Each generation
derives its loader from ``StreamLoader``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.tools.logging import logger

from ..config import Recipe, RunSettings
from ..errors import StateError, TokenizerError
from ..metrics import Gauges
from ..ops.tokenize import TokenizerSpec, make_spec
from ..plan.layout import Layout
from ..program import Program, compile_program
from ..run.stream import RankStream
from ..state import NEW_STREAM
from . import training_began

TorchBatch = tuple[dict[str, torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Feed:
    """What a loader reads and in what batches, in either generation of TorchTitan.

    ``infinite`` is False for a validator that passes its set once. ``first_step``: steps the
    trainer has done before the stream begins.
    """

    recipe: Recipe
    settings: RunSettings
    global_batch_size: int
    infinite: bool = True
    first_step: int = 0

    @property
    def effective(self) -> Recipe:
        """The recipe as it is read: once only for a validator that passes its whole set."""
        return dataclasses.replace(self.recipe, repeat=self.recipe.repeat and self.infinite)

    def layout(self, dp_degree: int, dp_rank: int, local_batch_size: int) -> Layout:
        """A rank's layout; ``ConfigError`` if it does not divide. A validation pass takes as small a batch
        as lanes and ranks allow, so that it ends with little padding."""
        lanes = self.recipe.lanes
        size = self.global_batch_size if self.infinite else math.lcm(lanes, dp_degree * local_batch_size)
        return Layout(
            lanes=lanes,
            global_batch_size=size,
            dp_degree=dp_degree,
            dp_rank=dp_rank,
            local_batch_size=local_batch_size,
            shared_lanes=self.settings.shared_lanes,
        )

    def program(self, seq_len: int, tokenizer: BaseTokenizer) -> Program:
        """The compiled program, kept for the life of the process: the start-up check, the loader, and
        the validator (which builds its loader anew every time) ask for the same one."""
        recipe = self.effective
        spec = tokenizer_spec(tokenizer, recipe)
        key = f"{recipe!r} {seq_len} {spec.identity!r}"
        if key not in _programs:
            _programs[key] = compile_program(recipe, seq_len, spec)
        return _programs[key]


_programs: dict[str, Program] = {}


class StreamLoader(BaseDataLoader):
    """Global batch t is the same bytes in the same order, whatever ``dp_world_size`` is."""

    columns: tuple[str, ...] = ("input", "positions")
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
        program = feed.program(seq_len, tokenizer)
        self.stream = RankStream(program, layout, feed.settings, first_step=feed.first_step)
        self.gauges = Gauges(self.stream)
        if dp_rank == 0:
            logger.info(
                "zephon data loader, rank 0 of %d, lanes %s: %s", dp_world_size, layout.own_lanes, program.explain()
            )

    def __iter__(self) -> Iterator[TorchBatch]:
        training_began.set()
        for batch in self.gauges.timed(self.stream):
            columns = {name: torch.from_numpy(getattr(batch, name)) for name in self.columns}
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
        logger.info("zephon: continuing behind step %d", self.stream.step)


def tokenizer_spec(tokenizer: BaseTokenizer, recipe: Recipe) -> TokenizerSpec:
    """The trainer's own tokenizer, with TorchTitan's rule for BOS and EOS."""
    inner: Any = getattr(tokenizer, "tokenizer", None)
    if not hasattr(inner, "encode_batch_fast"):
        raise TokenizerError(
            f"the trainer's tokenizer is a {type(tokenizer).__name__}; only those backed by Hugging Face "
            "`tokenizers` (TorchTitan's HuggingFaceTokenizer) can be used."
        )
    return make_spec(
        inner,
        getattr(tokenizer, "bos_id", None),
        getattr(tokenizer, "eos_id", None),
        add_bos=recipe.add_bos,
        add_eos=recipe.add_eos,
        special_tokens_in_text=recipe.special_tokens_in_text,
    )


class DataMetrics:
    """TorchTitan's metric logger, with the loader's figures beside the trainer's in every line of training."""

    def __init__(self, logger: Any, loader: StreamLoader) -> None:
        self._logger, self._loader = logger, loader

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """Validation lines, which have the same step, pass as they are."""
        if not any(name.startswith("validation_metrics/") for name in metrics):
            metrics = {**metrics, **self._loader.gauges.read()}
        self._logger.log(metrics, step)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)
