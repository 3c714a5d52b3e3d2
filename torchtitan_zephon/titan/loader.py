"""The data loader that TorchTitan 0.3.0 builds: a thin coat of torch over ``RankStream``.

What flows in: TorchTitan's runtime arguments and a ``Config`` with the recipe. What flows out:
``({"input", "positions"}, labels)`` as int64 tensors [local batch, seq_len] on the CPU, and a
state of plain bytes keyed by lane, which the stock checkpointer saves under ``dataloader`` and
hands to any rank that names the lane. A rank keeps no state that belongs to its number.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Annotated, Any

import torch
import tyro
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.tools.logging import logger

from ..config import Recipe, RunSettings
from ..errors import ConfigError, StateError, TokenizerError
from ..ops.tokenize import TokenizerSpec, make_spec
from ..plan.layout import Layout
from ..program import Program, compile_program
from ..run.stream import RankStream
from ..state import NEW_STREAM

TorchBatch = tuple[dict[str, torch.Tensor], torch.Tensor]


class ZephonDataLoader(BaseDataLoader):
    """Global batch t is the same bytes in the same order, whatever ``dp_world_size`` is."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        recipe: Annotated[Recipe | None, tyro.conf.Suppress] = None
        """What is read; see the [zephon] table."""

        settings: Annotated[RunSettings, tyro.conf.Suppress] = RunSettings()
        """How fast; none of it changes the stream."""

        global_batch_size: int = -1
        """Copied from training.global_batch_size, which TorchTitan does not pass to a loader."""

        infinite: bool = True
        """Whether to repeat for ever. The stock validator sets it: False if its steps are -1."""

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: BaseTokenizer,
        seq_len: int,
        local_batch_size: int,
        snapshot_every_n_steps: int | None = None,
    ) -> None:
        if config.recipe is None:
            raise ConfigError(
                "the data loader was given no recipe; write a [zephon] table with sources in the job file."
            )
        recipe = effective_recipe(config)
        layout = layout_for(config, dp_world_size, dp_rank, local_batch_size)
        program = compiled(recipe, seq_len, tokenizer_spec(tokenizer, recipe))
        self.stream = RankStream(program, layout, config.settings)
        if dp_rank == 0:
            logger.info(
                "zephon data loader, rank 0 of %d, lanes %s: %s", dp_world_size, layout.own_lanes, program.explain()
            )

    def __iter__(self) -> Iterator[TorchBatch]:
        for batch in self.stream:
            yield (
                {"input": torch.from_numpy(batch.input), "positions": torch.from_numpy(batch.positions)},
                torch.from_numpy(batch.labels),
            )
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


def effective_recipe(config: ZephonDataLoader.Config) -> Recipe:
    """The recipe as it is read: once only for a validator that passes its whole set."""
    assert config.recipe is not None
    return dataclasses.replace(config.recipe, repeat=config.recipe.repeat and config.infinite)


def layout_for(config: ZephonDataLoader.Config, dp_degree: int, dp_rank: int, local_batch_size: int) -> Layout:
    """A rank's layout; ``ConfigError`` if it does not divide. A validation pass takes as small a batch
    as lanes and ranks allow, so that it ends with little padding."""
    lanes = effective_recipe(config).lanes
    batch = config.global_batch_size if config.infinite else math.lcm(lanes, dp_degree * local_batch_size)
    return Layout(
        lanes=lanes,
        global_batch_size=batch,
        dp_degree=dp_degree,
        dp_rank=dp_rank,
        local_batch_size=local_batch_size,
    )


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
        tokenizer.eos_id,
        add_bos=recipe.add_bos,
        add_eos=recipe.add_eos,
        special_tokens_in_text=recipe.special_tokens_in_text,
    )


_programs: dict[str, Program] = {}


def compiled(recipe: Recipe, seq_len: int, spec: TokenizerSpec) -> Program:
    """The compiled program, kept for the life of the process: the start-up check, the loader, and
    the validator (which builds its loader anew every time) ask for the same one."""
    key = f"{recipe!r} {seq_len} {spec.identity!r}"
    if key not in _programs:
        _programs[key] = compile_program(recipe, seq_len, spec)
    return _programs[key]
