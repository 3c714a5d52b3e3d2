"""TorchTitan 0.3.0: a ``Job`` becomes a real ``Trainer.Config``, and the stock trainer runs it.

What flows in: a ``Job``, whose sections speak 0.2's dialect (``job.py``). What flows out: the
``Trainer.Config`` that a function of a 0.3.0 ``config_registry`` would return, with our data loader
in it. 0.3.0 reads no TOML, so the sections are walked along its own dataclasses: every 0.3.0 key
works under its own name and is checked against its own type. ``MOVED`` and ``FIXED`` are all that
differs between the dialects; any other key that 0.3.0 lacks is an error, never ignored.

What no section states is the dataclass's default; loss and optimizer, which have no default that
can train, are those of 0.3.0's own registry functions: chunked cross entropy, AdamW at 8e-4.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
import typing
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Literal

import torchtitan.train
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig
from torchtitan.components.tokenizer import HuggingFaceTokenizer
from torchtitan.components.validate import Validator
from torchtitan.config import CommConfig, CompileConfig, DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.config.override import OverrideConfig, parse_cli_imports
from torchtitan.distributed.activation_checkpoint import ActivationCheckpointing, FullAC, MemoryBudgetAC, SelectiveAC
from torchtitan.models import _supported_models
from torchtitan.models.common.decoder import Decoder
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.tools.logging import init_logger, logger
from torchtitan.tools.profiler import Profiler
from torchtitan.trainer import Trainer

from ..errors import ConfigError, Problems, nearest
from ..settings import coerce, read_table
from . import cpu
from .feed import Feed, training_feed, validation_feed
from .job import Job
from .tables import check_keys, checked, filled
from .v030 import ZephonDataLoader, ZephonTrainer

MOVED = {
    ("job", "print_config"): ("debug", "print_config"),
    ("job", "save_config_file"): ("debug", "save_config_file"),
    ("model", "tokenizer_path"): ("model", "hf_assets_path"),
    ("parallelism", "enable_async_tensor_parallel"): ("compile", "enable_async_tensor_parallel"),
    ("parallelism", "expert_parallel_comm_backend"): ("model", "moe_comm_backend"),
    ("activation_checkpoint", "per_op_sac_force_recompute_mm_shapes_by_fqns"): (
        "activation_checkpoint",
        "force_recompute_mm_shapes_by_fqns",
    ),
}
"""Keys of 0.2 that 0.3.0 has elsewhere: (section, key) -> (section, key)."""

FIXED: dict[tuple[str, str], Any] = {
    ("model", "converters"): [],
    ("model", "print_after_conversion"): False,
    ("optimizer", "early_step_in_backward"): False,
    ("activation_checkpoint", "selective_ac_option"): "op",
    ("activation_checkpoint", "early_stop"): False,
    ("parallelism", "disable_loss_parallel"): False,
    ("parallelism", "expert_tensor_parallel_degree"): 1,
    ("parallelism", "context_parallel_rotate_method"): "allgather",
    ("job", "custom_config_module"): "torchtitan_zephon.titan.v022",
    ("experimental", "custom_import"): "torchtitan_zephon.titan.v022",
    ("experimental", "custom_args_module"): "",
}
"""Keys of 0.2 that 0.3.0 no longer has, and the one value of each that it still means."""

REFUSED = {
    ("training", "dataset"): "name the data in [zephon.sources]",
    ("training", "dataset_path"): "name the data in [zephon.sources]",
    ("training", "dataloader"): "the loader's settings are in [zephon]",
    ("validation", "dataset"): "name the data in [zephon.validation.sources]",
    ("validation", "dataset_path"): "name the data in [zephon.validation.sources]",
    ("validation", "dataloader"): "the loader's settings are in [zephon]",
}
"""Keys that cannot mean anything here, and the way out."""

SAME = (("validation", "local_batch_size"), ("validation", "seq_len"))
"""Keys of 0.2 for which 0.3.0 uses those of [training]; a job may state them, alike."""

GONE = {
    "quantize": "0.3.0 takes quantization as converters of the model, in Python",
    "memory_estimation": "0.3.0 has no such mode",
    "fault_tolerance": "0.3.0's trainer has no TorchFT",
    "experimental": "0.3.0 loads modules with --module and --override.imports",
}
"""Sections of 0.2 that 0.3.0 lacks."""

AC_MODES: dict[str, type[ActivationCheckpointing.Config] | None] = {
    "selective": SelectiveAC.Config,
    "full": FullAC.Config,
    "memory_budget": MemoryBudgetAC.Config,
    "none": None,
}


def run(job: Job, *, on_cpu: bool) -> None:
    """Train as ``torchtitan.train.main`` does. Under torchrun, after ``cpu.activate`` if ``on_cpu``."""
    init_logger()
    config = build_config(job)
    description = job.sections.get("job", {}).get("description")
    if description:
        logger.info("Starting job: %s", description)
    if on_cpu:
        cpu.adapt_model(config)
    launch(config)


def launch(config: Trainer.Config) -> None:
    """Run the stock ``main`` with ``config``, through its own ``--module M --config F``."""
    door = ModuleType("torchtitan_zephon_job")
    door.job = lambda: config  # type: ignore[attr-defined]
    sys.modules[door.__name__] = door
    sys.argv = [sys.argv[0], "--module", door.__name__, "--config", "job"]
    torchtitan.train.main()


def build_config(job: Job) -> ZephonTrainer.Config:
    """The 0.3.0 configuration that ``job`` means; ``ConfigError`` for all that 0.3.0 cannot do."""
    problems = Problems()
    tables = translated(job.sections, problems)
    parts: dict[str, Any] = {}
    with problems:
        parts["dataloader"] = loader(training_feed(job))
        parts["validator"] = validator(job, tables.pop("validation", {}))
    return assembled(tables, problems, **parts)


def model_vocab_size(job: Job) -> int | None:
    """Entries of the vocabulary of the job's model, if it says how many. Raises ``ConfigError``."""
    spec = build_config(job).model_spec
    assert spec is not None
    return getattr(spec.model, "vocab_size", None)


def assembled(tables: dict[str, dict[str, Any]], problems: Problems, **parts: Any) -> ZephonTrainer.Config:
    """A configuration of ``tables``, in 0.3.0's keys, and ``parts`` that are ready; else TorchTitan's defaults.

    Raises ``ConfigError`` of what is wrong with them, and of the ``problems`` found so far.
    """
    job_table, model_table = tables.pop("job", {}), tables.pop("model", {})
    paths: dict[str, str] = {}
    for section, table, key in (("job", job_table, "dump_folder"), ("model", model_table, "hf_assets_path")):
        with problems:
            if key in table:
                paths[key] = coerce(table.pop(key), str, f"{section}.{key}")
    with problems:
        check_keys(job_table, ("dump_folder", "description"), "job")
    spec: ModelSpec | None = None
    with problems:
        spec = model_spec(model_table)
    for name, build, section in (
        ("optimizer", optimizer, "optimizer"),
        ("activation_checkpoint", activation_checkpoint, "activation_checkpoint"),
        ("profiler", profiler, "profiling"),
        ("override", override, "override"),
    ):
        with problems:
            parts[name] = build(tables.pop(section, {}))
    loss = CrossEntropyLoss.Config(global_vocab_size=None if spec is None else spec.model.vocab_size)
    defaults = {
        "loss": ChunkedLossWrapper.Config(loss_fn=loss),
        "lr_scheduler": LRSchedulersContainer.Config(),
        "metrics": MetricsProcessor.Config(),
        "tokenizer": HuggingFaceTokenizer.Config(),
        "training": TrainingConfig(),
        "parallelism": ParallelismConfig(),
        "compile": CompileConfig(),
        "checkpoint": CheckpointManager.Config(),
        "comm": CommConfig(),
        "debug": DebugConfig(),
    }
    for name, default in defaults.items():
        with problems:
            parts[name] = filled(default, tables.pop(name, {}), name)
    problems.refuse()
    assert not tables, f"sections that job.py accepts and nothing maps: {sorted(tables)}"
    return checked("job", ZephonTrainer.Config, model_spec=spec, **paths, **parts)


def translated(sections: Mapping[str, Mapping[str, Any]], problems: Problems) -> dict[str, dict[str, Any]]:
    """``sections`` in 0.3.0's keys (0.2's section names stay): ``MOVED`` and ``FIXED`` done, refusals noted."""
    tables: dict[str, dict[str, Any]] = {name: {} for name in sections}
    for section, table in sections.items():
        if section in GONE:
            del tables[section]
            if any((section, key) not in FIXED for key in table):
                problems.note(f"[{section}] is not in TorchTitan 0.3.0: {GONE[section]}. Remove the section.")
                continue
        for key, value in table.items():
            with problems:
                check_translatable(sections, section, key, value)
                if (section, key) in SAME or (section, key) in FIXED:
                    continue
                to_section, to_key = MOVED.get((section, key), (section, key))
                tables.setdefault(to_section, {})[to_key] = value
    return tables


def check_translatable(sections: Mapping[str, Mapping[str, Any]], section: str, key: str, value: Any) -> None:
    """Raise ``ConfigError`` for a key of 0.2 with a value that 0.3.0 has no word for."""
    if (section, key) in REFUSED:
        raise ConfigError(f"{section}.{key} = {value!r} is not used: {REFUSED[section, key]}.")
    if (section, key) in SAME and value != sections.get("training", {}).get(key):
        raise ConfigError(
            f"{section}.{key} = {value!r}: TorchTitan 0.3.0 validates with training.{key}. Remove the key, "
            "or state the same number in both."
        )
    if (section, key) in FIXED and value != FIXED[section, key]:
        raise ConfigError(
            f"{section}.{key} = {value!r}: TorchTitan 0.3.0 has no such key; it always "
            f"does what {FIXED[section, key]!r} meant in 0.2. Remove the key."
        )
    to_section, to_key = MOVED.get((section, key), (section, key))
    if (section, key) in MOVED and to_key in sections.get(to_section, {}):
        raise ConfigError(f"{section}.{key} is {to_section}.{to_key} in TorchTitan 0.3.0, and both are set; keep one.")


def loader(feed: Feed) -> ZephonDataLoader.Config:
    """The configuration of the loader of ``feed``; whether it repeats for ever is set by who builds it."""
    return ZephonDataLoader.Config(recipe=feed.recipe, settings=feed.settings, global_batch_size=feed.global_batch_size)


def validator(job: Job, table: Mapping[str, Any]) -> Validator.Config:
    """The stock validator, reading the job's validation recipe."""
    data = {} if job.validation is None else {"dataloader": loader(validation_feed(job))}
    return filled(Validator.Config(**data), table, "validation")


def profiler(table: Mapping[str, Any]) -> Profiler.Config:
    """``[profiling]``, under 0.2's name."""
    return filled(Profiler.Config(), table, "profiling")


def override(table: Mapping[str, Any]) -> OverrideConfig:
    """``[override]``: its ``imports`` as on 0.3.0's command line, ``module.function[={json}]``."""
    check_keys(table, ("imports",), "override")
    imports = table.get("imports", [])
    words = coerce([imports] if isinstance(imports, str) else imports, list[str], "override.imports")
    return OverrideConfig(imports=checked("override", parse_cli_imports, words))


def flavors_of(name: str) -> list[str]:
    """The flavors of a model family."""
    module = importlib.import_module(f"torchtitan.models.{name}")
    return list(next(v for k, v in vars(module).items() if k.endswith("_configs") and isinstance(v, dict)))


def model_spec(table: Mapping[str, Any]) -> ModelSpec:
    """The model ``[model]`` names; its other keys are arguments of the model's ``model_registry``."""
    arguments = {"name": "llama3", "flavor": "debugmodel", **table}
    name = coerce(arguments.pop("name"), str, "model.name")
    flavor = coerce(arguments.pop("flavor"), str, "model.flavor")
    if name not in _supported_models:
        raise ConfigError(
            f"model.name = {name!r}: TorchTitan 0.3.0 has no such model. {nearest(name, _supported_models)}"
        )
    module = importlib.import_module(f"torchtitan.models.{name}")
    registry = module.model_registry
    hints = typing.get_type_hints(registry)
    known = [k for k in inspect.signature(registry).parameters if k not in ("flavor", "converters")]
    problems = Problems()
    with problems:
        check_keys(arguments, ("name", "flavor", "hf_assets_path", *known), "model")
    for key in [key for key in arguments if key in known]:
        with problems:
            arguments[key] = coerce(arguments[key], hints[key], f"model.{key}")
    flavors = flavors_of(name)
    if flavor not in flavors:
        problems.note(f"model.flavor = {flavor!r}: {name} has no such flavor. {nearest(flavor, flavors)}")
    problems.refuse()
    spec: ModelSpec = checked("model", registry, flavor, **arguments)
    if not isinstance(spec.model, Decoder.Config):
        raise ConfigError(f"model.name = {name!r} does not read text; this loader feeds token sequences.")
    return spec


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Adam:
    """0.2's ``[optimizer]``: one Adam for all parameters, which 0.3.0 calls a parameter group."""

    name: Literal["AdamW", "Adam"] = "AdamW"
    lr: float = 8e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1


def optimizer(table: Mapping[str, Any]) -> OptimizersContainer.Config:
    """``[optimizer]``: 0.2's short keys, or 0.3.0's ``param_groups``, not both."""
    short_keys = [f.name for f in dataclasses.fields(Adam)]
    own_keys = [f.name for f in dataclasses.fields(OptimizersContainer.Config)]
    problems = Problems()
    with problems:
        check_keys(table, (*short_keys, *own_keys), "optimizer")
    short = {k: v for k, v in table.items() if k in short_keys}
    own = {k: v for k, v in table.items() if k in own_keys}
    if short and "param_groups" in own:
        problems.note(
            f"optimizer.param_groups is set beside {', '.join(short)}; each group states its "
            "own optimizer_kwargs, so keep one of the two forms."
        )
    adam = read_table(Adam, short, "optimizer", problems)
    kwargs = {"lr": adam.lr, "betas": (adam.beta1, adam.beta2), "eps": adam.eps, "weight_decay": adam.weight_decay}
    group = ParamGroupConfig(pattern=r".*", optimizer_name=adam.name, optimizer_kwargs=kwargs)
    config = OptimizersContainer.Config(param_groups=[group])
    with problems:
        config = filled(config, own, "optimizer")
    problems.refuse()
    return config


def activation_checkpoint(table: Mapping[str, Any]) -> ActivationCheckpointing.Config | None:
    """``[activation_checkpoint]``: ``mode`` chooses one of 0.3.0's policies, the rest are its fields."""
    settings = dict(table)
    mode = coerce(settings.pop("mode", "selective"), Literal[*AC_MODES], "activation_checkpoint.mode")
    policy = AC_MODES[mode]
    if policy is None:
        check_keys(settings, (), "activation_checkpoint", " with mode = 'none'")
        return None
    check_keys(
        settings, [f.name for f in dataclasses.fields(policy)], "activation_checkpoint", f" with mode = {mode!r}"
    )
    return filled(policy(), settings, "activation_checkpoint")
