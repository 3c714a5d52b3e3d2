"""One walk below a root: the files that a pattern takes, the names that it leaves out, and what cannot be read.

What flows in: a root and a ``Pattern``. What flows out: ``files``, ``left_out`` with reasons, ``packed`` (compressed
files), ``problems`` and ``tables``, in no order: nothing here depends on the order in which a folder is listed. A
folder is entered once: under its own path, else by the first of the links to it. What may be data and cannot be read
is a problem, never left out. Costs one ``scandir`` a folder and one ``stat`` a file that is read.
"""

from __future__ import annotations

import heapq
import os
import re
import stat
from collections.abc import Callable
from enum import Enum
from pathlib import Path, PurePath
from typing import NamedTuple

from ..progress import Progress
from .pattern import Pattern, States
from .retry import with_retries

COMPRESSED = frozenset({".gz", ".zst", ".zstd", ".bz2", ".xz", ".lz4", ".snappy", ".br"})
_NO_FOLDER = frozenset({
    *COMPRESSED, *(".arrow", ".bin", ".cfg", ".crc", ".csv", ".feather", ".gif", ".html", ".idx", ".ini", ".ipynb"),
    *(".jpeg", ".jpg", ".json", ".jsonl", ".lock", ".log", ".md", ".md5", ".mds", ".ndjson", ".npy", ".npz"),
    *(".parquet", ".pdf", ".png", ".pt", ".py", ".rst", ".safetensors", ".sh", ".sha1", ".sha256", ".svg", ".tar"),
    *(".tgz", ".toml", ".tsv", ".txt", ".xml", ".yaml", ".zip"),
})  # fmt: skip
"""A link to nothing may have been one to a folder of data, unless its name ends like this."""
ABOUT = re.compile(
    r"(dataset_(info|infos|dict)|state)\.json|cache-[0-9a-f]{16}.*\.arrow|"
    r"(readme|licen[cs]e)([-_. ].*)?\.(txt|json|csv)|"
    r"(copying|notice|changelog|citation|requirements|checksums?|(md5|sha\d+)sums?)\.(txt|json|csv)",
    re.IGNORECASE,
)
"""Files that lie beside the data and end like data. The first three are those of Hugging Face ``datasets``."""
TABLE_MARKS = frozenset({"_delta_log", ".hoodie", "metadata"})


class Reason(Enum):
    """Why a name is left out."""

    SECOND_NAME = "second name of a file that is read"
    SECOND_WAY = "second way to a folder that is read"
    LOOP = "link to a folder that it lies in"
    HIDDEN = "hidden"
    FOLDER = "folder, where the path asks for files"
    OTHER_TYPE = "of another type"
    ABOUT = "about the data, by the name"
    OTHER_SPLIT = "of no split that is asked for"


class LeftOut(NamedTuple):
    """A name relative to the root, a folder's with ``/`` behind it. ``of``: the name under which it is read, if so."""

    name: str
    reason: Reason
    of: str = ""


class File(NamedTuple):
    """A file that is read. ``inode``: device and number, the same for all names of one file."""

    name: str
    num_bytes: int
    inode: tuple[int, int]


class Walk:
    """Collects, and raises nothing: which of several problems is told must not depend on the order of a listing."""

    def __init__(self, root: PurePath, pattern: Pattern) -> None:
        self.root, self.pattern = root, pattern
        self.files: list[File] = []
        self.left_out: list[LeftOut] = []
        self.packed: list[str] = []
        self.problems: list[tuple[str, str]] = []
        self.tables: set[str] = set()
        """Folders that hold a name which marks a table format, relative to the root."""
        self._entered: dict[tuple[int, int | str], tuple[str, States]] = {}
        self._links: list[tuple[bytes, str, States]] = []
        self._prefix = os.path.join(root, "")  # noqa: PTH118

    def run(self) -> None:
        """Folders by their own paths first. Then those that only links lead to, the first link bytewise first."""
        folders = [("", self.pattern.start())]
        with Progress(f"listing {str(self.root)!r}", None, "files found") as progress:
            while folders:
                before = len(self.files)
                folders += reversed(self._folder(*folders.pop()))
                progress.done(len(self.files) - before)
                if not folders and self._links:
                    _, link, states = heapq.heappop(self._links)
                    folders = [(link, states)]

    def named(self, name: str) -> None:
        """A single file, named by the whole path: no name is hidden then."""
        try:
            status = with_retries(lambda: os.stat(self._prefix + name), self._prefix + name, "the size")  # noqa: PTH116
        except OSError as error:
            self._trouble(name, error)
        else:
            self._take(name, name, lambda: status)

    def _folder(self, folder: str, states: States) -> list[tuple[str, States]]:
        """Look at all in ``folder`` ('' or ending in ``/``); its subfolders, in order: a mount can show one twice."""
        path = self._prefix + folder
        subfolders = []
        try:
            status, entries = with_retries(lambda: _listed(path), path, "the names")
            place = place_of(path, status)
            first, before = self._entered.get(place, (folder, States()))
            if states <= before:
                self.left_out.append(LeftOut(folder, Reason.SECOND_WAY, first or "./"))
                return []
            self._entered[place] = first, before | states
            for entry in entries:
                if entry.name in TABLE_MARKS:
                    self.tables.add(folder)
                if entry.is_symlink():
                    self._link(folder, states, entry)
                elif entry.is_dir(follow_symlinks=False):
                    subfolders += self._subfolder(folder, states, entry.name)
                elif self.pattern.takes(states, entry.name):
                    self._met(folder + entry.name, entry.name, entry.stat)
                elif self.pattern.takes(states, entry.name, any_name=True):
                    self.left_out.append(LeftOut(folder + entry.name, Reason.HIDDEN))
        except OSError as error:
            self._trouble(folder, error)
        return sorted(subfolders, key=lambda s: os.fsencode(s[0]))

    def _passed_over(self, full: str, name: str, states: States) -> None:
        """A folder or link that the pattern passes over; that is said where it would not but for the first letter."""
        pattern = self.pattern
        if pattern.takes(states, name, any_name=True) or pattern.inside(states, name, any_name=True):
            self.left_out.append(LeftOut(full, Reason.HIDDEN))

    def _subfolder(self, folder: str, states: States, name: str) -> list[tuple[str, States]]:
        full = f"{folder}{name}/"
        if inside := self.pattern.inside(states, name):
            return [(full, inside)]
        if self.pattern.takes(states, name):
            self.left_out.append(LeftOut(full, Reason.FOLDER))
        else:
            self._passed_over(full, name, states)
        return []

    def _link(self, folder: str, states: States, entry: os.DirEntry[str]) -> None:
        name, full = entry.name, folder + entry.name
        takes, inside = self.pattern.takes(states, name), self.pattern.inside(states, name)
        if not takes and not inside:
            self._passed_over(full, name, states)
            return
        try:
            status = with_retries(entry.stat, entry.path, "the size")
        except OSError as error:
            self._dead_link(full, name, error, takes, bool(inside))
            return
        if not stat.S_ISDIR(status.st_mode):
            if takes:
                self._met(full, name, lambda: status)
        elif not inside:
            self.left_out.append(LeftOut(f"{full}/", Reason.FOLDER))
        elif self._is_loop(folder, entry.path):
            self.left_out.append(LeftOut(f"{full}/", Reason.LOOP))
        else:
            heapq.heappush(self._links, (os.fsencode(full), f"{full}/", inside))

    def _dead_link(self, full: str, name: str, error: OSError, takes: bool, enters: bool) -> None:
        is_data = takes and (self._kind(name) or _ending(name) in COMPRESSED) and not ABOUT.fullmatch(name)
        no_folder = not enters or (isinstance(error, FileNotFoundError) and _ending(name) in _NO_FOLDER)
        if is_data or not no_folder:
            self._trouble(full, error)
        elif takes:
            self.left_out.append(LeftOut(full, Reason.OTHER_TYPE))

    def _is_loop(self, folder: str, link: str) -> bool:
        here, there = os.path.realpath(self._prefix + folder), os.path.realpath(link)
        return os.path.commonpath((here, there)) == there

    def _met(self, full: str, name: str, status_of: Callable[[], os.stat_result]) -> None:
        """A file that a wildcard takes."""
        if self._kind(name) and ABOUT.fullmatch(name):
            self.left_out.append(LeftOut(full, Reason.ABOUT))
        else:
            self._take(full, name, status_of)

    def _take(self, full: str, name: str, status_of: Callable[[], os.stat_result]) -> None:
        """A file that the path asks for: read it if its ending says that it is data."""
        kind = self._kind(name)
        if kind is None:
            if _ending(name) in COMPRESSED and self._kind(name.rpartition(".")[0]):
                self.packed.append(full)
            else:
                self.left_out.append(LeftOut(full, Reason.OTHER_TYPE))
            return
        try:
            status = with_retries(status_of, full, "the size")
        except OSError as error:
            self._trouble(full, error)
            return
        if stat.S_ISREG(status.st_mode):
            self.files.append(File(full, status.st_size, (status.st_dev, status.st_ino)))
        else:
            self.problems.append((full, f"is {_KINDS.get(stat.S_IFMT(status.st_mode), 'no file')}. {_WAY}"))

    def _kind(self, name: str) -> str | None:
        """The format that the ending of ``name`` says; None for another type."""
        return self.pattern.kind(name)

    def _trouble(self, full: str, error: OSError) -> None:
        self.problems.append((full, trouble(Path(self._prefix + full), error)))


_KINDS = {
    stat.S_IFIFO: "a named pipe, no file",
    stat.S_IFSOCK: "a socket, no file",
    stat.S_IFCHR: "a device, no file",
    stat.S_IFBLK: "a device, no file",
}
_WAY = "Mend it or move it away, or name the files to read with a glob."


def _listed(path: str) -> tuple[os.stat_result, list[os.DirEntry[str]]]:
    """What a folder is, and what is in it."""
    with os.scandir(path) as entries:
        return os.stat(path), list(entries)  # noqa: PTH116


def place_of(path: str, status: os.stat_result) -> tuple[int, int | str]:
    """The same for all ways to one folder. Where the file system does not number its folders (all 0), its real path."""
    return status.st_dev, status.st_ino or os.path.realpath(path)


def trouble(path: Path, error: OSError) -> str:
    """What is wrong with ``path``, to follow its name in an error."""
    if isinstance(error, FileNotFoundError) and path.is_symlink():
        return f"is a link that leads nowhere, to {str(path.readlink())!r}. {_WAY}"
    return f"cannot be read: {error.strerror}. Without it the source would not be whole. {_WAY}"


def _ending(name: str) -> str:
    stem, _, ending = name.rpartition(".")
    return f".{ending.lower()}" if stem else ""
