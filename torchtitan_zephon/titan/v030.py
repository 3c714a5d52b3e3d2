"""TorchTitan 0.3.0: our data loader as its ``Config`` node, and the stock trainer that runs with it.

Three ways in, all through the stock ``torchtitan.train``: a TOML job (``run``); a configuration of
TorchTitan's own registry with our data in it (``config_registry``, ``with_our_data``); an existing
job's ``--override.imports torchtitan_zephon.titan.v030.data={...}``.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Annotated, Any

import tyro
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config.override import derive, override
from torchtitan.distributed import ParallelDims
from torchtitan.tools.utils import device_type
from torchtitan.trainer import Trainer

from ..config import Recipe, RunSettings, load_recipe
from ..errors import ConfigError
from . import cpu
from .checkpoint import Restart
from .feed import Feed
from .generations import GENERATIONS
from .loader import DataMetrics, StreamLoader
from .preflight import Loader, Start, agreed

RELEASE = GENERATIONS["0.3.0"]


class ZephonDataLoader(StreamLoader):
    """Global batch t is the same bytes in the same order, whatever ``dp_world_size`` is."""

    columns = RELEASE.columns

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        recipe_file: str = ""
        """What is read: a data recipe in TOML, such as configs/demo.toml; relative to the working folder."""

        recipe: Annotated[Recipe | None, tyro.conf.Suppress] = None
        """The same as an object, from a job's [zephon] table."""

        settings: RunSettings = RunSettings()
        """How fast, and what is reported; none of it changes the stream."""

        global_batch_size: int = -1
        """Copied from training.global_batch_size, which TorchTitan does not pass to a loader."""

        infinite: bool = True
        """Whether to repeat for ever. The stock validator sets it: False if its steps are -1."""

        first_step: Annotated[int, tyro.conf.Suppress] = 0
        """Steps the trainer has done when a new stream begins."""

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
        super().__init__(
            feed_of(config),
            dp_world_size=dp_world_size,
            dp_rank=dp_rank,
            tokenizer=tokenizer,
            seq_len=seq_len,
            local_batch_size=local_batch_size,
        )


def feed_of(config: ZephonDataLoader.Config) -> Feed:
    """What a loader with ``config`` reads; ``ConfigError`` if it names no data."""
    if config.recipe is None and not config.recipe_file:
        raise ConfigError(
            "the data loader was given no recipe: name one with --dataloader.recipe_file configs/X.toml (validation: "
            "--validator.dataloader.recipe_file), or write a [zephon] table with sources in a TOML job."
        )
    return Feed(
        recipe=load_recipe(config.recipe_file) if config.recipe is None else config.recipe,
        settings=config.settings,
        global_batch_size=config.global_batch_size,
        infinite=config.infinite,
        first_step=config.first_step,
    )


class ZephonTrainer(Trainer):
    """The stock trainer; it checks the data before it builds a model, and logs the loader's figures."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        """``Trainer.Config`` that tells the loaders the global batch size, which 0.3.0 does not."""

        def __post_init__(self) -> None:
            # Not super(): a slotted dataclass is a new class, which zero-argument super() misses.
            Trainer.Config.__post_init__(self)
            config: Any = self
            config.dataloader = self.sized(config.dataloader)
            config.validator = dataclasses.replace(config.validator, dataloader=self.sized(config.validator.dataloader))

        def sized(self, loader: Any) -> Any:
            """``loader``, with the global batch size if it is ours (an override may have swapped it)."""
            if not isinstance(loader, ZephonDataLoader.Config):
                return loader
            return dataclasses.replace(loader, global_batch_size=self.training.global_batch_size)

    def __init__(self, config: Config) -> None:
        self._start = start_of(config, int(os.environ["WORLD_SIZE"]))
        super().__init__(config)
        check_checkpointer(config.checkpoint)  # here, as the stock trainer has now applied its overrides
        DataMetrics(self.metrics_processor, self.dataloader)

    def init_distributed(self) -> ParallelDims:
        """The stock trainer's first work, before it builds a model; then the ranks look at the job together."""
        dims = super().init_distributed()
        first_step = agreed(self._start)
        self.config.dataloader = dataclasses.replace(self.config.dataloader, first_step=first_step)
        return dims


def check_checkpointer(config: Any) -> None:
    """Raise ``ConfigError`` for a checkpointer other than DCP's, whose checkpoints ``preflight`` cannot read."""
    if config.enable and not isinstance(config, CheckpointManager.Config):
        raise ConfigError(
            f"checkpoint is of type {type(config).__qualname__}, whose checkpoints this loader cannot check before "
            "they are loaded. Use TorchTitan's CheckpointManager.Config (DCP), which is what a TOML job has; the other "
            "of 0.3.0, TorchCheckpointingManager, neither saves nor loads yet."
        )


def start_of(config: Trainer.Config, world_size: int) -> Start:
    """What the start-up check needs to know of ``config``."""
    loader, validator = config.dataloader, config.validator
    if not isinstance(loader, ZephonDataLoader.Config):
        raise ConfigError(
            "the job's data loader is not torchtitan_zephon's; use -m torchtitan_zephon.train with a [zephon] table."
        )
    assert config.model_spec is not None
    dims = ParallelDims.from_config(config.parallelism, world_size)
    seq_len = config.training.seq_len
    sizes: tuple[int, ...] = (config.training.local_batch_size,)
    if dims.pp > 1:
        sizes += (config.parallelism.pipeline_parallel_microbatch_size,)
    validation = None
    if validator.enable and isinstance(validator.dataloader, ZephonDataLoader.Config):
        feed = feed_of(dataclasses.replace(validator.dataloader, infinite=validator.steps != -1))
        validation = Loader(feed=feed, seq_len=seq_len, local_batch_sizes=sizes[-1:])
    return Start(
        train=Loader(feed=feed_of(loader), seq_len=seq_len, local_batch_sizes=sizes),
        validation=validation,
        dp_degree=dims.dp_replicate * dims.dp_shard,
        hf_assets_path=config.hf_assets_path,
        tokenizer=lambda: config.tokenizer.build(tokenizer_path=config.hf_assets_path),
        vocab_size=getattr(config.model_spec.model, "vocab_size", None),
        restart=Restart.of(config.checkpoint, config.dump_folder, RELEASE),
    )


def with_our_data(config: Trainer.Config) -> ZephonTrainer.Config:
    """TorchTitan's own configuration ``config`` with our loaders in it, still to be given a recipe."""
    cpu.check_entry_point()
    loader = ZephonDataLoader.Config()
    validator = dataclasses.replace(config.validator, dataloader=ZephonDataLoader.Config())
    ours: ZephonTrainer.Config = derive(config, ZephonTrainer.Config, dataloader=loader, validator=validator)
    if device_type == "cpu":
        cpu.adapt_model(ours)
    return ours


@override(target=BaseDataLoader.Config, fqns=["dataloader"], description="torchtitan_zephon's data loader")
def data(loader: BaseDataLoader.Config, *, recipe_file: str, global_batch_size: int, **settings: Any) -> Any:
    """``--override.imports`` entry: reads ``recipe_file`` in steps of ``global_batch_size`` sequences.

    ``settings``: workers, ledger and the other run settings. TorchTitan tells an override nothing of
    the job, so ``global_batch_size`` must be training.global_batch_size, and what ``ZephonTrainer``
    checks before a model is built comes out when the loader is built or loads its state.
    """
    return ZephonDataLoader.Config(
        recipe_file=recipe_file, global_batch_size=global_batch_size, settings=RunSettings(**settings)
    )
