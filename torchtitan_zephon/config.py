"""Settings as frozen dataclasses, and the strict way from a TOML table to them.

What flows in: a mapping (a TOML table, or keyword arguments). What flows out: a ``Recipe``
(everything that decides the stream) and ``RunSettings`` (everything that does not). The split
is the promise: two jobs with equal recipes deliver the same bytes whatever their run settings.
A key that is unknown, misspelt, of the wrong type or out of range is an error that names the
key, the value and the way out; nothing is ignored.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from .errors import ConfigError, nearest

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
    weight: float = setting(1.0, "Share of tokens, relative to the other weights; above 0.")
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
        "Bytes of each source that are tokenised once, when the stream begins, to measure its tokens per byte.",
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
    """Raise ``ConfigError`` for the first field of ``config`` of another type, choice or range."""
    hints = typing.get_type_hints(type(config))
    for f in dataclasses.fields(config):
        value = coerce(getattr(config, f.name), hints[f.name], f"{where}: {f.name}")
        low, high = f.metadata.get("low"), f.metadata.get("high")
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            continue
        if (low is not None and value < low) or (high is not None and value > high):
            allowed = f"{low} or more" if high is None else f"{low} to {high}"
            raise ConfigError(f"{where}: {f.name} = {value!r} is out of range; allowed: {allowed}.")


def check_weights(weights: Mapping[str, float]) -> None:
    """Raise ``ConfigError`` unless every weight is a finite number above zero."""
    for name, weight in weights.items():
        if not isinstance(weight, (int, float)) or not math.isfinite(weight) or weight <= 0:
            raise ConfigError(
                f"mixture: the weight of source {name!r} is {weight!r}; a weight is a finite number "
                "above 0 (a share of tokens; they need not add up to 1). To leave a source out, "
                "remove it."
            )


def from_table(cls: type[T], table: Mapping[str, Any], where: str) -> T:
    """Build the settings dataclass ``cls`` from a TOML table, refusing what does not fit.

    Raises ``ConfigError`` naming ``where.key``, the value, and the nearest valid key or type.
    """
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in hints:
            raise ConfigError(f"{where}.{key}: no such key. {nearest(key, hints)}")
        values[key] = coerce(value, hints[key], f"{where}.{key}")
    return cls(**values)


def coerce(value: Any, hint: Any, where: str) -> Any:
    """``value`` as ``hint`` (int, float, bool, str, Literal, X | None, list, dict, dataclass).

    Raises ``ConfigError`` if it is of another type; an int is accepted where a float is asked.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return coerce(value, args[0], where)
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
        return [coerce(v, args[0] if args else Any, f"{where}[{i}]") for i, v in enumerate(value)]
    if origin is dict and isinstance(value, Mapping):
        return {k: coerce(v, args[1], f"{where}.{k}") for k, v in value.items()}
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return from_table(hint, value, where)  # type: ignore[arg-type]
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    name = getattr(hint, "__name__", str(hint)) if origin is None else str(hint)
    raise ConfigError(f"{where} = {value!r} is a {type(value).__name__}; expected {name}.")


def load_toml(path: str | Path) -> dict[str, Any]:
    """The parsed TOML file; ``ConfigError`` if it is missing or malformed."""
    try:
        with open(path, "rb") as f:
            return tomllib.load(f)
    except FileNotFoundError:
        raise ConfigError(f"no such TOML file: {str(path)!r} (from {str(Path.cwd())!r}).") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} is not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror}.") from None


def anchor_paths(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """``table`` with relative source paths made absolute against ``folder``, their file's own."""
    sources = table.get("sources")
    if not isinstance(sources, Mapping):
        return dict(table)
    anchored = {
        name: {**source, "path": _anchor(source["path"], folder)}
        if isinstance(source, Mapping) and isinstance(source.get("path"), str) and source["path"]
        else source
        for name, source in sources.items()
    }
    return {**table, "sources": anchored}


def _anchor(path: str, folder: Path) -> str:
    return path if "://" in path else str(folder / Path(path).expanduser())


def load_recipe(path: str | Path) -> Recipe:
    """A recipe from a ``configs/*.toml`` file: the keys of ``Recipe`` at top level."""
    table = anchor_paths(load_toml(path), Path(path).resolve().parent)
    return from_table(Recipe, table, str(path))
