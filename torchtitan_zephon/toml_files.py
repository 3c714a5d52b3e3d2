"""A TOML file as a table, and the paths in it made absolute, each with a sentence on where it was stated.

A path is relative to the file that states it; on the command line, to the working folder. Users mix the two up, so
the error for a path that leads nowhere says which of them was meant.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .errors import ConfigError


def load_toml(path: str | Path) -> dict[str, Any]:
    """The parsed TOML file; ``ConfigError`` if it is missing or malformed."""
    try:
        with open(path, "rb") as f:
            return tomllib.load(f)
    except FileNotFoundError:
        where = path.hint if isinstance(path, StatedPath) else f"A relative path is relative to {str(Path.cwd())!r}."
        raise ConfigError(f"no such TOML file: {str(path)!r}. {where}".rstrip()) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} is not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror}.") from None


class StatedPath(str):
    """A path made absolute. ``hint``: a sentence on how it was stated, for the error that it may lead to."""

    hint = ""


class Origin(NamedTuple):
    """Where paths were stated: the folder that they are relative to, and that place in words."""

    folder: Path
    words: str

    @classmethod
    def file(cls, path: str | Path) -> Origin:
        """In the TOML file at ``path``."""
        path = Path(path).resolve()
        return cls(path.parent, f"in {str(path)!r}, and a relative path in a TOML file is relative to that file")

    @classmethod
    def command_line(cls) -> Origin:
        """In an override."""
        folder = Path.cwd()
        return cls(
            folder, f"on the command line, where a relative path is relative to the working folder, {str(folder)!r}"
        )

    def anchored(self, path: str) -> str:
        """``path``, made absolute unless it is remote."""
        if "://" in path:
            return path
        given = Path(path).expanduser()
        full = StatedPath(self.folder / given)
        if not given.is_absolute():
            full.hint = f"It is stated as {path!r} {self.words}."
        return full


def anchor_paths(table: Mapping[str, Any], origin: Origin) -> dict[str, Any]:
    """``table`` with the paths of its sources, which were stated at ``origin``, made absolute."""
    sources = table.get("sources")
    if not isinstance(sources, Mapping):
        return dict(table)
    anchored = {
        name: {**source, "path": origin.anchored(source["path"])}
        if isinstance(source, Mapping) and isinstance(source.get("path"), str) and source["path"]
        else source
        for name, source in sources.items()
    }
    return {**table, "sources": anchored}
