"""Folders that are refused because what is live in them, or which copy is meant, cannot be told from the files.

What flows in: a root and the names that would be read. What flows out: nothing, or a ``SourceError`` that names what to
choose from. Three kinds: tables whose live files are listed in a log or in metadata (Delta, Iceberg, Hudi); several
revisions of a data set in a hub cache; a file beside a packed copy of it. Splits are another matter (``splits.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePath

from ..errors import SourceError
from .walk import COMPRESSED

_REVISION = re.compile(r".*/snapshots/[0-9a-f]{40}/")


def refuse_tables(source: str, root: Path, marked: Iterable[str], names: Iterable[str]) -> None:
    """Refuse the Parquet files of a table format; ``marked``: folders below the root that may be a table's."""
    for folder in sorted(marked):
        if (kind := _table(root / folder)) and any(name.startswith(folder) for name in names):
            raise SourceError(f"source {source!r}: {str(root / folder)!r} {table_problem(kind)}")
    for above in root.parents:
        if kind := _table(above):
            raise SourceError(f"source {source!r}: {str(above)!r} {table_problem(kind)}")


def _table(folder: Path) -> str | None:
    if (folder / "_delta_log").is_dir():
        return "Delta"
    if (folder / ".hoodie").is_dir():
        return "Hudi"
    if (folder / "data").is_dir() and any((folder / "metadata").glob("*.metadata.json")):
        return "Iceberg"
    return None


def table_problem(kind: str) -> str:
    """What is wrong with a folder that is a table, to follow its name in an error."""
    mark = {"Delta": "_delta_log", "Hudi": ".hoodie", "Iceberg": "metadata"}[kind]
    return (
        f"is a table of {kind}: which of its files are live stands in {mark!r}, and read as plain Parquet it would "
        "give rows that were deleted or replaced too. Export it with a reader of that format, such as Spark's "
        "spark.read, to a folder of plain Parquet files, and name that folder."
    )


def refuse_revisions(source: str, root: PurePath, names: Iterable[str]) -> None:
    """Refuse files of several revisions of a data set in a hub cache; what they share is left out before."""
    whole = (f"{root}/{name}" for name in names)
    found = sorted({match[0] for name in whole if "/snapshots/" in name and (match := _REVISION.match(name))})
    if len(found) > 1:
        ways = "\n".join(f"    {revision.rstrip('/')}" for revision in found)
        raise SourceError(
            f"source {source!r}: {str(root)!r} holds {len(found)} revisions of a data set, so what they have in common "
            f"would be read more than once. Name one of them:\n{ways}"
        )


def refuse_copies(source: str, root: PurePath, names: Iterable[str]) -> None:
    """Refuse a file beside a packed copy: ``part.jsonl`` and ``part.jsonl.gz``, or that and ``part.jsonl.zst``."""
    first: dict[str, str] = {}
    copies = []
    for name in names:
        stem, dot, ending = name.rpartition(".")
        before = first.setdefault(stem if f"{dot}{ending.lower()}" in COMPRESSED else name, name)
        if before != name:
            copies.append((before, name))
    if copies:
        one, other = copies[0]
        more = f" There are {len(copies) - 1:,} more such pairs." * (len(copies) > 1)
        globs = " or ".join(repr(f"{root}/**/*{Path(name).suffix}") for name in copies[0])
        raise SourceError(
            f"source {source!r}: {str(root)!r} holds both {one!r} and {other!r}, which by their names are one file, "
            f"packed in two ways or packed and plain, so its records would be read twice.{more} Remove one of them, or "
            f"name one kind with a glob, such as {globs}."
        )
