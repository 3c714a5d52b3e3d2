"""The configuration reference, made from the dataclasses: ``docs/configuration.md``.

python -m torchtitan_zephon.reference > docs/configuration.md
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Iterable
from typing import Any

from .config import Recipe, RunSettings, SourceConfig

_HEAD = """# Configuration reference

Made by `python -m torchtitan_zephon.reference`; a test compares it with the code.

A job is a TOML file in TorchTitan's own sections plus a `[zephon]` table, run with

    torchrun --nproc-per-node N -m torchtitan_zephon.train --job.config_file JOB.toml [--section.key value ...]

The keys below stand in `[zephon]`. Those of the stream may instead stand at the top level of a recipe file that the job
names with `recipe = "../configs/demo.toml"`; a key in the job overrides the recipe file's. A key given on the command
line (`--zephon.lanes 64`) overrides both. An unknown key is an error.
"""
_JOB = """
## Only in a job

| key | default | meaning |
|---|---|---|
| `recipe` | none | A recipe file, relative to the job file. |
| `ledger` | `false` | Write the SHA-256 of every global batch to `<dump_folder>/ledger`. |
| `device` | `"auto"` | `"auto"` trains on a CPU only where there is no accelerator; `"cpu"` always. |
| `validation` | none | `sources` (and any key of the stream) for TorchTitan's validator; the rest is the job's, unshuffled. |
"""


def reference() -> str:
    """The reference as Markdown."""
    parts = [_HEAD, "\n## The stream: decides every byte, stored in checkpoints\n", _table(Recipe)]
    parts += ["\n## A source: `[zephon.sources.NAME]`\n", _table(SourceConfig)]
    parts += [
        "\n## How it runs: what the lanes deliver stays the same\n",
        _table(RunSettings, leave_out={"ledger"}),
        _JOB,
    ]
    return "\n".join(parts)


def _table(config: type[Any], leave_out: frozenset[str] | set[str] = frozenset()) -> str:
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    hints = typing.get_type_hints(config)
    own = config.__annotations__  # before those of its stages
    for f in sorted(dataclasses.fields(config), key=lambda f: f.name not in own):
        if f.name in leave_out:
            continue
        default = f"`{_toml(f.default_factory() if f.default is dataclasses.MISSING else f.default)}`"  # type: ignore[operator]
        low, high = f.metadata["low"], f.metadata["high"]
        allowed = "" if low is None else f" Allowed: {low} or more." if high is None else f" Allowed: {low} to {high}."
        kind = _choices(f.metadata["choices"]) or _type(hints[f.name])
        rows.append(f"| `{f.name}` | {kind} | {default} | {f.metadata['doc']}{allowed} |")
    return "\n".join(rows)


def _toml(value: Any) -> str:
    if value is None or value == {}:
        return "none"
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


def _choices(values: Iterable[Any]) -> str:
    return " or ".join(f'`"{v}"`' for v in values)


def _type(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return _choices(typing.get_args(hint))
    if typing.get_origin(hint) is list:
        return f"list of {_type(typing.get_args(hint)[0])}"
    if typing.get_origin(hint) is dict:
        return "tables"
    if isinstance(hint, types.UnionType):
        return " or ".join(_type(kind) for kind in typing.get_args(hint) if kind is not type(None))
    return str(hint.__name__)


if __name__ == "__main__":
    sys.stdout.write(reference())
