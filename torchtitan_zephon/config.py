"""Settings as frozen dataclasses, and the strict way from a TOML table to them.

What flows in: a mapping (a TOML table, or keyword arguments). What flows out: a ``Recipe``
(everything that decides the stream) and ``RunSettings`` (everything that does not). The split
is the promise: two jobs with equal recipes deliver the same bytes whatever their run settings.
A key that is unknown, misspelt, of the wrong type or out of range is an error that names the
key, the value and the way out; nothing is ignored. All errors of a table are told at once.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from .errors import ConfigError, Problems, nearest
from .paths import anchor_paths
from .toml_files import load_toml

T = TypeVar("T")


def setting(default: Any, doc: str, *, low: float | None = None, high: float | None = None) -> Any:
    """A dataclass field with its documentation and its allowed range (both ends included)."""
    metadata = {"doc": doc, "low": low, "high": high}
    if isinstance(default, (dict, list)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SourceConfig:
    """One named source: ``[zephon.sources.NAME]``."""

    path: str = setting("", "File, folder or glob of JSONL or Parquet; relative to the TOML file.")
    weight: float = setting(
        1.0, "Share of tokens, relative to the other weights; above 0. Give one to every source, or to none."
    )
    field: str = setting("text", "Name of the record's text field (JSONL) or column (Parquet).")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """All that decides the stream. Stored in checkpoints; a resume compares it field by field."""

    sources: dict[str, SourceConfig] = setting({}, "The mixture: one table a source.")
    lanes: int = setting(
        32,
        "Independent streams; the data-parallel degree must divide it, unless `shared_lanes` is on. Choose it once: "
        "the largest number of data-parallel ranks you may ever use.",
        low=1,
        high=65536,
    )
    seed: int = setting(0, "Seed of every random choice.", low=0, high=2**63 - 1)
    pack: Literal["wrap", "first_fit"] = setting(
        "wrap",
        "`wrap` cuts the token stream at seq_len, never pads; `first_fit` keeps documents "
        "whole where they fit and pads the rest.",
    )
    label_shift: Literal["document", "sequence"] = setting(
        "document",
        "Labels are the next token within each `document`, so that none is predicted across a border (TorchTitan "
        "0.3.0's stock loader), or within the whole `sequence`, borders included (0.2.2's).",
    )
    shuffle_chunks: bool = setting(True, "Read the chunks of a source in a new order each epoch.")
    shuffle_records: bool = setting(True, "Permute the records inside each chunk.")
    shuffle_buffer_sequences: int = setting(
        128,
        "Size of a lane's shuffle buffer in sequences; 0 turns it off. It grows from 16 by one for every two "
        "sequences and empties at a flush, so it never holds more than 16 + flush_every_sequences / 2.",
        low=0,
        high=2**20,
    )
    shuffle_seed: int | None = setting(
        None, "Seed of the shuffle buffer; the same as `seed` if not given.", low=0, high=2**63 - 1
    )
    flush_every_sequences: int = setting(
        256,
        "A lane empties its buffers after this many packed sequences. A restore replays up to one such stretch a lane.",
        low=1,
        high=2**30,
    )
    chunk_bytes: int = setting(
        256 * 1024,
        "Target size of a chunk, the unit of planning and reading; smaller sources get smaller chunks.",
        low=4096,
        high=2**30,
    )
    estimate_bytes: int = setting(
        512 * 1024,
        "Tokens per byte of each source are measured when the stream begins, at one place for every 4 KiB of this.",
        low=1,
        high=2**32,
    )
    repeat: bool = setting(True, "Go through the sources for ever, or exactly once.")
    add_bos: bool = setting(True, "Begin every document with the tokenizer's BOS token, if it has one.")
    add_eos: bool = setting(True, "End every document with the tokenizer's EOS token, if it has one.")
    special_tokens_in_text: Literal["plain", "parse"] = setting(
        "plain",
        "Text that spells a special token is ordinary text (`plain`), or becomes the "
        "token (`parse`, TorchTitan's stock behaviour).",
    )

    def __post_init__(self) -> None:
        check_fields(self, "recipe")
        if (self.pack, self.label_shift) == ("first_fit", "sequence"):
            raise ConfigError(
                "recipe: pack = 'first_fit' puts unrelated documents side by side, so label_shift = 'sequence' would "
                "train on their borders; use label_shift = 'document', or pack = 'wrap'."
            )
        check_weights({name: source.weight for name, source in self.sources.items()})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
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


def check_fields(config: Any, where: str) -> None:
    """Raise ``ConfigError`` for the fields of ``config`` that are of another type, choice or range."""
    hints = typing.get_type_hints(type(config))
    problems = Problems()
    for f in dataclasses.fields(config):
        with problems:
            check_range(f, coerce(getattr(config, f.name), hints[f.name], f"{where}: {f.name}"), f"{where}: {f.name}")
    problems.refuse()


def check_range(field: dataclasses.Field[Any], value: Any, where: str) -> None:
    """Raise ``ConfigError`` for a number that ``field`` does not allow."""
    low, high = field.metadata.get("low"), field.metadata.get("high")
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return
    if (low is not None and value < low) or (high is not None and value > high):
        allowed = f"{low} or more" if high is None else f"{low} to {high}"
        raise ConfigError(f"{where} = {value!r} is out of range; allowed: {allowed}.")


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


def from_table(cls: type[T], table: Mapping[str, Any], where: str) -> T:
    """Build the settings dataclass ``cls`` from a TOML table, refusing what does not fit.

    Raises ``ConfigError`` naming ``where.key``, the value, and the nearest valid key or type, for every key.
    """
    problems = Problems()
    settings = read_table(cls, table, where, problems)
    problems.refuse()
    return settings


def read_table(cls: type[T], table: Mapping[str, Any], where: str, problems: Problems) -> T:
    """The same, but what does not fit is noted in ``problems`` and left at its default."""
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in table.items():
        with problems:
            if key not in fields:
                raise ConfigError(f"{where}.{key}: no such key. {nearest(key, fields)}")
            taken = _coerced(value, hints[key], f"{where}.{key}", problems)
            check_range(fields[key], taken, f"{where}.{key}")
            values[key] = taken
    if cls is Recipe:
        with problems:
            check_all_weighted(table.get("sources"), where)
    with problems:
        return cls(**values)
    for left_out in values:  # keys that are right alone and wrong together: all but one of them
        with suppress(ConfigError):
            return cls(**{key: value for key, value in values.items() if key != left_out})
    return cls()


def coerce(value: Any, hint: Any, where: str) -> Any:
    """``value`` as ``hint`` (int, float, bool, str, Literal, X | None, list, dict, dataclass).

    Raises ``ConfigError`` if it is of another type; an int is accepted where a float is asked.
    """
    problems = Problems()
    result = None
    with problems:
        result = _coerced(value, hint, where, problems)
    problems.refuse()
    return result


def _coerced(value: Any, hint: Any, where: str, problems: Problems) -> Any:
    """The same; what is wrong inside a list, dict or dataclass is noted in ``problems`` and left out."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _coerced(value, args[0], where, problems)
    if hint is Any:
        return value
    if origin is Literal:
        if value not in args:
            raise ConfigError(
                f"{where} = {value!r}: not one of {', '.join(map(repr, args))}. {nearest(str(value), map(str, args))}"
            )
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        options = [a for a in args if a is not type(None)]
        for option in options:
            try:
                return coerce(value, option, where)
            except ConfigError:
                if option is options[-1]:
                    raise
    if origin is list and isinstance(value, list):
        items = {f"[{i}]": v for i, v in enumerate(value)}
        return list(_each(items, args[0] if args else Any, where, problems).values())
    if origin is dict and isinstance(value, Mapping):
        items = {f".{k}": v for k, v in value.items()}
        return {k[1:]: v for k, v in _each(items, args[1], where, problems).items()}
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return read_table(hint, value, where, problems)  # type: ignore[arg-type]
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    name = getattr(hint, "__name__", str(hint)) if origin is None else str(hint)
    raise ConfigError(f"{where} = {value!r} is a {type(value).__name__}; expected {name}.")


def _each(items: Mapping[str, Any], hint: Any, where: str, problems: Problems) -> dict[str, Any]:
    """The values of ``items`` as ``hint``, without those that are not; a key is what follows ``where`` in an error."""
    taken: dict[str, Any] = {}
    for place, value in items.items():
        with problems:
            taken[place] = _coerced(value, hint, f"{where}{place}", problems)
    return taken


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
