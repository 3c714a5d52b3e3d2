"""The paths that settings state, made absolute, each with a sentence on where it was stated.

A path is relative to the TOML file that states it; on the command line, to the working folder. Users mix the two up, so
the error for a path that leads nowhere says which of them was meant. TorchTitan's own paths, such as
``model.hf_assets_path``, are relative to the working folder wherever they are stated, and left as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PATHS = (("recipe",), ("cache_folder",), ("sources", "*", "path"), ("validation", "sources", "*", "path"))
"""The keys that hold a path, from the top of a ``[zephon]`` table or a recipe file; ``*`` is any key."""


class StatedPath(str):
    """A path made absolute. ``hint``: a sentence on how it was stated, for the error that it may lead to."""

    hint = ""


def anchor_paths(table: Mapping[str, Any], file: str | Path | None) -> dict[str, Any]:
    """``table``, stated in the TOML file ``file`` or (None) on the command line, with its ``PATHS`` made absolute."""
    if file is None:
        folder = Path.cwd()
        place = f"on the command line, where a relative path is relative to the working folder, {str(folder)!r}"
    else:
        folder = Path(file).resolve().parent
        place = f"in {str(Path(file).resolve())!r}, and a relative path in a TOML file is relative to that file"
    for keys in PATHS:
        table = _anchored(table, keys, folder, place)
    return dict(table)


def _anchored(value: Any, keys: Sequence[str], folder: Path, place: str) -> Any:
    """``value`` with what is found along ``keys`` made absolute; what is no text, or no table, is left as it is."""
    if keys:
        if not isinstance(value, Mapping):
            return value
        first, *rest = keys
        names = value.keys() if first == "*" else value.keys() & {first}
        return {**value, **{name: _anchored(value[name], rest, folder, place) for name in names}}
    if not isinstance(value, str) or not value or "://" in value:
        return value
    given = Path(value).expanduser()
    path = StatedPath(folder / given)
    if not given.is_absolute():
        path.hint = f"It is stated as {value!r} {place}."
    return path
