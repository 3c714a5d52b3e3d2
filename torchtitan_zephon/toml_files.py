"""A TOML file as a table, or the reason why there is none."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .paths import StatedPath


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
