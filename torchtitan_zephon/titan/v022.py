"""TorchTitan 0.2.2: our data loader through its ``TrainSpec``, in its stock entry point and in ours.

Stock: a job file names this module twice, and ``torchtitan.train`` does the rest:

    [job]
    custom_config_module = "torchtitan_zephon.titan.v022"   # gives the job a [zephon] table
    [experimental]
    custom_import = "torchtitan_zephon.titan.v022"          # gives every model our data loader

Importing this module registers a ``TrainSpec`` for every text model that TorchTitan ships: its own,
with the builders of data loader, validator and metrics exchanged (``with_our_data``, also for a
model of your own). Ours: ``run`` trains a ``Job`` the same way, its sections mapped strictly.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torchtitan.components.metrics import build_metrics_processor
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.components.validate import BaseValidator, Validator
from torchtitan.config import JobConfig as StockJobConfig
from torchtitan.distributed import ParallelDims
from torchtitan.hf_datasets.text_datasets import build_text_dataloader
from torchtitan.models import _supported_models
from torchtitan.protocols.train_spec import TrainSpec, get_train_spec, register_train_spec
from torchtitan.tools.logging import init_logger
from torchtitan.tools.utils import device_type
from torchtitan.train import Trainer

from ..config import Recipe, RunSettings
from ..errors import ConfigError, Problems, TokenizerError, nearest
from ..paths import anchor_paths
from . import cpu
from .checkpoint import Restart
from .feed import training_feed, validation_feed
from .generations import GENERATIONS
from .job import Job, build_job
from .loader import DataMetrics, StreamLoader
from .preflight import Loader, Start, agreed
from .tables import filled

cpu.check_entry_point()  # this import is the last thing that TorchTitan does before it asks for its device

RELEASE = GENERATIONS["0.2.2"]
TABLES = ("sources", "validation")
KEYS: dict[str, Any] = {
    **{k: v for cls in (Recipe, RunSettings) for k, v in typing.get_type_hints(cls).items() if k not in TABLES},
    "ledger": bool,
    "recipe": str,
    "device": str,
}
"""The keys of a ``[zephon]`` table and their types, besides its tables."""

Zephon = dataclasses.make_dataclass(
    "Zephon",
    [(k, hint | None, dataclasses.field(default=None)) for k, hint in KEYS.items()]
    + [(k, dict[str, Any], dataclasses.field(default_factory=dict)) for k in TABLES],
)
"""The ``[zephon]`` table as TorchTitan parses it; what the job does not state is None or empty."""


# Made by hand, like Zephon, as TorchTitan's parser wants types and no strings.
JobConfig = dataclasses.make_dataclass("JobConfig", [("zephon", Zephon, dataclasses.field(default_factory=Zephon))])
"""What ``job.custom_config_module`` adds to TorchTitan's own."""


class ZephonDataLoader(StreamLoader):
    """Global batch t is the same bytes in the same order, whatever ``dp_world_size`` is."""

    columns = RELEASE.columns


class ZephonValidator(Validator):
    """The stock validator on our validation recipe, which it reads from the start every time."""

    def __init__(
        self, job_config: Any, dp_world_size: int, dp_rank: int, tokenizer: BaseTokenizer, *, loss_fn: Any,
        parallel_dims: Any, validation_context: Any, maybe_enable_amp: Any, metrics_processor: Any,
        pp_schedule: Any = None, pp_has_first_stage: bool | None = None, pp_has_last_stage: bool | None = None,
    ) -> None:  # fmt: skip
        # Not super(): that opens the stock validation set, from the hub.
        BaseValidator.__init__(self, job_config)
        self.tokenizer, self.parallel_dims, self.loss_fn = tokenizer, parallel_dims, loss_fn
        self.validation_context, self.maybe_enable_amp = validation_context, maybe_enable_amp
        self.metrics_processor = metrics_processor
        self.pp_schedule, self.pp_has_first_stage, self.pp_has_last_stage = (
            pp_schedule, pp_has_first_stage, pp_has_last_stage,
        )  # fmt: skip
        own = validation_of(job_of(job_config), job_config)
        assert own is not None
        self._loader = functools.partial(
            ZephonDataLoader, own.feed, dp_world_size=dp_world_size, dp_rank=dp_rank, tokenizer=tokenizer,
            seq_len=own.seq_len, local_batch_size=own.local_batch_sizes[-1],
        )  # fmt: skip

    def validate(self, model_parts: Any, step: int) -> None:
        """One pass, or ``validation.steps`` local batches a rank, from the beginning of the set."""
        self.validation_dataloader = self._loader()
        super().validate(model_parts, step)
        self.validation_dataloader.stream.close()


def with_our_data(spec: TrainSpec) -> TrainSpec:
    """``spec`` with our builders of data loader, validator and metrics processor."""
    loader: list[ZephonDataLoader] = []

    def build_dataloader(
        dp_world_size: int, dp_rank: int, tokenizer: BaseTokenizer, job_config: Any
    ) -> ZephonDataLoader:
        job = job_of(job_config)
        first_step = getattr(job_config, "zephon_first_step", None)
        if first_step is None:  # the stock entry point
            start = start_of(job, job_config, spec, dp_world_size, lambda: tokenizer)
            first_step = agreed(start)
        built = ZephonDataLoader(
            dataclasses.replace(training_feed(job), first_step=first_step), dp_world_size=dp_world_size,
            dp_rank=dp_rank, tokenizer=tokenizer, seq_len=job_config.training.seq_len,
            local_batch_size=job_config.training.local_batch_size,
        )  # fmt: skip
        loader[:] = [built]
        return built

    def build_metrics(*args: Any, **kwargs: Any) -> Any:
        processor = (spec.build_metrics_processor_fn or build_metrics_processor)(*args, **kwargs)
        DataMetrics(processor, loader[0])
        return processor

    return dataclasses.replace(
        spec,
        parallelize_fn=cpu.summing(spec.parallelize_fn) if device_type == "cpu" else spec.parallelize_fn,
        build_dataloader_fn=build_dataloader,
        build_validator_fn=spec.build_validator_fn and ZephonValidator,
        build_metrics_processor_fn=build_metrics,
    )


def register() -> dict[str, TrainSpec]:
    """Register our variant of every model that TorchTitan ships; returns those that read text."""
    text: dict[str, TrainSpec] = {}
    for name in sorted(_supported_models):
        try:
            spec = get_train_spec(name)
        except ImportError:  # needs a package that is not installed, so it could not be trained either
            continue
        if spec.build_dataloader_fn is build_text_dataloader:
            text[name] = with_our_data(spec)
            register_train_spec(name, text[name])
        else:
            register_train_spec(name, dataclasses.replace(spec, build_dataloader_fn=_no_text))
    return text


def _no_text(*, job_config: Any, **arguments: Any) -> Any:
    raise ConfigError(f"model.name = {job_config.model.name!r} does not read text; this loader feeds token sequences.")


SPECS = register()


# ---- a job as 0.2.2 has parsed it, or ours


def job_of(config: Any) -> Job:
    """The data side of a 0.2.2 configuration: what its ``[zephon]`` table means."""
    if isinstance(job := getattr(config, "zephon_job", None), Job):
        return job
    table = getattr(config, "zephon", None)
    if not isinstance(table, Zephon):
        raise ConfigError(
            "the job has no [zephon] table that TorchTitan knows of: set job.custom_config_module = "
            f"{__name__!r}, beside experimental.custom_import."
        )
    stated = {k: v for k, v in vars(table).items() if v not in (None, {})}
    file = Path(config.job.config_file or "job.toml")
    sections = {k: v for k, v in dataclasses.asdict(config).items() if k != "zephon"}
    config.zephon_job = build_job(file, sections, anchor_paths(stated, file), RELEASE.stock_recipe)
    found: Job = config.zephon_job
    return found


def validation_of(job: Job, config: Any) -> Loader | None:
    """What the validator of ``job`` reads, if it is enabled."""
    own = config.validation
    if not own.enable or job.validation is None:
        return None
    feed = validation_feed(job, steps=own.steps)
    return Loader(feed=feed, seq_len=own.seq_len, local_batch_sizes=(own.local_batch_size,))


def model_of(job: Job, config: Any, spec: TrainSpec) -> Any:
    """The arguments of the job's model; ``ConfigError`` for a flavor that is not there or cannot see borders."""
    args: Any = spec.model_args.get(config.model.flavor)
    if args is None:
        raise ConfigError(
            f"model.flavor = {config.model.flavor!r}: {config.model.name} has no such flavor. "
            f"{nearest(config.model.flavor, spec.model_args)}"
        )
    if getattr(args, "attn_mask_type", "causal") == "block_causal" and job.recipe.label_shift == "document":
        raise ConfigError(
            f"zephon.label_shift = 'document' leaves the EOS token out of the inputs, by which {config.model.name} "
            f"{config.model.flavor} of TorchTitan 0.2.2 finds the borders between documents, so its attention would "
            "cross them. Use label_shift = 'sequence', or a flavor with plain causal attention."
        )
    return args


def model_vocab_size(job: Job) -> int | None:
    """Entries of the vocabulary of the job's model, if it says how many. Raises ``ConfigError``."""
    config = build_config(job)
    return getattr(model_of(job, config, spec_of(config)), "vocab_size", None)


def start_of(job: Job, config: Any, spec: TrainSpec, dp_degree: int, tokenizer: Callable[[], Any]) -> Start:
    """What the start-up check needs to know. Raises ``ConfigError`` as ``model_of`` does."""
    return Start(
        train=Loader(
            feed=training_feed(job),
            seq_len=config.training.seq_len,
            local_batch_sizes=(config.training.local_batch_size,),
        ),
        validation=validation_of(job, config),
        dp_degree=dp_degree,
        hf_assets_path=config.model.hf_assets_path,
        tokenizer=tokenizer,
        vocab_size=getattr(model_of(job, config, spec), "vocab_size", None),
        restart=Restart.of(config.checkpoint, config.job.dump_folder, RELEASE),
    )


# ---- our entry point


def run(job: Job, *, on_cpu: bool) -> None:
    """Train as ``torchtitan.train.main`` does. Under torchrun, after ``cpu.activate`` if ``on_cpu``."""
    config: Any = build_config(job)
    spec = spec_of(config)
    dims = parallel_dims(config, int(os.environ["WORLD_SIZE"]))
    build_tokenizer = spec.build_tokenizer_fn
    if build_tokenizer is None:
        raise TokenizerError(f"model.name = {config.model.name!r} has no tokenizer, so it cannot be fed text.")
    degree = dims.dp_replicate * dims.dp_shard
    start = start_of(job, config, spec, degree, functools.partial(build_tokenizer, config))
    kernel = getattr(spec.model_args[config.model.flavor], "attn_type", "sdpa")
    if on_cpu and kernel != "sdpa":
        raise ConfigError(
            f"model.flavor = {config.model.flavor!r} of {config.model.name} uses {kernel} attention, which no CPU can "
            "train; use a flavor with plain attention, such as 'debugmodel' of llama3."
        )
    config.zephon_job = job
    train(config, start)


class ZephonTrainer(Trainer):
    """The stock trainer; the ranks look at the job together before it builds a model."""

    def __init__(self, config: Any, start: Start) -> None:
        self._start = start
        super().__init__(config)

    def init_distributed(self) -> ParallelDims:
        """The stock trainer's first work, and ours."""
        dims = super().init_distributed()
        self.job_config.zephon_first_step = agreed(self._start)
        return dims


def train(config: Any, start: Start) -> None:
    """``torchtitan.train.main`` without its parser, which takes no configuration but the command line's."""
    init_logger()
    trainer = ZephonTrainer(config, start)
    try:
        if config.checkpoint.create_seed_checkpoint:
            if int(os.environ["WORLD_SIZE"]) != 1 or not config.checkpoint.enable:
                raise ConfigError("checkpoint.create_seed_checkpoint needs one process and checkpoint.enable = true.")
            trainer.checkpointer.save(curr_step=0, last_step=True)
        else:
            trainer.train()
    finally:
        trainer.close()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def build_config(job: Job) -> StockJobConfig:
    """The 0.2.2 configuration that ``job`` means; ``ConfigError`` for what 0.2.2 cannot do."""
    known = {f.name for f in dataclasses.fields(StockJobConfig)}
    config = StockJobConfig()
    problems = Problems()
    for section, table in job.sections.items():
        if section in known:
            with problems:
                setattr(config, section, filled(getattr(config, section), table, section))
        elif table:
            problems.note(f"[{section}] is not in TorchTitan 0.2.2. Remove the section.")
    problems.refuse()
    stated = job.sections.get("validation", {})
    for key in ("seq_len", "local_batch_size"):  # as in 0.3.0, where they cannot differ
        if key not in stated:
            setattr(config.validation, key, getattr(config.training, key))
    config.model.hf_assets_path = config.model.tokenizer_path or config.model.hf_assets_path
    config.model.tokenizer_path = None
    return config


def spec_of(config: StockJobConfig) -> TrainSpec:
    """The ``TrainSpec`` of the job's model, which must be one with our data loader."""
    if config.experimental.custom_import:
        importlib.import_module(config.experimental.custom_import)
    try:
        spec = get_train_spec(config.model.name)
    except ValueError:
        raise ConfigError(
            f"model.name = {config.model.name!r}: TorchTitan 0.2.2 has no such model. "
            f"{nearest(config.model.name, _supported_models)}"
        ) from None
    if getattr(spec.build_dataloader_fn, "__module__", "") != __name__:
        raise ConfigError(
            f"the TrainSpec of model.name = {config.model.name!r} has a data loader of its own; register "
            f"{__name__}.with_our_data(spec) instead of the spec."
        )
    return spec


def parallel_dims(config: StockJobConfig, world_size: int) -> ParallelDims:
    """The mesh sizes of a job; ``ConfigError`` if they do not multiply to ``world_size``."""
    p = config.parallelism
    try:
        return ParallelDims(
            dp_shard=p.data_parallel_shard_degree, dp_replicate=p.data_parallel_replicate_degree,
            cp=p.context_parallel_degree, tp=p.tensor_parallel_degree, pp=p.pipeline_parallel_degree,
            ep=p.expert_parallel_degree, etp=p.expert_tensor_parallel_degree, world_size=world_size,
        )  # fmt: skip
    except AssertionError as error:
        raise ConfigError(f"[parallelism]: TorchTitan refuses it on {world_size} processes: {error}") from None
