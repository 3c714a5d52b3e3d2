"""TorchTitan's stock entry point on a machine without a GPU: CPU mode, then ``torchtitan.train`` as it is.

torchrun ... -m tests.titan.stock_on_cpu ARGUMENTS OF torchtitan.train
"""

from __future__ import annotations

import runpy
from typing import Any

from torchtitan_zephon.titan import cpu


def llama3() -> Any:
    """0.3.0's own ``llama3_debugmodel``, its model made to run on a CPU: ``--module tests.titan.stock_on_cpu``."""
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    config = llama3_debugmodel()
    cpu.adapt_model(config)
    return config


if __name__ == "__main__":
    cpu.activate()
    runpy.run_module("torchtitan.train", run_name="__main__")
