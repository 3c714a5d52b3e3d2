"""Folders that are refused because what is live in them, or what is for training, cannot be told from the files.

What flows in: a root and the names that would be read. What flows out: nothing, or a ``SourceError`` that names what to
choose from. Three kinds: training and validation data side by side; tables whose live files are listed in a log or
in metadata (Delta, Iceberg, Hudi); several revisions of a data set in a hub cache.
"""

from __future__ import annotations

import glob
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import NamedTuple

from ..errors import SourceError

TRAINING = ("train", "training")
EVALUATION = ("validation", "valid", "val", "dev", "test", "testing", "eval", "evaluation")
"""The words that the Hugging Face hub takes for splits."""
_COULD_BE = ("train",), ("val", "dev", "test")
"""Parts of all these words: a quick look at many names."""
_BETWEEN, _NUMBER = re.compile(r"[-_.= ]+"), re.compile(r"\d+")
_PART = re.compile(r"\d+|of|(?=.*\d)[0-9a-f]{8,}")
"""Part numbers (00000-of-00002) and the hashes that the hub once put behind them."""
MOST_OTHER_NAMES = 20
"""Beside more than this many other names, ``train`` and ``test`` are taken for names like these: repositories, users,
subjects. A set of splits has few neighbours."""
_REVISION = re.compile(r".*/snapshots/[0-9a-f]{40}/")


class Split(NamedTuple):
    """A name that says train or test, a folder's with ``/`` behind it. ``rest``: its other words, but part numbers."""

    name: str
    word: str
    rest: tuple[str, ...]

    @property
    def trains(self) -> bool:
        return self.word in TRAINING


def refuse_splits(source: str, root: PurePath, names: list[str]) -> None:
    """Refuse training data beside validation or test data: one folder holds both, under names that match."""
    if not all(any(word in name.lower() for name in names for word in words) for words in _COULD_BE):
        return
    mixed = [(folder, pair) for folder, alike in sorted(_neighbours(names).items()) if (pair := _mixed(alike.values()))]
    if not mixed:
        return
    folder, pair = mixed[0]
    ways = "\n".join(f"    {_way(root, folder, split, every=len(mixed) > 1)}" for split in pair)
    also = f" (and {len(mixed) - 1:,} folders more)" * (len(mixed) > 1)
    raise SourceError(
        f"source {source!r}: {str(root / folder)!r}{also} holds both {pair[0].name!r} and {pair[-1].name!r}, so "
        f"training would read what is meant for validation or tests. Name what to read:\n{ways}\n"
        "To read both all the same, make each a source of its own."
    )


def _neighbours(names: list[str]) -> dict[str, dict[str, str]]:
    """What each folder holds, subfolders with ``/`` behind them; of names that differ in numbers only, the first."""
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name in names:
        folder, _, file = name.rpartition("/")
        if folder not in found:
            parts = folder.split("/") if folder else []
            for depth, part in enumerate(parts):
                found["/".join(parts[:depth])].setdefault(f"{part}/", f"{part}/")
        found[folder].setdefault(_NUMBER.sub("0", file), file)
    return found


def _mixed(names: Iterable[str]) -> tuple[Split, ...]:
    """One name for each split word of a folder that mixes them; training first."""
    splits, others = [], set()
    for name in names:
        words = _words(name)
        said = [word for word in words if word in (*TRAINING, *EVALUATION)]
        if len(said) == 1:
            splits.append(Split(name, said[0], tuple(word for word in words if word != said[0])))
        else:
            others.add(words)
    if len(others) > MOST_OTHER_NAMES:
        return ()
    found: dict[str, Split] = {}
    for train in (split for split in splits if split.trains):
        for other in (split for split in splits if not split.trains):
            if train.rest == other.rest or not train.rest or not other.rest:
                found.setdefault(train.word, train)
                found.setdefault(other.word, other)
    return tuple(sorted(found.values(), key=lambda split: (not split.trains, split.name)))


def _words(name: str) -> tuple[str, ...]:
    """The words of a name in lower case: ``c4-Train.00000-of-01024.json`` gives c4, train."""
    stem = name[:-1] if name.endswith("/") else name.rpartition(".")[0]
    words = [word for word in _BETWEEN.split(stem.lower()) if word and not _PART.fullmatch(word)]
    return tuple(word.rstrip("0123456789") or word for word in words)


def _way(root: PurePath, folder: str, split: Split, every: bool) -> str:
    """A path that reads one split. ``every``: of all folders below the root that are alike."""
    is_folder = split.name.endswith("/")
    if is_folder and not every:
        return str(root / folder / split.name)
    below = f"{root}/**" if every else str(root / folder)  # exists as it is written, so no letter is a wildcard
    if is_folder:
        return f"{below}/{glob.escape(split.name)}**"
    until = split.name.lower().index(split.word) + len(split.word)
    return f"{below}/{glob.escape(split.name[:until])}*{Path(split.name).suffix}"


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
        f"is a table of {kind}: which of its files are live stands in {mark!r}, and read as plain "
        "Parquet it would give rows that were deleted or replaced too. Export it with a reader of that format, such as "
        "Spark's spark.read, to a folder of plain Parquet files, and name that folder."
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
