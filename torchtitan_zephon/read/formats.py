"""The formats that are read: a line here and a file of its own each. Nothing else lists suffixes or parsers.

Another package adds its own through an entry point of the group ``torchtitan_zephon.formats`` (``docs/files.md``).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from importlib import metadata
from types import MappingProxyType
from typing import Any, NamedTuple

from ..errors import SourceError, nearest

ENTRY_POINTS = "torchtitan_zephon.formats"


class Format(NamedTuple):
    """What is known of a format without its reader.

    ``reader``: what makes its reader of a manifest and the source's settings, as "module:name". ``package``: what
    parses it. ``suffixes``: endings of its files. ``named_suffixes``: endings that are common for other data too, so
    they are read only where the path itself names them. ``stated_suffixes``: endings that do not say what a file is, so
    they are read only where the source says ``format = "..."``. ``begins``: how its files may begin, if always alike.
    """

    title: str
    reader: str
    package: str
    suffixes: tuple[str, ...] = ()
    named_suffixes: tuple[str, ...] = ()
    stated_suffixes: tuple[str, ...] = ()
    begins: tuple[bytes, ...] = ()


FORMATS = {
    "jsonl": Format("JSONL", ".jsonl:JsonlReader", "orjson", (".jsonl", ".ndjson"), (".json",)),
    "parquet": Format("Parquet", ".parquet:ParquetReader", "pyarrow", (".parquet",), begins=(b"PAR1", b"PARE")),
    "arrow": Format("Arrow", ".arrow:ArrowReader", "pyarrow", (".arrow", ".arrows", ".feather"), begins=(b"ARROW1",)),
    "mds": Format("MDS", ".mds:MdsReader", "numpy", (".mds",)),
    "megatron": Format("Megatron", ".megatron:MegatronReader", "numpy", stated_suffixes=(".bin",)),
    "tokens": Format("token", ".tokens:TokensReader", "numpy", (".npy",), stated_suffixes=(".bin",)),
}


@functools.cache
def formats() -> Mapping[str, Format]:
    """All formats by name: those of this package, then those that others add. Raises ``SourceError``."""
    found = dict(FORMATS)
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        try:
            added = entry.load()
        except Exception as error:
            raise SourceError(
                f"format {entry.name!r}, which the entry point {entry.value!r} adds, cannot be loaded: "
                f"{type(error).__name__}: {error}. Mend or uninstall the package that it belongs to."
            ) from error
        taken = {suffix for of in found.values() for suffix in of.suffixes}
        if not isinstance(added, Format) or entry.name in found or taken & set(added.suffixes):
            raise SourceError(
                f"the entry point {entry.value!r} adds the format {entry.name!r}, and that must be a Format with a "
                "name and suffixes of its own. Mend or uninstall the package that it belongs to."
            )
        found[entry.name] = added
    return MappingProxyType(found)


@functools.cache
def suffixes() -> Mapping[str, str]:
    """Format by ending, of the endings that always say it."""
    return {suffix: name for name, of in formats().items() for suffix in of.suffixes}


@functools.cache
def named_suffixes() -> Mapping[str, str]:
    """Format by ending, of those that say it only where the path names them."""
    return {suffix: name for name, of in formats().items() for suffix in of.named_suffixes}


def own_suffixes(name: str) -> frozenset[str]:
    """All endings that a file of format ``name`` may have."""
    of = formats()[name]
    return frozenset({*of.suffixes, *of.named_suffixes, *of.stated_suffixes})


def check_format(source: str, name: str) -> None:
    """Raise ``SourceError``, which names ``source``, for a format that there is none of."""
    if name and name not in formats():
        listed = ", ".join(map(repr, formats()))
        raise SourceError(
            f"source {source!r}: format = {name!r} is none of {listed}. {nearest(name, formats())}".rstrip()
        )


def other_format(name: str, head: bytes) -> str | None:
    """The title of the format that a file begins as, where that is not ``name``."""
    for other, of in formats().items():
        if other != name and any(head.startswith(begin) for begin in of.begins):
            return of.title
    return None


def reader_class(source: str, name: str) -> Any:
    """What makes a reader of format ``name``, imported now: what another format needs may not be installed here.

    Raises ``SourceError``, which names ``source``, if its package is missing.
    """
    of = formats()[name]
    module, _, attribute = of.reader.partition(":")
    try:
        return getattr(importlib.import_module(module, __package__), attribute)
    except ModuleNotFoundError as error:
        if error.name != of.package:
            raise
        raise SourceError(
            f"source {source!r} is {of.title}, which is parsed by the package {of.package}, and that is not installed; "
            f"pip install {of.package}, or convert the source to Parquet."
        ) from None
