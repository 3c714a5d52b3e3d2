"""CPU mode: all that the stock trainer needs to run without an accelerator, in one file.

What flows in: a job on a machine without a GPU (or one with ``device = "cpu"``). What flows out:
the same trainer under gloo. It is for development and CI: the trade-off is speed (about 1 s a step
of 4,096 tokens on a 2-layer debug model) and attention that is causal over the whole sequence
instead of each document. Batches, checkpoints and parallelism are the real ones. A fresh run's
first weights depend on the number of processes (DTensor's own random generator exists on
accelerators only): to compare losses, start both from one ``checkpoint.create_seed_checkpoint``, or
resume both. Nothing is patched on disk; the names replaced in this process are all in ``activate``.
Never active on a machine with an accelerator unless asked for.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import resource
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch._utils

from ..errors import ConfigError

if TYPE_CHECKING:
    from torchtitan.trainer import Trainer

    from .job import Job

CANNOT: dict[tuple[str, str], tuple[Callable[[Any], bool], str]] = {
    ("training", "disable_cuda_graphs"): (lambda v: v is not True, "there are no CUDA graphs; set it to true"),
    ("training", "enable_cpu_offload"): (lambda v: v is not False, "the parameters are there already"),
    ("parallelism", "spmd_backend"): (lambda v: v != "partial_dtensor", "only 'partial_dtensor' runs under gloo"),
    ("parallelism", "context_parallel_degree"): (
        lambda v: v != 1,
        "the CPU attention kernel has no context parallelism",
    ),
    ("checkpoint", "async_mode"): (lambda v: v == "async_with_pinned_mem", "there is no pinned memory; use 'async'"),
}
"""What a job may state and a CPU cannot do: a test of the value, and why."""

SLOW: dict[tuple[str, str], str] = {
    ("training", "mixed_precision_param"): "bfloat16 is emulated, about 13 times slower than float32",
    ("activation_checkpoint", "mode"): "recomputing activations costs time and saves no scarce memory",
}
"""What a job may state against the defaults of CPU mode: it is done, and said to be slow."""


PEAKS = ("active_bytes.all.peak", "reserved_bytes.all.peak")
"""What the trainer's log shows of an accelerator's memory; here the process's."""


def wanted(device: str) -> bool:
    """Whether a job with ``[zephon] device = device`` runs in CPU mode on this machine."""
    return device == "cpu" or torch._utils._get_available_device_type() is None


def check_entry_point() -> None:
    """Raise ``ConfigError`` in TorchTitan's own entry point without an accelerator, where it cannot even begin."""
    entry = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", None)
    if entry == "torchtitan.train" and torch._utils._get_available_device_type() is None:
        raise ConfigError(
            "TorchTitan's own entry point, -m torchtitan.train, needs an accelerator, and torch finds none on this "
            "machine. On a CPU train a TOML job with -m torchtitan_zephon.train --job.config_file JOB.toml."
        )


def activate() -> None:
    """Make this process look like a CPU machine to TorchTitan. Before TorchTitan is imported."""
    # tools/utils.py asks this once, at import, and takes None to mean cuda.
    torch._utils._get_available_device_type = lambda: "cpu"
    shims: dict[str, Callable[..., Any]] = {
        "get_device_name": lambda device=None: "CPU",
        "get_device_properties": lambda device=None: SimpleNamespace(total_memory=memory_bytes()),
        "memory_stats": lambda device=None: dict.fromkeys(PEAKS, peak_bytes()),
        "reset_peak_memory_stats": lambda device=None: None,
        "empty_cache": lambda: None,
    }
    for name, shim in shims.items():
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, shim)
    import torchtitan.distributed.utils as dist_utils

    dist_utils.set_pg_timeouts = lambda timeout, parallel_dims: None  # gloo cannot change them


def memory_bytes() -> int:
    """Size of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def peak_bytes() -> int:
    """The most memory this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def adjusted(job: Job, defaults: Mapping[tuple[str, str], Any], log: Callable[[str], None]) -> Job:
    """``job`` with ``defaults`` where it states nothing; one line to ``log``, one more for each slow key.

    Raises ``ConfigError`` for a key that the job states and a CPU cannot do.
    """
    sections = {name: dict(table) for name, table in job.sections.items()}
    for (section, key), (fails, reason) in CANNOT.items():
        if key in sections.get(section, {}) and fails(sections[section][key]):
            raise ConfigError(f"{section}.{key} = {sections[section][key]!r} cannot work on a CPU: {reason}.")
    log(
        "CPU mode (development): gloo; attention is causal over whole sequences, not per document; "
        + ", ".join(f"{s}.{k} = {v!r}" for (s, k), v in defaults.items() if k not in sections.get(s, {}))
    )
    for (section, key), value in defaults.items():
        stated = sections.setdefault(section, {}).setdefault(key, value)
        if stated != value and (section, key) in SLOW:
            log(f"CPU mode: {section}.{key} = {stated!r} as the job says, though {SLOW[section, key]}")
    return dataclasses.replace(job, sections=sections)


def adapt_model(config: Trainer.Config) -> None:
    """On 0.3.0, swap what the model of ``config`` cannot do on a CPU: attention kernels, FSDP's reduction."""
    from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention, VarlenAttention

    assert config.model_spec is not None
    spec = config.model_spec
    for kernel in (FlexAttention.Config, VarlenAttention.Config):  # no CPU backward; no CPU kernel
        for _, _, parent, attribute in list(spec.model.traverse(kernel)):
            setattr(parent, attribute, ScaledDotProductAttention.Config())
    config.model_spec = dataclasses.replace(spec, parallelize_fn=summing(spec.parallelize_fn))


def summing(parallelize: Callable[..., torch.nn.Module]) -> Callable[..., torch.nn.Module]:
    """``parallelize`` of either generation, its FSDP modules set to a reduction that gloo has."""

    @functools.wraps(parallelize)
    def with_sum_reduction(*args: Any, **kwargs: Any) -> torch.nn.Module:
        model = parallelize(*args, **kwargs)
        for module in model.modules():
            if isinstance(module, torch.distributed.fsdp.FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # gloo has no PREMUL_SUM
        return model

    return with_sum_reduction
