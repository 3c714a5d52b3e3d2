"""One training job: a TOML file in TorchTitan 0.2's dialect with a ``[zephon]`` table, and overrides.

What flows in: the command line, ``--job.config_file X.toml [--section.key value ...]``. What flows
out: a ``Job``: TorchTitan's sections as plain tables, for one generation's module to map, and the
``[zephon]`` table as a ``Recipe`` (the stream), ``RunSettings`` (speed) and, if there is one, the
recipe of the validation set. Later wins: recipe file, job file, command line. A relative path is
relative to the file that states it; on the command line, to the working folder.

Neither torch nor TorchTitan is imported, so a wrong job fails in milliseconds. Section names are
checked here; the keys inside TorchTitan's sections by the generation that knows them. Everything that
is wrong is told at once.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ..config import Recipe, RunSettings, SourceConfig, recipe_table
from ..errors import ConfigError, Problems, nearest
from ..paths import anchor_paths
from ..settings import coerce, read_table
from ..toml_files import load_toml

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

SOURCE_KEYS = frozenset(f.name for f in dataclasses.fields(SourceConfig))
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
        """Sequences one optimizer step takes over all ranks. Raises ``ConfigError`` if it is not stated."""
        check_global_batch_size(self.sections)
        size: int = self.sections["training"]["global_batch_size"]
        return size


def parse_job(args: Sequence[str], stock: Mapping[str, Any]) -> Job:
    """The job that the command-line arguments ``args`` (without the program's name) describe.

    ``stock``: recipe keys that follow the installed TorchTitan's own loader where nothing is stated.
    Raises ``ConfigError`` for everything unknown, missing or of the wrong type.
    """
    problems = Problems()
    job = read_job(args, stock, problems)
    problems.refuse()
    return job


def read_job(args: Sequence[str], stock: Mapping[str, Any], problems: Problems) -> Job:
    """The same, but what is wrong is noted in ``problems`` and left out.

    Raises ``ConfigError`` only where there is no job to look at: a command line or a file that cannot be parsed.
    """
    overrides = parse_overrides(args)
    path = overrides.get("job", {}).pop("config_file", None)
    if not isinstance(path, str):
        raise ConfigError("no job file: add --job.config_file path/to/job.toml. See --help.")
    config_file = Path(path).expanduser()
    tables = load_toml(config_file)
    check_is_job(tables, path)
    for table, where in ((tables, str(config_file)), (overrides, "command line")):
        check_sections(table, where, problems)
    zephon = merged(
        anchor_paths(tables.pop("zephon", {}), config_file),
        anchor_paths(overrides.pop("zephon", {}), None),
    )
    return _job(config_file, merged(tables, overrides), zephon, stock, problems)


def build_job(config_file: Path, sections: dict[str, Any], zephon: dict[str, Any], stock: Mapping[str, Any]) -> Job:
    """The ``Job`` of merged ``sections`` and the merged, path-anchored ``[zephon]`` table."""
    problems = Problems()
    job = _job(config_file, sections, zephon, stock, problems)
    problems.refuse()
    return job


def _job(
    config_file: Path, sections: dict[str, Any], zephon: dict[str, Any], stock: Mapping[str, Any], problems: Problems
) -> Job:
    with problems:
        check_global_batch_size(sections)
    known = RECIPE_KEYS | RUN_KEYS | JOB_KEYS
    for key in zephon:
        if key not in known:
            problems.note(f"zephon.{key}: no such key. {nearest(key, known)}")
    base: dict[str, Any] = {}
    with problems:
        base = recipe_file(zephon["recipe"], problems) if "recipe" in zephon else {"sources": {}}
    table = merged(base, {k: v for k, v in zephon.items() if k in RECIPE_KEYS})
    if table.get("pack", "wrap") == "wrap":  # the stock loaders have no other packing
        table = merged(stock, table)
    recipe = with_sources(read_table(Recipe, table, "zephon", problems), table, base, "zephon", problems)
    device: Literal["auto", "cpu"] = "auto"
    with problems:
        device = coerce(zephon.get("device", device), Literal["auto", "cpu"], "zephon.device")
    return Job(
        config_file=config_file,
        sections=sections,
        recipe=recipe,
        settings=run_settings(zephon, sections, problems),
        validation=validation_recipe(zephon.get("validation"), table, sections, problems),
        device=device,
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
    return tables


def literal(text: str) -> Any:
    """``text`` as the TOML literal it spells (``20``, ``1e-4``, ``true``, ``["a", "b"]``), else as is."""
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = table["value"]
    return value if len(table) == 1 and isinstance(value, (bool, int, float, str, list, dict)) else text


def check_is_job(tables: Mapping[str, Any], path: str) -> None:
    """Refuse a recipe file that is given in place of a job."""
    if tables.keys() & RECIPE_KEYS and not tables.keys() & set(SECTIONS):
        raise ConfigError(
            f"{path!r} is a recipe, not a job: it has the keys of [zephon] at its top level, and no section such as "
            f"[training]. Name it in the [zephon] table of a job: recipe = {path!r}. To look at the recipe alone: "
            f"torchtitan-zephon explain {path} --tokenizer FOLDER."
        )


def check_sections(tables: dict[str, Any], where: str, problems: Problems) -> None:
    """Note unknown sections in ``tables`` and drop them; rename 0.3's section names to those of ``Job``."""
    for name, table in list(tables.items()):
        if name not in SECTIONS:
            problems.note(f"{where}: no section [{name}]. {nearest(name, SECTIONS)}")
        elif not isinstance(table, Mapping):
            problems.note(f"{where}: {name} = {table!r}: [{name}] is a section of keys, not a value.")
        else:
            continue
        del tables[name]
    for new, old in ALIASES.items():
        if new in tables and old in tables:
            problems.note(f"{where}: [{new}] and [{old}] are one section under two names; keep one.")
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


def recipe_file(path: Any, problems: Problems) -> dict[str, Any]:
    """The table of the recipe file at ``path``, its source paths anchored, without keys that a recipe does not have."""
    path = coerce(path, str, "zephon.recipe")
    table = recipe_table(path)
    for key in table:
        if key not in RECIPE_KEYS:
            problems.note(f"{path}: {key}: no such key of a recipe. {nearest(key, RECIPE_KEYS)}")
    return {"sources": {}, **{k: v for k, v in table.items() if k in RECIPE_KEYS}}


def run_settings(zephon: Mapping[str, Any], sections: Mapping[str, Any], problems: Problems) -> RunSettings:
    """The run settings of ``[zephon]``; its ``ledger = true`` means ``<job.dump_folder>/ledger``."""
    table = {k: v for k, v in zephon.items() if k in RUN_KEYS}
    if isinstance(table.get("allow_changes"), str):  # one word, or words with commas, as TorchTitan's own lists
        table["allow_changes"] = table["allow_changes"].split(",")
    ledger = table.pop("ledger", False)
    with problems:
        if coerce(ledger, bool, "zephon.ledger"):
            folder = coerce(sections.get("job", {}).get("dump_folder", "./outputs"), str, "job.dump_folder")
            table["ledger"] = str(Path(folder) / "ledger")
    return read_table(RunSettings, table, "zephon", problems)


def validation_recipe(
    table: Any, training: Mapping[str, Any], sections: Mapping[str, Any], problems: Problems
) -> Recipe | None:
    """The recipe of ``[zephon.validation]``: its own sources, the rest inherited, not shuffled.

    It is a problem if ``[validation]`` is enabled and no source is named.
    """
    where = "zephon.validation"
    if table is None:
        if sections.get("validation", {}).get("enable"):
            problems.note(
                "validation.enable is true and there is no validation data: add a table such as "
                '[zephon.validation.sources.NAME] with path = "data/valid.jsonl".'
            )
        return None
    own: dict[str, Any] = {}
    with problems:
        own = coerce(table, dict[str, Any], where)
    inherited = {k: v for k, v in training.items() if k != "sources"}
    recipe = read_table(Recipe, {**inherited, **UNSHUFFLED, **own}, where, problems)
    return with_sources(recipe, own, {"sources": {}}, where, problems)


def with_sources(
    recipe: Recipe, table: Mapping[str, Any], base: Mapping[str, Any], where: str, problems: Problems
) -> Recipe:
    """``recipe`` of ``table`` without the sources that have no path (often a misspelt name), each of them noted.

    ``base``: the recipe file's table; without a key "sources" if it could not be read, which is a problem already.
    """
    stated = table.get("sources", {})
    if not stated and "sources" in base:
        way = ' or name a recipe file with recipe = "configs/X.toml"' if where == "zephon" else ""
        problems.note(
            f"{where}.sources: there is no data source. Add a table [{where}.sources.NAME] with "
            f'path = "data/*.jsonl"{way}.'
        )
    known = base.get("sources", {})
    for name, source in recipe.sources.items():
        if not source.path and not stated[name].keys() - SOURCE_KEYS and not stated[name].get("path"):
            hint = f" The recipe file has no source of that name. {nearest(name, known)}" if known else ""
            problems.note(f"{where}.sources.{name} has no path: a file, folder or glob of JSONL or Parquet.{hint}")
    return dataclasses.replace(recipe, sources={n: s for n, s in recipe.sources.items() if s.path})


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` updated by ``over``, tables merged key by key at every depth."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        result[key] = merged(below, value) if both else value  # type: ignore[arg-type]
    return result
