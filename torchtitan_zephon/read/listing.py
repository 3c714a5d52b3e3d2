"""Which files a path stands for: one rule for a folder, a glob and a single file (``docs/files.md``).

What flows in: a source's path. What flows out: the files that are read, in bytewise order of their names, and every
name that is left out, with the reason. A file is read once, under the first of its names. What may be data and cannot
be read is an error. 100,000 files take about a second on a local disk.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from ..errors import SourceError
from .formats import formats, own_suffixes, suffixes
from .packings import PACKINGS
from .pattern import Pattern
from .store import Store
from .walk import File, LeftOut, Reason, Walk

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
SHOWN_NAMES = 5


class Listing(NamedTuple):
    """``tables``: folders met that hold a name which marks a table format, relative to the root."""

    files: list[File]
    left_out: tuple[LeftOut, ...]
    tables: set[str]


def list_files(source: str, path: str, store: Store, below: Pattern | str) -> Listing:
    """All files that ``path`` stands for: what is ``below`` the root of ``store``.

    Raises ``SourceError`` for none, and for what cannot be read or is packed.
    """
    try:
        walk = store.list(below)
    except (SourceError, OSError) as error:  # of a place behind a URL; others collect what they meet
        raise SourceError(f"source {source!r}: {error}") from None
    files = [_named_in_utf8(walk, file) for file in walk.files]
    if walk.problems:
        problems = sorted(walk.problems, key=lambda p: os.fsencode(p[0]))
        more = f" There are {len(problems) - 1:,} more such names." * (len(problems) > 1)
        raise SourceError(f"source {source!r}: {str(store.root / problems[0][0])!r} {problems[0][1]}{more}")
    if walk.packed:
        titles = ", ".join(of.title for of in formats().values() if of.cutter)
        packings = ", ".join(packing.suffix for packing in PACKINGS)
        raise SourceError(
            f"source {source!r}: {min(walk.packed)!r} is compressed in a way that is not read ({len(walk.packed)} such "
            f"files at {path!r}). Files of {titles} may be packed as {packings}, others not. Unpack them, or convert "
            "them to Parquet."
        )
    files, second = once(files)
    left_out = tuple(sorted([*walk.left_out, *second], key=lambda left: left.name.encode("utf-8", "surrogateescape")))
    if not files:
        raise _nothing(source, path, below.format if isinstance(below, Pattern) else "", left_out)
    return Listing(files, left_out, walk.tables)


def once(files: list[File]) -> tuple[list[File], list[LeftOut]]:
    """``files`` in order, each under its first name, and its other names.

    A file system that does not number its files (all 0) cannot say which names are one file; then all are read.
    """
    first: dict[tuple[int, int], str] = {}
    kept, second = [], []
    for file in sorted(files, key=lambda file: file.name.encode()):
        name = first.setdefault(file.inode, file.name) if file.inode[1] else file.name
        if name == file.name:
            kept.append(file)
        else:
            second.append(LeftOut(file.name, Reason.SECOND_NAME, name))
    return kept, second


def left_out_text(left_out: tuple[LeftOut, ...]) -> str:
    """How many names were left out and why, with the first few for each reason; '' if none was."""
    found: defaultdict[Reason, list[LeftOut]] = defaultdict(list)
    for left in left_out:
        found[left.reason].append(left)
    parts = []
    for reason in (reason for reason in Reason if reason in found):
        names = [f"{n.name!r}" + f" (is {n.of!r})" * bool(n.of) for n in found[reason]]
        more = f" and {len(names) - SHOWN_NAMES:,} more" * (len(names) > SHOWN_NAMES)
        parts.append(f"{len(names):,} {reason.value}: {', '.join(names[:SHOWN_NAMES])}{more}")
    return "; ".join(parts)


def _named_in_utf8(walk: Walk, file: File) -> File:
    """``file`` under its name in UTF-8, whatever the locale; a name that no state or message can hold is a problem."""
    if file.name.isascii() and file.name.isprintable():
        return file
    try:
        name = os.fsencode(file.name).decode()
    except UnicodeDecodeError:
        problem = f"has a name that is not UTF-8, {os.fsencode(file.name)!r}, which no checkpoint can hold. Rename it."
        walk.problems.append((file.name, problem))
        return file
    if _CONTROL.search(name):
        walk.problems.append((file.name, "has a control character in its name, which breaks messages. Rename it."))
    return file._replace(name=name)


def _nothing(source: str, path: str, format: str, left_out: tuple[LeftOut, ...]) -> SourceError:
    types = [left.name for left in left_out if left.reason is Reason.OTHER_TYPE]
    kinds = sorted({Path(name).suffix or Path(name).name for name in types})[:8]
    others = tuple(left for left in left_out if left.reason is not Reason.OTHER_TYPE)
    found = [f"found only {', '.join(kinds)}"] if kinds else []
    found += [f"left out: {left_out_text(others)}"] if others else []
    ways = []
    if ".json" in kinds:
        ways.append(" A .json file with one record a line is read if the path names it, as in FOLDER/*.json.")
    if not format:
        ways += [
            f" A {kind} file is read with {' or '.join(stated)}, which its ending does not say."
            for kind in kinds
            if (stated := [f'format = "{name}"' for name, of in formats().items() if kind in of.stated_suffixes])
        ]
    if any(left.reason is Reason.FOLDER for left in others):
        ways.append(" To read what is in a folder that a glob matches, add /** to the glob.")
    found_text = "; ".join(found) or "it is empty"
    endings = ", ".join(sorted(own_suffixes(format)) if format else suffixes())
    return SourceError(
        f"source {source!r}: no data file at {path!r} ({found_text}). Data files end in {endings}.{''.join(ways)}"
    )
