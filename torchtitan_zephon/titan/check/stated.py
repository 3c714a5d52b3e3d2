"""One key of TorchTitan's own sections, which only TorchTitan knows in full.

What flows in: a parsed job, whose sections hold what was written and nothing else. What flows out: the value, checked
against the type of the default.
"""

from __future__ import annotations

from typing import Any

from ...settings import coerce
from ..job import Job

DEFAULTS: dict[tuple[str, str], Any] = {
    ("job", "dump_folder"): "./outputs",
    ("model", "hf_assets_path"): "./tests/assets/tokenizer",
    ("training", "seq_len"): 2048,
    ("training", "local_batch_size"): 8,
    ("training", "steps"): 10000,
    ("parallelism", "data_parallel_replicate_degree"): 1,
    ("parallelism", "data_parallel_shard_degree"): -1,
    ("parallelism", "tensor_parallel_degree"): 1,
    ("parallelism", "pipeline_parallel_degree"): 1,
    ("parallelism", "context_parallel_degree"): 1,
    ("parallelism", "pipeline_parallel_microbatch_size"): 1,
    ("validation", "enable"): False,
    ("validation", "steps"): -1,
    ("checkpoint", "enable"): False,
    ("checkpoint", "folder"): "checkpoint",
    ("checkpoint", "load_step"): -1,
    ("checkpoint", "initial_load_model_only"): True,
    ("checkpoint", "exclude_from_loading"): [],
}
"""What both supported releases take where a job states nothing; a test compares it with the installed one."""


def stated(job: Job, section: str, key: str, default: Any = None) -> Any:
    """The value of ``section.key``; ``default`` for a key that has none in ``DEFAULTS``. Raises ``ConfigError``."""
    default = DEFAULTS[section, key] if default is None else default
    value = job.sections.get(section, {}).get(key, default)
    if isinstance(default, list):
        return coerce(value.split(",") if isinstance(value, str) else value, list[str], f"{section}.{key}")
    return coerce(value, type(default), f"{section}.{key}")
