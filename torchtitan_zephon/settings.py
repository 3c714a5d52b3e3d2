"""Settings as frozen dataclasses, and the strict way from a TOML table to them.

What flows in: a mapping (a TOML table, or keyword arguments). What flows out: the dataclass. A stage's settings stand
beside the stage. A key that is unknown, misspelt, of the wrong type or out of range is an error that names the
key, the value and the way out; nothing is ignored. All errors of a table are told at once.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Literal, TypeVar

from .errors import ConfigError, Problems, nearest

T = TypeVar("T")


def setting(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Collection[str] = (),
    in_identity: bool | Literal["unless_default"] = True,
) -> Any:
    """A dataclass field with its documentation and its allowed range (both ends included), or its ``choices``.

    ``in_identity``: of a recipe, whether a checkpoint compares it by itself; else something else there says it, or it
    decides no byte. "unless_default": a checkpoint names it only where it is not the default, as older ones do not.
    """
    metadata = {"doc": doc, "low": low, "high": high, "choices": choices, "in_identity": in_identity}
    if isinstance(default, (dict, list)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def identity_of(config: Any) -> dict[str, Any]:
    """The fields of ``config`` that a checkpoint compares, see ``setting``."""
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.metadata["in_identity"]}
    optional = {f.name: f for f in dataclasses.fields(config) if f.metadata["in_identity"] == "unless_default"}
    return {name: value for name, value in values.items() if name not in optional or value != optional[name].default}


def check_fields(config: Any, where: str) -> None:
    """Raise ``ConfigError`` for the fields of ``config`` that are of another type, choice or range."""
    hints = typing.get_type_hints(type(config))
    problems = Problems()
    for f in dataclasses.fields(config):
        with problems:
            check_range(f, coerce(getattr(config, f.name), hints[f.name], f"{where}: {f.name}"), f"{where}: {f.name}")
    problems.refuse()


def check_range(field: dataclasses.Field[Any], value: Any, where: str) -> None:
    """Raise ``ConfigError`` for a number, or a choice, that ``field`` does not allow."""
    low, high, choices = (field.metadata.get(name) for name in ("low", "high", "choices"))
    if choices and value not in choices:
        raise ConfigError(_no_choice(value, tuple(choices), where))
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return
    if (low is not None and value < low) or (high is not None and value > high):
        allowed = f"{low} or more" if high is None else f"{low} to {high}"
        raise ConfigError(f"{where} = {value!r} is out of range; allowed: {allowed}.")


def _no_choice(value: Any, choices: tuple[Any, ...], where: str) -> str:
    listed = ", ".join(map(repr, choices))
    return f"{where} = {value!r}: not one of {listed}. {nearest(str(value), map(str, choices))}"


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
    with problems:
        getattr(cls, "check_table", lambda table, where: None)(table, where)
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
            raise ConfigError(_no_choice(value, args, where))
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _one_of(value, [a for a in args if a is not type(None)], where)
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
    raise ConfigError(f"{where} = {value!r} is a {type(value).__name__}; expected {_name(hint)}.")


def _one_of(value: Any, hints: list[Any], where: str) -> Any:
    """``value`` as the first of ``hints`` that it is."""
    for hint in hints:
        try:
            return coerce(value, hint, where)
        except ConfigError:
            if len(hints) == 1 or (typing.get_origin(hint) is list and isinstance(value, list)):
                raise  # it is of this kind, and what it holds is not
    expected = " or ".join(map(_name, hints))
    raise ConfigError(f"{where} = {value!r} is a {type(value).__name__}; expected {expected}.")


def _name(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint)) if typing.get_origin(hint) is None else str(hint)


def _each(items: Mapping[str, Any], hint: Any, where: str, problems: Problems) -> dict[str, Any]:
    """The values of ``items`` as ``hint``, without those that are not; a key is what follows ``where`` in an error."""
    taken: dict[str, Any] = {}
    for place, value in items.items():
        with problems:
            taken[place] = _coerced(value, hint, f"{where}{place}", problems)
    return taken
