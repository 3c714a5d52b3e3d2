"""The only importer of TorchTitan: one file a supported generation, chosen here by what is installed.

Importing this package imports neither torch nor TorchTitan; ``generation()`` does.
"""

from __future__ import annotations

import importlib
import threading
from importlib import metadata
from types import ModuleType
from typing import Any

from ..errors import ConfigError

GENERATIONS = {"0.2.2": "v022", "0.3.0": "v030_job"}
"""Supported TorchTitan release -> the module here that runs a ``Job`` on it."""

STOCK: dict[str, dict[str, Any]] = {"0.2.2": {"label_shift": "sequence"}, "0.3.0": {"label_shift": "document"}}
"""Recipe keys that follow the stock text loader of a release where a job does not state them."""

training_began = threading.Event()
"""Set in a process, for good, once its trainer has started up and asks for batches."""


def installed_version() -> str:
    """The installed TorchTitan release without its local part; ``ConfigError`` if unsupported."""
    supported = ", ".join(GENERATIONS)
    try:
        version = metadata.version("torchtitan").partition("+")[0]
    except metadata.PackageNotFoundError:
        newest = list(GENERATIONS)[-1]
        raise ConfigError(
            f"TorchTitan is not installed; supported: {supported}. Install it with: pip install torchtitan=={newest}"
        ) from None
    if version not in GENERATIONS:
        raise ConfigError(
            f"TorchTitan {version} is installed; supported: {supported}. Each release "
            "changes the trainer's contract, so none is tried untested."
        )
    return version


def generation() -> ModuleType:
    """Import and return the module for the installed TorchTitan."""
    return importlib.import_module(f".{GENERATIONS[installed_version()]}", __name__)
