"""The formats that are read: a line here and a file of its own each. Nothing else lists suffixes or parsers."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from ..errors import SourceError


class Format(NamedTuple):
    """What is known of a format without its reader.

    ``suffixes``: endings of its files. ``named_suffixes``: endings that are common for other data too, so they are read
    only where the path itself names them. ``package``: what parses it. ``reader``: its class, as "module.Class"; it
    takes a manifest, the source's settings and the most bytes of a record.
    """

    title: str
    suffixes: tuple[str, ...]
    named_suffixes: tuple[str, ...]
    package: str
    reader: str


FORMATS = {
    "jsonl": Format("JSONL", (".jsonl", ".ndjson"), (".json",), "orjson", "jsonl.JsonlReader"),
    "parquet": Format("Parquet", (".parquet",), (), "pyarrow", "parquet.ParquetReader"),
}
SUFFIXES = {suffix: name for name, of in FORMATS.items() for suffix in of.suffixes}
NAMED_SUFFIXES = {suffix: name for name, of in FORMATS.items() for suffix in of.named_suffixes}


def reader_class(source: str, name: str) -> Any:
    """The reader of format ``name``, imported now: what another format needs may not be installed here.

    Raises ``SourceError``, which names ``source``, if its package is missing.
    """
    of = FORMATS[name]
    module, class_name = of.reader.split(".")
    try:
        return getattr(importlib.import_module(f".{module}", __package__), class_name)
    except ModuleNotFoundError as error:
        if error.name != of.package:
            raise
        raise SourceError(
            f"source {source!r} is {of.title}, which is parsed by the package {of.package}, and that is not installed; "
            f"pip install {of.package}, or convert the source to Parquet."
        ) from None
