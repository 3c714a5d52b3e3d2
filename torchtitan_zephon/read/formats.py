"""The formats that are read: a line here and a file of its own each. Nothing else lists suffixes or parsers."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from typing import Any, NamedTuple

from ..errors import SourceError
from .packings import unpacked_name


class Format(NamedTuple):
    """What is known of a format without its reader.

    ``suffixes``: endings of its files. ``named_suffixes``: endings that are common for other data too, so they are read
    only where the path itself names them. ``package``: what parses it. ``reader``: what makes one, as "module.name"; it
    takes a manifest and the source's settings. ``cutter``: the class for files that are read from the front, likewise.
    A format has one of them or both; one with a cutter may be packed.
    """

    title: str
    suffixes: tuple[str, ...]
    named_suffixes: tuple[str, ...]
    package: str
    reader: str
    cutter: str = ""


FORMATS = {
    "jsonl": Format("JSONL", (".jsonl", ".ndjson"), (".json",), "orjson", "jsonl.JsonlReader", "jsonl.JsonlCutter"),
    "csv": Format("CSV", (".csv", ".tsv"), (), "pyarrow", "", "csv.CsvCutter"),
    "parquet": Format("Parquet", (".parquet",), (), "pyarrow", "parquet.parquet_reader"),
}
SUFFIXES = {suffix: name for name, of in FORMATS.items() for suffix in of.suffixes}
NAMED_SUFFIXES = {suffix: name for name, of in FORMATS.items() for suffix in of.named_suffixes}


def format_of(name: str, named_suffixes: Collection[str] = NAMED_SUFFIXES) -> str | None:
    """The format that the ending of a file's name says, packed or not; None for another type.

    ``named_suffixes``: those of ``NAMED_SUFFIXES`` that the path names.
    """
    plain = unpacked_name(name)
    stem, _, ending = plain.rpartition(".")
    suffix = f".{ending.lower()}" if stem else ""
    kind = NAMED_SUFFIXES[suffix] if suffix in named_suffixes else SUFFIXES.get(suffix)
    return kind if kind and (plain == name or FORMATS[kind].cutter) else None


def loaded(source: str, of: Format, name: str) -> Any:
    """The class ``name`` of a format, imported now: what another format needs may not be installed here.

    Raises ``SourceError``, which names ``source``, if its package is missing.
    """
    module, class_name = name.split(".")
    try:
        return getattr(importlib.import_module(f".{module}", __package__), class_name)
    except ModuleNotFoundError as error:
        if error.name != of.package:
            raise
        raise SourceError(
            f"source {source!r} is {of.title}, which is parsed by the package {of.package}, and that is not installed; "
            f"pip install {of.package}, or convert the source to Parquet."
        ) from None
