"""What a user can set: the recipe, which decides the stream, and how it runs.

What flows in: a mapping (a TOML table, or keyword arguments). What flows out: a ``Recipe``
(everything that decides the stream) and ``RunSettings`` (everything that does not). The split
is the promise: two jobs with equal recipes deliver the same bytes whatever their run settings.
A recipe's keys are those of its stages, which stand beside the stages.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from .bad_records import BadRecordSettings
from .errors import ConfigError, Problems
from .ops.pack import PackSettings
from .ops.shuffle import ShuffleSettings
from .ops.tokenize import TokenizeSettings
from .paths import anchor_paths
from .plan.chunking import ChunkSettings
from .plan.segments import SegmentSettings
from .read.settings import SourceConfig as SourceConfig
from .read.stores.settings import StorageSettings
from .settings import check_fields, from_table, setting
from .toml_files import load_toml


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe(TokenizeSettings, SegmentSettings, PackSettings, ShuffleSettings, ChunkSettings, BadRecordSettings):
    """All that decides the stream. Stored in checkpoints; a resume compares it field by field."""

    sources: dict[str, SourceConfig] = setting({}, "The mixture: one table a source.", in_identity=False)
    lanes: int = setting(
        32,
        "Independent streams; the data-parallel degree must divide it, unless `shared_lanes` is on. Choose it once: "
        "the largest number of data-parallel ranks you may ever use.",
        low=1,
        high=65536,
    )
    seed: int = setting(0, "Seed of every random choice.", low=0, high=2**63 - 1)
    estimate_bytes: int = setting(
        512 * 1024,
        "Tokens per byte of each source are measured when the stream begins, at one place for every 4 KiB of this.",
        low=1,
        high=2**32,
    )
    repeat: bool = setting(True, "Go through the sources for ever, or exactly once.")

    def __post_init__(self) -> None:
        check_fields(self, "recipe")
        self.check_packing()
        check_weights({name: source.weight for name, source in self.sources.items()})

    @staticmethod
    def check_table(table: Mapping[str, Any], where: str) -> None:
        """What only the table shows: whether every source has a weight, or none."""
        check_all_weighted(table.get("sources"), where)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings(StorageSettings):
    """Speed, reporting, and what a resume may change. None changes a byte of any lane, hence not recipe."""

    workers: int = setting(2, "Threads a rank that read and tokenise. Results are put back in order.", low=1, high=1024)
    tokenizer_backend: Literal["auto", "hf", "fastokens"] = setting(
        "auto",
        "What encodes the text: `hf`, Hugging Face `tokenizers`; `fastokens`, the same ids 30 times faster, for the "
        "tokenizers that it is checked to match (an extra, `fast`); `auto`, fastokens where it is installed and "
        "matches. A checkpoint names the one in use, and a resume keeps it.",
    )
    runner: Literal["thread", "process"] = setting(
        "thread",
        "Where the engine runs: in threads of the trainer, or in one `process` of its own, so that reading, tokenising "
        "and packing never hold the trainer's interpreter (Linux).",
    )
    prefetch_bytes: int = setting(
        256 * 2**20,
        "Ceiling on the chunk bytes a rank has in work or waiting. A lane may always "
        "have one chunk, whatever its size.",
        low=1,
    )
    shared_lanes: bool = setting(
        False,
        "Let ranks share a lane where `lanes` does not divide by their number, as after losing a node: any number "
        "that divides the global batch will do. A shared lane is read by each of its ranks.",
    )
    allow_changes: list[Literal["global_batch_size", "tokenizer_backend"]] = setting(
        [],
        "What a resume may change besides speed. `global_batch_size`: the lanes go on where they are, and a step takes "
        "another number of sequences from each. `tokenizer_backend`: another goes on, whose ids should be the same.",
    )
    ledger: str | None = setting(None, "Folder for the batch ledger: SHA-256 of every global batch. None writes none.")

    def __post_init__(self) -> None:
        check_fields(self, "run settings")
        self.check_storage()


def check_weights(weights: Mapping[str, float]) -> None:
    """Raise ``ConfigError`` unless every weight is a finite number above zero."""
    problems = Problems()
    for name, weight in weights.items():
        if not isinstance(weight, (int, float)) or not math.isfinite(weight) or weight <= 0:
            problems.note(
                f"mixture: the weight of source {name!r} is {weight!r}; a weight is a finite number "
                "above 0 (a share of tokens; they need not add up to 1). To leave a source out, "
                "remove it."
            )
    problems.refuse()


def check_all_weighted(sources: Any, where: str) -> None:
    """Raise ``ConfigError`` where some of the tables ``sources`` state a weight and others do not."""
    tables = {n: t for n, t in sources.items() if isinstance(t, Mapping)} if isinstance(sources, Mapping) else {}
    stated = {name: table["weight"] for name, table in tables.items() if "weight" in table}
    known = {f.name for f in dataclasses.fields(SourceConfig)}  # a misspelt weight is told as that
    missing = [repr(name) for name, table in tables.items() if name not in stated and table.keys() <= known]
    if stated and missing:
        others = ", ".join(f"{name} = {weight!r}" for name, weight in stated.items())
        raise ConfigError(
            f"{where}.sources: there is no weight for {', '.join(missing)}, and other sources have one ({others}). A "
            "weight is a share of tokens beside those of the others, so none can be assumed. Give each source a "
            "weight; or give none, and all shares are equal."
        )


JOB_TABLES = ("zephon", "model", "training", "job")
"""Tables of which every job has one, and a recipe none."""


def is_job(table: Mapping[str, Any]) -> bool:
    """Whether a TOML file is a job, and not a recipe."""
    return any(isinstance(table.get(name), Mapping) for name in JOB_TABLES)


def load_recipe(path: str | Path) -> Recipe:
    """A recipe from a ``configs/*.toml`` file: the keys of ``Recipe`` at top level."""
    return from_table(Recipe, recipe_table(path), str(path))


def recipe_table(path: str | Path) -> dict[str, Any]:
    """The table of a recipe file, its source paths anchored. Raises ``ConfigError``, also for a job."""
    table = load_toml(path)
    if is_job(table):
        raise ConfigError(
            f"{str(path)!r} is a job, not a recipe: it has sections, and a recipe has the keys of [zephon] at its top "
            f"level. To look at a job: torchtitan-zephon explain {path}, or check {path}. To train it: torchrun ... "
            f"-m torchtitan_zephon.train --job.config_file {path}."
        )
    return anchor_paths(table, path)
