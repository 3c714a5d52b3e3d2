"""TOML tables onto TorchTitan's own configuration dataclasses, strictly.

What flows in: a configuration with its defaults, and a table of what a job states. What flows out:
a copy with the keys set, at every depth, or a ``ConfigError`` that names the key, the value and
the nearest key that the installed TorchTitan has. Knows no generation.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any, TypeVar

from ..errors import ConfigError, Problems, nearest
from ..settings import coerce
from .generations import installed

T = TypeVar("T")


def filled(default: T, table: Mapping[str, Any], where: str) -> T:
    """A copy of TorchTitan's configuration ``default`` with the keys of ``table`` set, at every depth.

    Raises ``ConfigError`` for all unknown keys and values of another type, or for what TorchTitan refuses.
    """
    hints = typing.get_type_hints(type(default))
    known = [f.name for f in dataclasses.fields(default) if not f.name.startswith("_")]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    problems = Problems()
    with problems:
        check_keys(table, known, where)
    for key in [key for key in table if key in known]:
        value, current, place = table[key], getattr(default, key), f"{where}.{key}"
        with problems:
            if dataclasses.is_dataclass(current) and isinstance(value, Mapping):
                values[key] = filled(current, value, place)
            else:
                values[key] = coerce(spelled(value, hints[key]), hints[key], place)
    problems.refuse()
    result: T = checked(where, dataclasses.replace, default, **values)
    return result


def spelled(value: Any, hint: Any) -> Any:
    """``value`` with TorchTitan's own spellings read: ``"a,b"`` is a list, ``"None"`` is None."""
    if hint == list[str] and isinstance(value, str):
        return value.split(",")
    if value == "None" and NoneType in typing.get_args(hint):
        return None
    return value


def check_keys(table: Iterable[str], known: Iterable[str], where: str, when: str = "") -> None:
    """Raise ``ConfigError`` for the keys that the installed TorchTitan does not know."""
    known = [key for key in known if not key.startswith("_")]
    problems = Problems()
    for key in table:
        if key not in known:
            hint = nearest(key, known) if known else ""
            problems.note(f"{where}.{key}: TorchTitan {installed().version} has no such key{when}. {hint}".rstrip())
    problems.refuse()


def checked(where: str, build: typing.Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """``build(...)``, with TorchTitan's own refusal of the values as a ``ConfigError``."""
    try:
        return build(*args, **kwargs)
    except (ValueError, AssertionError, TypeError, NotImplementedError) as error:
        raise ConfigError(f"[{where}]: TorchTitan refuses it: {error}") from error
