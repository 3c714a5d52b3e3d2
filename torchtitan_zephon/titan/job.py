"""One training job: a TOML file in TorchTitan 0.2's dialect with a ``[zephon]`` table, and overrides.

What flows in: the command line, ``--job.config_file X.toml [--section.key value ...]``. What flows
out: a ``Job``: TorchTitan's sections as plain tables, for one generation's module to map, and the
``[zephon]`` table as a ``Recipe`` (the stream), ``RunSettings`` (speed) and, if there is one, the
recipe of the validation set. Later wins: recipe file, job file, command line. A relative path is
relative to the file that states it; on the command line, to the working folder.

Neither torch nor TorchTitan is imported, so a wrong job fails in milliseconds. Section names are
checked here; the keys inside TorchTitan's sections by the generation that knows them.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ..config import Recipe, RunSettings, anchor_paths, coerce, from_table, load_toml
from ..errors import ConfigError, nearest

SECTIONS = (
    # TorchTitan 0.2's, the dialect of a job file ...
    "job",
    "model",
    "training",
    "parallelism",
    "checkpoint",
    "optimizer",
    "lr_scheduler",
    "metrics",
    "profiling",
    "activation_checkpoint",
    "compile",
    "comm",
    "debug",
    "validation",
    "quantize",
    "memory_estimation",
    "fault_tolerance",
    "experimental",
    # ... 0.3's where it has another name, or the section is new.
    "profiler",
    "validator",
    "loss",
    "tokenizer",
    "override",
    "zephon",
)
ALIASES = {"profiler": "profiling", "validator": "validation"}
"""0.3's name of a section -> the name it has in ``Job.sections``."""

RECIPE_KEYS = frozenset(f.name for f in dataclasses.fields(Recipe))
RUN_KEYS = frozenset(f.name for f in dataclasses.fields(RunSettings))
JOB_KEYS = frozenset({"recipe", "device", "validation"})
UNSHUFFLED = {"shuffle_chunks": False, "shuffle_records": False, "shuffle_buffer_sequences": 0}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A parsed job. ``sections`` holds what was written, and nothing that was not."""

    config_file: Path
    sections: dict[str, dict[str, Any]]
    recipe: Recipe
    settings: RunSettings
    validation: Recipe | None
    device: Literal["auto", "cpu"]

    @property
    def global_batch_size(self) -> int:
        """Sequences one optimizer step takes over all ranks; checked to be stated."""
        size: int = self.sections["training"]["global_batch_size"]
        return size


def parse_job(args: Sequence[str], stock: Mapping[str, Any]) -> Job:
    """The job that the command-line arguments ``args`` (without the program's name) describe.

    ``stock``: recipe keys that follow the installed TorchTitan's own loader where nothing is stated.
    Raises ``ConfigError`` for anything unknown, missing or of the wrong type.
    """
    overrides = parse_overrides(args)
    path = overrides.get("job", {}).pop("config_file", None)
    if not isinstance(path, str):
        raise ConfigError("no job file: add --job.config_file path/to/job.toml. See --help.")
    config_file = Path(path).expanduser()
    tables = load_toml(config_file)
    check_sections(tables, str(config_file))
    zephon = merged(
        anchored(tables.pop("zephon", {}), config_file.resolve().parent),
        anchored(overrides.pop("zephon", {}), Path.cwd()),
    )
    sections = merged(tables, overrides)
    return build_job(config_file, sections, zephon, stock)


def build_job(config_file: Path, sections: dict[str, Any], zephon: dict[str, Any], stock: Mapping[str, Any]) -> Job:
    """The ``Job`` of merged ``sections`` and the merged, path-anchored ``[zephon]`` table."""
    check_global_batch_size(sections)
    for key in zephon:
        if key not in RECIPE_KEYS | RUN_KEYS | JOB_KEYS:
            raise ConfigError(f"zephon.{key}: no such key. {nearest(key, RECIPE_KEYS | RUN_KEYS | JOB_KEYS)}")
    base = recipe_file(zephon["recipe"]) if "recipe" in zephon else {}
    recipe_table = merged(base, {k: v for k, v in zephon.items() if k in RECIPE_KEYS})
    if recipe_table.get("pack", "wrap") == "wrap":  # the stock loaders have no other packing
        recipe_table = merged(stock, recipe_table)
    recipe = from_table(Recipe, recipe_table, "zephon")
    check_sources(recipe, base, "zephon")
    return Job(
        config_file=config_file,
        sections=sections,
        recipe=recipe,
        settings=run_settings(zephon, sections),
        validation=validation_recipe(zephon.get("validation"), recipe_table, sections),
        device=coerce(zephon.get("device", "auto"), Literal["auto", "cpu"], "zephon.device"),
    )


def parse_overrides(args: Sequence[str]) -> dict[str, dict[str, Any]]:
    """``--section.key value``, ``--section.key=value``, ``--section.flag`` and ``--section.no_flag``
    as nested tables. A value is a TOML literal if it reads as one, else a string; the last wins.
    """
    tables: dict[str, dict[str, Any]] = {}
    rest = list(args)
    while rest:
        word = rest.pop(0)
        name, equals, text = word.partition("=")
        if not name.startswith("--") or len(name) < 3:
            raise ConfigError(f"argument {word!r}: expected --section.key value.")
        *path, key = name[2:].split(".")
        if not path or not all((*path, key)):
            raise ConfigError(f"argument {word!r}: an override names a section and a key, as in --training.steps 20.")
        value: Any
        if equals:
            value = literal(text)
        elif rest and not rest[0].startswith("--"):
            value = literal(rest.pop(0))
        elif key[:3] in ("no_", "no-"):
            key, value = key[3:], False
        else:
            value = True
        table: Any = tables
        for part in path:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError(f"argument {word!r}: {part!r} was given a value before, so it has no keys.")
        table[key] = value
    check_sections(tables, "command line")
    return tables


def literal(text: str) -> Any:
    """``text`` as the TOML literal it spells (``20``, ``1e-4``, ``true``, ``["a", "b"]``), else as is."""
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = table["value"]
    return value if len(table) == 1 and isinstance(value, (bool, int, float, str, list, dict)) else text


def check_sections(tables: dict[str, Any], where: str) -> None:
    """Refuse unknown sections in ``tables``; rename 0.3's section names to those of ``Job``."""
    for name, table in tables.items():
        if name not in SECTIONS:
            raise ConfigError(f"{where}: no section [{name}]. {nearest(name, SECTIONS)}")
        if not isinstance(table, Mapping):
            raise ConfigError(f"{where}: {name} = {table!r}: [{name}] is a section of keys, not a value.")
    for new, old in ALIASES.items():
        if new in tables and old in tables:
            raise ConfigError(f"{where}: [{new}] and [{old}] are one section under two names; keep one.")
        if new in tables:
            tables[old] = tables.pop(new)


def check_global_batch_size(sections: Mapping[str, Any]) -> None:
    """Refuse a job whose ``training.global_batch_size`` is left to the number of GPUs."""
    size = sections.get("training", {}).get("global_batch_size")
    if isinstance(size, int) and not isinstance(size, bool) and size >= 1:
        return
    stated = "is not set" if size is None else f"= {size!r}"
    raise ConfigError(
        f"training.global_batch_size {stated}; it must be a number of sequences, 1 or more. "
        "TorchTitan's default, -1, grows with the GPU count, so the stream of batches would too. Set "
        "it to local batch size x data-parallel ranks x accumulation steps, e.g. global_batch_size = 256."
    )


def anchored(zephon: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The ``[zephon]`` table with every relative path in it made absolute against ``folder``."""
    table = anchor_paths(zephon, folder)
    if isinstance(table.get("recipe"), str):
        table["recipe"] = str(folder / Path(table["recipe"]).expanduser())
    if isinstance(table.get("validation"), Mapping):
        table["validation"] = anchor_paths(table["validation"], folder)
    return table


def recipe_file(path: Any) -> dict[str, Any]:
    """The table of the recipe file at ``path``, its source paths anchored, its keys checked."""
    path = coerce(path, str, "zephon.recipe")
    table = anchor_paths(load_toml(path), Path(path).parent)
    for key in table:
        if key not in RECIPE_KEYS:
            raise ConfigError(f"{path}: {key}: no such key of a recipe. {nearest(key, RECIPE_KEYS)}")
    return table


def run_settings(zephon: Mapping[str, Any], sections: Mapping[str, Any]) -> RunSettings:
    """The run settings of ``[zephon]``; its ``ledger = true`` means ``<job.dump_folder>/ledger``."""
    table = {k: v for k, v in zephon.items() if k in RUN_KEYS}
    if isinstance(table.get("allow_changes"), str):  # one word, or words with commas, as TorchTitan's own lists
        table["allow_changes"] = table["allow_changes"].split(",")
    if coerce(table.pop("ledger", False), bool, "zephon.ledger"):
        folder = coerce(sections.get("job", {}).get("dump_folder", "./outputs"), str, "job.dump_folder")
        table["ledger"] = str(Path(folder) / "ledger")
    return from_table(RunSettings, table, "zephon")


def validation_recipe(table: Any, training: Mapping[str, Any], sections: Mapping[str, Any]) -> Recipe | None:
    """The recipe of ``[zephon.validation]``: its own sources, the rest inherited, not shuffled.

    Raises ``ConfigError`` if ``[validation]`` is enabled and no source is named.
    """
    if table is None:
        if sections.get("validation", {}).get("enable"):
            raise ConfigError(
                "validation.enable is true and there is no validation data: add a table such as "
                '[zephon.validation.sources.NAME] with path = "data/valid.jsonl".'
            )
        return None
    table = coerce(table, dict[str, Any], "zephon.validation")
    inherited = {k: v for k, v in training.items() if k != "sources"}
    recipe = from_table(Recipe, {**inherited, **UNSHUFFLED, **table}, "zephon.validation")
    check_sources(recipe, {}, "zephon.validation")
    return recipe


def check_sources(recipe: Recipe, base: Mapping[str, Any], where: str) -> None:
    """Refuse a recipe without sources, and a source without a path (often a misspelt name)."""
    if not recipe.sources:
        way = ' or name a recipe file with recipe = "configs/X.toml"' if where == "zephon" else ""
        raise ConfigError(
            f"{where}.sources: there is no data source. Add a table [{where}.sources.NAME] with "
            f'path = "data/*.jsonl"{way}.'
        )
    known = base.get("sources", {})
    for name, source in recipe.sources.items():
        if not source.path:
            hint = f" The recipe file has no source of that name. {nearest(name, known)}" if known else ""
            raise ConfigError(f"{where}.sources.{name} has no path: a file, folder or glob of JSONL or Parquet.{hint}")


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` updated by ``over``, tables merged key by key at every depth."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        result[key] = merged(below, value) if both else value  # type: ignore[arg-type]
    return result
