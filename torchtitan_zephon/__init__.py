"""Data loading for LLM pre-training that stays exactly the same when the hardware changes."""

from .config import Recipe, RunSettings, SourceConfig, load_recipe
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
