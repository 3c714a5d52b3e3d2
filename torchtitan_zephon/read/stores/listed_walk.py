"""The walk over a list of names, as object stores give it: the same pattern rules as on a disk.

What flows in: names relative to a root with their sizes, folders (``/`` behind) among them where they were listed. What
flows out: what a ``Walk`` finds. There are no links, second ways or devices in an object store.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from functools import partial

from ..folders import table_problem
from ..pattern import Pattern, States
from ..walk import LeftOut, Reason, Walk
from .url import UrlPath

_TABLES = (
    ("Delta", re.compile(r"(?:(.*)/)?_delta_log/.*")),
    ("Hudi", re.compile(r"(?:(.*)/)?\.hoodie/.*")),
    ("Iceberg", re.compile(r"(?:(.*)/)?metadata/[^/]*\.metadata\.json")),
)
"""The folder that a name below it makes a table."""


class ListedWalk(Walk):
    """``sizes``: bytes by name; of a folder 0."""

    def __init__(self, root: UrlPath, pattern: Pattern, sizes: Mapping[str, int]) -> None:
        super().__init__(root, pattern)
        self._sizes = sizes
        self._states: dict[str, States] = {"": pattern.start()}

    def run(self) -> None:
        """Every name on its own; folders are found on the way to their files."""
        for full, num_bytes in self._sizes.items():
            folder, _, name = full.rpartition("/")
            if "" in folder.split("/") and folder:
                self.problems.append(
                    (full, "has an empty name between two slashes. Name the files to read with a glob.")
                )
                continue
            states = self._inside(f"{folder}/" if folder else "")
            if not states or not name:
                continue
            if self.pattern.takes(states, name):
                self._met(full, name, partial(_file, num_bytes))
            elif self.pattern.takes(states, name, any_name=True):
                self.left_out.append(LeftOut(full, Reason.HIDDEN))
        self._find_tables()

    def _find_tables(self) -> None:
        """A folder of Parquet files that is a table is a problem."""
        folders = {file.name.rpartition("/")[0] + "/" for file in self.files if file.name.endswith(".parquet")}
        found = {
            (match[1] or "", kind) for name in self._sizes for kind, of in _TABLES if (match := of.fullmatch(name))
        }
        for folder, kind in sorted(found):
            if any(not folder or below.startswith(f"{folder}/") for below in folders):
                self.problems.append((folder, table_problem(kind)))

    def named(self, name: str) -> None:
        """A single file, named by the whole path: no name is hidden then."""
        self._take(name, name, lambda: _file(self._sizes[name]))

    def _inside(self, folder: str) -> States:
        """How far the pattern has matched in ``folder``, '' or ending in ``/``; a folder left out is told once."""
        if (known := self._states.get(folder)) is not None:
            return known
        above, _, name = folder[:-1].rpartition("/")
        states = self._inside(f"{above}/" if above else "")
        found = self._subfolder(f"{above}/" if above else "", states, name) if states else []
        inside = found[0][1] if found else States()
        self._states[folder] = inside
        return inside


def _file(num_bytes: int) -> os.stat_result:
    """What ``stat`` says of a file of this size on a file system that does not number its files."""
    return os.stat_result((stat.S_IFREG, 0, 0, 0, 0, 0, num_bytes, 0, 0, 0))
