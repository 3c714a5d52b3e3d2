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

from ..config import coerce
from ..errors import ConfigError, nearest
from . import installed_version

T = TypeVar("T")


def filled(default: T, table: Mapping[str, Any], where: str) -> T:
    """A copy of TorchTitan's configuration ``default`` with the keys of ``table`` set, at every depth.

    Raises ``ConfigError`` for an unknown key, a value of another type, or one TorchTitan refuses.
    """
    hints = typing.get_type_hints(type(default))
    check_keys(table, [f.name for f in dataclasses.fields(default)], where)  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in table.items():
        current, place = getattr(default, key), f"{where}.{key}"
        if dataclasses.is_dataclass(current) and isinstance(value, Mapping):
            values[key] = filled(current, value, place)
        else:
            values[key] = coerce(spelled(value, hints[key]), hints[key], place)
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
    """Raise ``ConfigError`` for the first key that the installed TorchTitan does not know."""
    known = [key for key in known if not key.startswith("_")]
    for key in table:
        if key not in known:
            hint = nearest(key, known) if known else ""
            raise ConfigError(f"{where}.{key}: TorchTitan {installed_version()} has no such key{when}. {hint}".rstrip())


def checked(where: str, build: typing.Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """``build(...)``, with TorchTitan's own refusal of the values as a ``ConfigError``."""
    try:
        return build(*args, **kwargs)
    except (ValueError, AssertionError, TypeError, NotImplementedError) as error:
        raise ConfigError(f"[{where}]: TorchTitan refuses it: {error}") from error
