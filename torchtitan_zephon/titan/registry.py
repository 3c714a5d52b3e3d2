"""Configurations of TorchTitan 0.3.0's own model registries, found by name and given our data."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from torchtitan.models import _supported_models
from torchtitan.trainer import Trainer

from ..errors import ConfigError, nearest
from .v030 import with_our_data


def configuration(name: str) -> Callable[[], Any]:
    """The configuration function ``name`` of some model family, its data loaders replaced by ours."""
    families = [family for family in sorted(_supported_models) if name.startswith(family)]
    known: list[str] = []
    for family in families or sorted(_supported_models):
        try:
            module = importlib.import_module(f"torchtitan.models.{family}.config_registry")
        except ImportError:  # a family whose own requirements are not installed
            continue
        functions = dict(inspect.getmembers(module, inspect.isfunction))
        if name in functions:
            return lambda: with_our_data(text_only(name, functions[name]()))
        known += [n for n, f in functions.items() if f.__module__ == module.__name__ and n.startswith(family)]
    raise ConfigError(f"--config {name}: TorchTitan has no such configuration. {nearest(name, known)}")


def text_only(name: str, config: Trainer.Config) -> Trainer.Config:
    """``config``; ``ConfigError`` unless its own loader feeds plain text."""
    from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader

    if not isinstance(config.dataloader, HuggingFaceTextDataLoader.Config):
        kind = type(config.dataloader).__qualname__
        raise ConfigError(f"--config {name} reads {kind}; only configurations that train on plain text can be used.")
    return config
