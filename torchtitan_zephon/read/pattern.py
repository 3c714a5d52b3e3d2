"""A source's path as a folder to walk and a pattern of names below it.

What flows in: the path as the user wrote it. What flows out: the folder where the walk begins (the root, to which
names are relative) and a ``Pattern``. A folder is the pattern ``**/*``, so folders and globs follow one rule. The
syntax is that of Python's ``glob`` with ``recursive=True``; only the walk is our own (``listing.py``).
"""

from __future__ import annotations

import fnmatch
import glob
import re
import stat
from pathlib import Path

from ..errors import SourceError
from .formats import format_of, may_be, own_suffixes, suffix_of

States = frozenset[int]
"""How far a pattern has matched on the way to a folder: numbers of the parts that may match a name in it."""


class Pattern:
    """The parts of a glob below its root. ``format``: what the files are; '' if their endings say it."""

    def __init__(self, parts: tuple[str, ...], format: str = "") -> None:
        if parts[-1] == "**":  # everything below, as in Python's glob
            parts = (*parts, "*")
        self.parts = parts
        self.format = format
        endings = parts[-1].lower().split(".")[1:][-2:]  # of c4.json.gz both
        self._named = {f".{ending}" for ending in endings}
        self._last = len(parts) - 1
        self._matches = [re.compile(fnmatch.translate(part)).match for part in parts]

    @classmethod
    def of_name(cls, name: str, format: str = "") -> Pattern:
        """The pattern of one file, whatever letters its name has."""
        return cls((glob.escape(name),), format)

    def kind(self, name: str) -> str | None:
        """The format of a file that this pattern takes, by its name; None for another type.

        Where the format is stated, a folder gives the files with its endings, and a glob or a file all that it names.
        """
        if not self.format:
            return format_of(name, self._named)
        own = self.parts[-1] != "*" or suffix_of(name) in own_suffixes(self.format)
        return self.format if own and may_be(name, self.format) else None

    def start(self) -> States:
        """The parts that may match a name in the root."""
        return self._with_empty_runs({0})

    def takes(self, states: States, name: str, any_name: bool = False) -> bool:
        """Whether the last part matches ``name``. ``any_name``: as if names with ``.`` or ``_`` were like any other."""
        return self._last in states and self._match(self._last, name, any_name)

    def inside(self, states: States, name: str, any_name: bool = False) -> States:
        """The parts that may match in the folder ``name``; none if the pattern does not lead into it."""
        found: set[int] = set()
        for at in states:
            if self.parts[at] == "**":
                if any_name or not hidden(name):
                    found.add(at)
            elif at < self._last and self._match(at, name, any_name):
                found.add(at + 1)
        return self._with_empty_runs(found)

    def _match(self, at: int, name: str, any_name: bool) -> bool:
        part = self.parts[at]
        if not any_name and hidden(name) and part[0] != name[0]:
            return False
        return part == "*" or self._matches[at](name) is not None

    def _with_empty_runs(self, states: set[int]) -> States:
        """``**`` also matches no folder at all."""
        found = set(states)
        for at in sorted(states):
            while self.parts[at] == "**":
                at += 1
                found.add(at)
        return frozenset(found)


EVERYTHING = ("**", "*")
SYSTEM_FOLDER = "lost+found"
"""What a check of a file system leaves at its top; root's own, and no data of anybody's."""


def hidden(name: str) -> bool:
    """Whether wildcards pass over ``name``: other tools hide such names, or keep what is not finished under them."""
    return name[0] in "._" or name == SYSTEM_FOLDER


def root_of(source: str, path: str, format: str = "") -> tuple[Path, Pattern | str]:
    """The root of ``path``, and the pattern below it; for a single file its name.

    A part that exists as it is written is taken as it is, whatever letters it has: ``run[1]/*.jsonl`` begins in the
    folder ``run[1]`` where there is one. Raises ``SourceError`` for a path with nothing there.
    """
    if not path:
        raise SourceError(f'source {source!r} has no path; write path = "FOLDER or FILE or GLOB".')
    if "\0" in path:
        raise SourceError(f"source {source!r}: {path!r} is no path on this machine: it has a null character.")
    try:
        given = Path(path).expanduser()
        if _is_folder(given):
            return given.resolve(), Pattern(EVERYTHING, format)
        if _is_there(given):
            name = Pattern.of_name(given.name, format) if format else given.name
            return given.parent.resolve(), name  # not resolved: a link's own name says the format
        fixed = _fixed(given)
        root = Path(*given.parts[:fixed])
        parts = given.parts[fixed:]
        if not any(map(glob.has_magic, parts)):
            raise _missing(source, path, given, given)
        if not _is_folder(root):
            raise _missing(source, path, given, root)
        if ".." in parts:
            raise SourceError(f"source {source!r}: {path!r} has '..' behind a wildcard; write the path without it.")
        return root.resolve(), Pattern(parts, format)
    except OSError as error:
        raise SourceError(f"source {source!r}: {path!r} cannot be read: {error.strerror}.") from None
    except RuntimeError as error:  # no such home folder
        raise SourceError(f"source {source!r}: {path!r} is no path on this machine: {error}.") from None


def _is_there(path: Path, follow_links: bool = False) -> bool:
    """``Path.exists``, but an error that is no answer, such as a folder that may not be entered, is raised."""
    try:
        path.stat(follow_symlinks=follow_links)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _is_folder(path: Path) -> bool:
    return _is_there(path, follow_links=True) and stat.S_ISDIR(path.stat().st_mode)


def _fixed(given: Path) -> int:
    """How many leading parts of a path are no pattern."""
    for at, part in enumerate(given.parts):
        if glob.has_magic(part) and not _is_there(Path(*given.parts[: at + 1])):
            return at
    return len(given.parts)


def _missing(source: str, path: str, given: Path, root: Path) -> SourceError:
    """Nothing at ``given``, or no folder ``root`` to begin in: says where it was looked for, and what is not there."""
    what = (
        f"no file or folder {path!r}" if root == given else f"no file at {path!r}, for want of a folder {str(root)!r}"
    )
    whole = Path.cwd() / root
    absent = [part for part in [*reversed(whole.parents), whole] if not _is_there(part)]
    there = f"; {str(absent[0].parent)!r} is there, and has no {absent[0].name!r}" if absent else ""
    looked = "" if given.is_absolute() else f"; this is relative to the working folder, {str(Path.cwd())!r}"
    return SourceError(f"source {source!r}: there is {what}{looked}{there}.")
