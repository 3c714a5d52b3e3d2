"""Configurations of TorchTitan 0.3.0's own model registries, found by name and given our data."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any

from torchtitan.models import _supported_models
from torchtitan.trainer import Trainer

from ..errors import ConfigError, Problems, nearest
from .v030 import with_our_data
from .v030_job import assembled, flavors_of


def configuration(name: str) -> Callable[[], Any]:
    """A function that gives the configuration ``name``, with our data loaders.

    ``name`` is that of a function in some family's registry, or the family and a flavor of it (llama3_1b,
    qwen3_4b), which is then configured as a TOML job that names no more than the model.
    """
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
        flavors = {re.sub(r"\W", "_", f"{family}_{flavor}").lower(): flavor for flavor in flavors_of(family)}
        if name.lower() in flavors:
            model = {"name": family, "flavor": flavors[name.lower()]}
            return lambda: with_our_data(assembled({"model": model}, Problems()))
        own = [n for n, f in functions.items() if f.__module__ == module.__name__ and n.startswith(family)]
        known += [*flavors, *own]
    raise ConfigError(f"--config {name}: TorchTitan has no such configuration. {nearest(name, known)}")


def text_only(name: str, config: Trainer.Config) -> Trainer.Config:
    """``config``; ``ConfigError`` unless its own loader feeds plain text."""
    from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader

    if not isinstance(config.dataloader, HuggingFaceTextDataLoader.Config):
        kind = type(config.dataloader).__qualname__
        raise ConfigError(f"--config {name} reads {kind}; only configurations that train on plain text can be used.")
    return config
