"""The splits of a data set: which of the files side by side are for training, and which for validation or tests.

What flows in: the names that a path stands for, and the source's ``split``, if it states one. What flows out: the names
of that split. Without ``split``, names of both training and evaluation side by side are a ``SourceError`` that lists
the ways to choose. A name says its split in a word of its own, such as ``data/train-00000-of-00002.parquet`` or
``dev/0.jsonl``. The words are those of the Hugging Face hub.
"""

from __future__ import annotations

import functools
import glob
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import NamedTuple

from ..errors import SourceError

SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""The splits of the hub, and the words that it takes for each."""
TRAINING = SPLITS["train"]
EVALUATION = (*SPLITS["validation"], *SPLITS["test"])
_COULD_BE = ("train",), ("val", "dev", "test")
"""Parts of all these words: a quick look at many names."""
_BETWEEN, _NUMBER = re.compile(r"[-_.= ]+"), re.compile(r"\d+")
_PART = re.compile(r"\d+|of|(?=.*\d)[0-9a-f]{8,}")
"""Part numbers (00000-of-00002) and the hashes that the hub once put behind them."""
MOST_OTHER_NAMES = 20
"""Beside more than this many other names, ``train`` and ``test`` are taken for names like these: repositories, users,
subjects. A set of splits has few neighbours."""

Words = tuple[str, ...]


class Split(NamedTuple):
    """A name that says train or test, a folder's with ``/`` behind it. ``rest``: its other words, but part numbers."""

    name: str
    word: str
    rest: Words

    @property
    def trains(self) -> bool:
        return self.word in TRAINING


def names_of_split(source: str, root: PurePath, names: list[str], split: str) -> list[str]:
    """The ``names`` of one split; of all where it is empty. Raises ``SourceError``, also where they are mixed."""
    own = _chosen(source, root, names, split) if split else names
    _refuse_mixed(source, root, own, split)
    return own


def _chosen(source: str, root: PurePath, names: list[str], split: str) -> list[str]:
    """The names that say ``split``; where none says just this word, those that say another word for the same split."""
    wanted = _words(f"{split}/")
    said = [_said(name, wanted) for name in names]
    alike = next((words for words in SPLITS.values() if wanted in [(word,) for word in words]), ())
    for ways in ([wanted], [(word,) for word in alike]):
        if found := [name for name, own in zip(names, said, strict=True) if any(_within(way, own) for way in ways)]:
            return found
    there: dict[str, str] = {}
    for name, own in zip(names, said, strict=True):
        for word in _split_words(own):
            there.setdefault(word, name)
    listed = ", ".join(f"{word!r} (such as {name!r})" for word, name in sorted(there.items()))
    raise SourceError(
        f"source {source!r}: split = {split!r}: of {len(names):,} files in {str(root)!r} none has it in its name or a "
        f"folder's. Splits there: {listed or 'none, so leave split out to read all of them'}."
    )


def _said(name: str, wanted: Words) -> Words:
    """The words of the innermost part of a path that says which split it is; none where no part does."""
    folder, _, file = name.rpartition("/")
    own = _words(file)
    return own if _says(own, wanted) else _said_by_folder(folder, wanted)


@functools.lru_cache(maxsize=4096)
def _said_by_folder(folder: str, wanted: Words) -> Words:
    parts = [_words(f"{part}/") for part in folder.split("/")]
    return next((own for own in reversed(parts) if _says(own, wanted)), ())


def _says(words: Words, wanted: Words) -> bool:
    return len(_split_words(words)) == 1 or _within(wanted, words)


def _within(wanted: Words, words: Words) -> bool:
    """Whether ``wanted`` has words, and they stand in ``words`` one behind the other."""
    ends = range(len(wanted), len(words) + 1)
    return bool(wanted) and any(words[end - len(wanted) : end] == wanted for end in ends)


def _split_words(words: Words) -> list[str]:
    return [word for word in words if word in TRAINING or word in EVALUATION]


def _refuse_mixed(source: str, root: PurePath, names: list[str], split: str) -> None:
    """Refuse training data beside validation or test data: one folder holds both, under names that match."""
    if not all(any(word in name.lower() for name in names for word in words) for words in _COULD_BE):
        return
    mixed = [(folder, pair) for folder, alike in sorted(_neighbours(names).items()) if (pair := _mixed(alike.values()))]
    if not mixed:
        return
    folder, pair = mixed[0]
    words = " or ".join(f'split = "{of.word}"' for of in pair)
    state = "Name what to read" if split else f"State which of them to read, as {words}, or name it in the path"
    ways = "\n".join(f"    {_way(root, folder, of, every=len(mixed) > 1)}" for of in pair)
    also = f" (and {len(mixed) - 1:,} folders more)" * (len(mixed) > 1)
    raise SourceError(
        f"source {source!r}: {str(root / folder)!r}{also} holds both {pair[0].name!r} and {pair[-1].name!r}, so "
        f"training would read what is meant for validation or tests. {state}:\n{ways}\n"
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
        said = _split_words(words)
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


def _words(name: str) -> Words:
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
