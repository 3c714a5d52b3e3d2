"""Which files of a data set repository are a configuration's split: what ``datasets`` would load.

What flows in: the card's ``configs`` (the header of README.md), the names of all files, and the configuration and split
that a path names. What flows out: the files. Where the card says nothing, the rule is that of ``datasets``: names
``data/SPLIT-00000-of-00001*``, else the words for splits in folders, else in file names, else all files are ``train``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import SourceError
from ..splits import SPLITS

Splits = dict[str, list[str]]
"""Files by split."""

_APART = r"[-._ 0-9]"
_SHARDED = re.compile(r"data/([^/]+)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_NO_DATA = re.compile(
    r"(?:.*/)?(?:[._].*|README\.md|LICENSE.*|config\.json|dataset_infos?\.json|dataset_dict\.json|state\.json)", re.I
)


def chosen_files(url: str, card: Mapping[str, Any], names: Sequence[str], asked: Sequence[str]) -> list[str]:
    """The files that ``asked`` means: a configuration and a split, or one of them where the other needs no name.

    Raises ``SourceError`` with those that there are.
    """
    configs = configs_of(card, names)
    if len(asked) > 2:
        raise SourceError(
            f"{url!r}: behind the name of a data set stand a configuration and a split. For some of its files write "
            f"hf://datasets/OWNER/NAME/{'/'.join(asked)}."
        )
    config, split = _named(url, configs, list(asked))
    splits = configs[config]
    if split is None and len(splits) == 1:
        split = next(iter(splits))
    if split not in splits:
        what = "several splits" if split is None else f"no split {split!r}"
        raise SourceError(
            f"{url!r}: configuration {config!r} has {what}. It has: {', '.join(map(repr, splits)) or 'none'}. Name one "
            f"as hf://OWNER/NAME/{config}/SPLIT."
        )
    if not splits[split]:
        raise SourceError(f"{url!r}: the card names files for this split, and the repository has none of them.")
    return splits[split]


def _named(url: str, configs: Mapping[str, Splits], asked: list[str]) -> tuple[str, str | None]:
    """The configuration, and the split if one is named."""
    config, split = (*asked, None, None)[:2]
    if config is not None and config in configs:
        return config, split
    if len(configs) == 1 and split is None:
        return next(iter(configs)), config
    if not asked and "default" in configs:
        return "default", None
    what = f"no configuration {asked[0]!r}" if asked else "several configurations"
    raise SourceError(
        f"{url!r}: the data set has {what}. It has: {', '.join(map(repr, configs))}. Name one, and its split, as "
        "hf://OWNER/NAME/CONFIG/SPLIT; or read files by their path, as hf://datasets/OWNER/NAME/PATH."
    )


def configs_of(card: Mapping[str, Any], names: Sequence[str]) -> dict[str, Splits]:
    """The configurations of a repository; ``default`` alone where its card names none."""
    stated = card.get("configs")
    tables = [table for table in stated if isinstance(table, Mapping)] if isinstance(stated, list) else []
    if not tables:
        return {"default": _found(names)}
    return {str(table.get("config_name", "default")): _stated(table, names) for table in tables}


def _stated(table: Mapping[str, Any], names: Sequence[str]) -> Splits:
    """The splits of a configuration as its table in the card has them."""
    below = f"{str(table['data_dir']).strip('/')}/" if table.get("data_dir") else ""
    files = table.get("data_files")
    if files is None:
        return _found([name for name in names if name.startswith(below)], below)
    if isinstance(files, Mapping):
        files = [{"split": split, "path": path} for split, path in files.items()]
    if isinstance(files, str) or not all(isinstance(of, Mapping) for of in files):
        files = [{"split": "train", "path": files}]
    splits: Splits = {}
    for of in files:
        paths = of["path"] if isinstance(of["path"], list) else [of["path"]]
        shapes = [_shape(below + str(path)) for path in paths]
        found = [name for name in names if _is_data(name) and any(shape.fullmatch(name) for shape in shapes)]
        splits.setdefault(str(of["split"]), []).extend(found)
    return splits


def _found(names: Sequence[str], below: str = "") -> Splits:
    """The splits as the names of files below a folder say them."""
    own = {name[len(below) :]: name for name in names if _is_data(name)}
    sharded: Splits = {}
    for name, full in own.items():
        if match := _SHARDED.fullmatch(name):
            sharded.setdefault(match[1], []).append(full)
    if sharded:
        return sharded
    for in_folder in (True, False):
        splits = {split: [full for name, full in own.items() if _says(name, split, in_folder)] for split in SPLITS}
        if any(splits.values()):
            return {split: files for split, files in splits.items() if files}
    return {"train": list(own.values())} if own else {}


def _says(name: str, split: str, in_folder: bool) -> bool:
    """Whether one of the folders of a file, or its own name, has a word of ``split``."""
    *folders, last = name.split("/")
    parts = folders if in_folder else [last]
    end = rf"(?:{_APART}.*)?" if in_folder else rf"{_APART}.*"
    return any(re.fullmatch(rf"(?:.*{_APART})?{word}{end}", part) for part in parts for word in SPLITS[split])


def _is_data(name: str) -> bool:
    return _NO_DATA.fullmatch(name) is None


def _shape(pattern: str) -> re.Pattern[str]:
    """A glob of the hub's as a regular expression: ``*`` within a name, ``**`` across folders."""
    import fsspec.utils

    return re.compile(fsspec.utils.glob_translate(pattern.removeprefix("./").lstrip("/")))
