"""TorchTitan 0.3.0's stock entry point with our data: any configuration of its registry, by its own name.

    torchrun ... -m torchtitan.train --module torchtitan_zephon --config llama3_8b \\
        --dataloader.recipe_file configs/X.toml --training.global_batch_size 256

``--config`` takes the name of any function in ``torchtitan.models.*.config_registry`` (llama3_8b,
qwen3_0_6b, deepseek_v3_16b, ...): that configuration is taken as it is and given our loaders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def __getattr__(name: str) -> Callable[[], Any]:
    if name.startswith("_"):
        raise AttributeError(name)
    from .titan.registry import configuration

    return configuration(name)
