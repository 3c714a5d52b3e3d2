"""Data loading for LLM pre-training that stays exactly the same when the hardware changes.

What reads data brings numpy and pyarrow with it, and is imported when first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import (
    ConfigError,
    FunctionError,
    RecipeChangedError,
    RecordError,
    RunnerError,
    SourceError,
    StateError,
    TokenizerError,
    ZephonError,
)

if TYPE_CHECKING:
    from .config import Recipe, RunSettings, SourceConfig, load_recipe
    from .pipeline import Dataset, Pipeline, StaticMixtureWorkSource, TokenEstimation
    from .records import Batch
    from .run.stream import RankStream

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "ConfigError",
    "Dataset",
    "FunctionError",
    "Pipeline",
    "RankStream",
    "Recipe",
    "RecipeChangedError",
    "RecordError",
    "RunSettings",
    "RunnerError",
    "SourceConfig",
    "SourceError",
    "StateError",
    "StaticMixtureWorkSource",
    "TokenEstimation",
    "TokenizerError",
    "ZephonError",
    "load_recipe",
]

_LATER = {
    "Batch": ".records",
    "Dataset": ".pipeline",
    "Pipeline": ".pipeline",
    "RankStream": ".run.stream",
    "Recipe": ".config",
    "RunSettings": ".config",
    "SourceConfig": ".config",
    "StaticMixtureWorkSource": ".pipeline",
    "TokenEstimation": ".pipeline",
    "load_recipe": ".config",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LATER[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
