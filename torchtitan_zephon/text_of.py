"""What of a record is trained on, as a source says it: a field, several fields, or a template with fields in it.

A field is a name, or a path to a field of a field, such as ``meta.text``. A name that holds a dot and is there as it
stands wins over the path.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import ConfigError
from .records import Record

BETWEEN = "\n\n"
"""What stands between the texts of several fields: a blank line."""
MOST_NAMES = 30


@dataclass(frozen=True, slots=True)
class TextOf:
    """``fields``: those that are read, each once. ``pieces``: of a template, text and the field behind it, or "".

    Without pieces, several fields are joined by blank lines, and those that are null or empty are left out.
    """

    fields: tuple[str, ...]
    pieces: tuple[tuple[str, str], ...] = ()

    @property
    def one_field(self) -> bool:
        """Whether the text is a field as it is."""
        return len(self.fields) == 1 and not self.pieces

    @property
    def takes_null(self) -> bool:
        """Whether a field may be null: one of several that are joined."""
        return len(self.fields) > 1 and not self.pieces

    def joined(self, columns: Mapping[str, list[Any]]) -> list[str]:
        """The texts of documents, of the values of ``fields``, which are text, or null where that is taken."""
        if self.one_field:
            return columns[self.fields[0]]
        if not self.pieces:
            rows = zip(*(columns[field] for field in self.fields), strict=True)
            return [BETWEEN.join(filter(None, row)) for row in rows]
        count = len(columns[self.fields[0]])
        parts = [part for text, field in self.pieces for part in ([text] * count, columns[field] if field else [])]
        return ["".join(row) for row in zip(*filter(None, parts), strict=True)]

    def __str__(self) -> str:
        if self.pieces:
            return "template " + repr("".join(text + (f"{{{field}}}" if field else "") for text, field in self.pieces))
        return " + ".join(map(repr, self.fields))


def text_of(field: str | list[str], template: str = "") -> TextOf:
    """What a source's ``field`` and ``template`` say. Raises ``ConfigError``."""
    if template:
        pieces = _pieces(template)
        return TextOf(tuple(dict.fromkeys(name for _, name in pieces if name)), pieces)
    fields = (field,) if isinstance(field, str) else tuple(field)
    twice = [name for name in fields if fields.count(name) > 1]
    if not fields or not all(fields) or twice:
        why = f"it names {twice[0]!r} twice" if twice else "a field has a name"
        raise ConfigError(f'field = {field!r}: {why}. Give a name, a path such as "meta.text", or a list of them.')
    return TextOf(fields)


def _pieces(template: str) -> tuple[tuple[str, str], ...]:
    way = 'Write fields as in "{title}\\n\\n{meta.text}", and a brace that is text as {{ or }}.'
    try:
        parsed = [(text, name, spec, how) for text, name, spec, how in string.Formatter().parse(template)]
    except ValueError as error:
        raise ConfigError(f"template = {template!r}: {error}. {way}") from None
    for _, name, spec, how in parsed:
        if name == "" or spec or how:
            what = "an empty pair of braces" if name == "" else f"a conversion or format of {name!r}"
            raise ConfigError(f"template = {template!r} has {what}; there are only names of fields. {way}")
    if not any(name for _, name, _, _ in parsed):
        raise ConfigError(f"template = {template!r} names no field, so all documents would be the same text. {way}")
    return tuple((text, name or "") for text, name, _, _ in parsed)


def value_at(record: Record, field: str) -> Any:
    """The value of ``field`` in ``record``; None below a null. Raises ``KeyError`` if it is not there.

    >>> value_at({"meta": {"text": "a"}}, "meta.text"), value_at({"meta.text": "b", "meta": {}}, "meta.text")
    ('a', 'b')
    """
    if field in record:
        return record[field]
    head, _, rest = field.partition(".")
    below = record[head]
    if below is None:
        return None
    if not isinstance(below, dict):
        raise KeyError(field)
    return value_at(below, rest)


def names_in(record: Record) -> str:
    """The fields of ``record`` in words, with their own fields."""
    names = sorted(_names(record))
    shown = ", ".join(map(repr, names[:MOST_NAMES])) or "none"
    return shown if len(names) <= MOST_NAMES else f"{shown} and {len(names) - MOST_NAMES} more"


def _names(record: Record) -> Iterator[str]:
    for name, value in dict.items(record):  # past the methods of a lazy record: what was not read stays so
        yield name
        if isinstance(value, dict):
            yield from (f"{name}.{below}" for below in _names(value))
