"""The formats that are read: a line here and a file of its own each. Nothing else lists suffixes or parsers.

Another package adds its own through an entry point of the group ``torchtitan_zephon.formats`` (``docs/files.md``).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Collection, Mapping
from importlib import metadata
from types import MappingProxyType
from typing import Any, NamedTuple

from ..errors import SourceError, nearest
from .packings import unpacked_name

ENTRY_POINTS = "torchtitan_zephon.formats"


class Format(NamedTuple):
    """What is known of a format without its reader.

    ``package``: what parses it. ``reader``: the class of its reader, or what makes one, as "module:name"; it takes a
    manifest, the source's settings and the most bytes of a record. ``cutter``: the class for files that are read from
    the front, made likewise. A format has one of them or both; one with a cutter may be packed.

    ``suffixes``: endings of its files. ``named_suffixes``: endings that are common for other data too, so they are read
    only where the path itself names them. ``stated_suffixes``: endings that do not say what a file is, so they are read
    only where the source says ``format = "..."``. ``begins``: how its files may begin, if always alike.
    """

    title: str
    package: str
    reader: str = ""
    cutter: str = ""
    suffixes: tuple[str, ...] = ()
    named_suffixes: tuple[str, ...] = ()
    stated_suffixes: tuple[str, ...] = ()
    begins: tuple[bytes, ...] = ()


FORMATS = {
    "jsonl": Format(
        "JSONL",
        "orjson",
        ".jsonl:JsonlReader",
        ".jsonl:JsonlCutter",
        suffixes=(".jsonl", ".ndjson"),
        named_suffixes=(".json",),
    ),
    "csv": Format("CSV", "pyarrow", cutter=".csv:CsvCutter", suffixes=(".csv", ".tsv")),
    "tar": Format("tar archives", "orjson", cutter=".tar:TarCutter", suffixes=(".tar",)),
    "parquet": Format(
        "Parquet", "pyarrow", ".parquet:parquet_reader", suffixes=(".parquet",), begins=(b"PAR1", b"PARE")
    ),
    "arrow": Format(
        "Arrow", "pyarrow", ".arrow:ArrowReader", suffixes=(".arrow", ".arrows", ".feather"), begins=(b"ARROW1",)
    ),
    "mds": Format("MDS", "numpy", ".mds:MdsReader", suffixes=(".mds",)),
    "megatron": Format("Megatron", "numpy", ".megatron:MegatronReader", stated_suffixes=(".bin",)),
    "text": Format("plain text", "numpy", ".text:text_reader", ".text:text_cutter", named_suffixes=(".txt", ".text")),
    "tokens": Format("token files", "numpy", ".tokens:TokensReader", suffixes=(".npy",), stated_suffixes=(".bin",)),
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


def format_of(name: str, named: Collection[str] | None = None) -> str | None:
    """The format that the ending of a file's name says, packed or not; None for another type.

    ``named``: those of ``named_suffixes`` that the path names; None for all of them.
    """
    suffix = suffix_of(name)
    kind = suffixes().get(suffix)
    if kind is None and (named is None or suffix in named):
        kind = named_suffixes().get(suffix)
    return kind if kind and may_be(name, kind) else None


def suffix_of(name: str) -> str:
    """The ending of a file's name, of what is in it if it is packed."""
    stem, _, ending = unpacked_name(name).rpartition(".")
    return f".{ending.lower()}" if stem else ""


def may_be(name: str, kind: str) -> bool:
    """Whether a file of this name may be of the format ``kind``: packed only where that is read from the front."""
    return unpacked_name(name) == name or bool(formats()[kind].cutter)


def loaded(source: str, of: Format, name: str) -> Any:
    """The class ``name`` of a format, imported now: what another format needs may not be installed here.

    Raises ``SourceError``, which names ``source``, if its package is missing.
    """
    module, _, class_name = name.partition(":")
    try:
        return getattr(importlib.import_module(module, __package__), class_name)
    except ModuleNotFoundError as error:
        if error.name != of.package:
            raise
        raise SourceError(
            f"source {source!r} is {of.title}, which is parsed by the package {of.package}, and that is not installed; "
            f"pip install {of.package}, or convert the source to Parquet."
        ) from None
