"""A stated path is relative to its file, or on the command line to the working folder, whichever key holds it."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest

from torchtitan_zephon import Recipe, RunSettings, SourceConfig, SourceError
from torchtitan_zephon.paths import PATHS, anchor_paths
from torchtitan_zephon.program import opened

NAME = "a.b"
"""Of a source, to stand for ``*``."""


def table_of(keys: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The table in which ``value`` stands at ``keys``."""
    for key in reversed(keys):
        value = {NAME if key == "*" else key: value}
    table: dict[str, Any] = value
    return table


def anchored(path: str, file: Path | None, keys: tuple[str, ...] = ("recipe",)) -> Any:
    """``path`` as it comes out where it is stated at ``keys``."""
    value: Any = anchor_paths(table_of(keys, path), file)
    for key in keys:
        value = value[NAME if key == "*" else key]
    return value


@pytest.mark.parametrize("keys", PATHS, ids=".".join)
def test_every_key_that_holds_a_path_is_anchored_in_a_file_and_on_the_command_line(
    keys: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/somewhere")
    file = Path("sub") / "r.toml"
    for place, folder in ((file, tmp_path / "sub"), (None, tmp_path)):
        paths = {"data/a": str(folder / "data/a"), "../a": str(folder / "../a"), "*.jsonl": str(folder / "*.jsonl")}
        for stated, full in {**paths, "/data/b": "/data/b", "~/d": "/somewhere/d", "hf://c": "hf://c", "": ""}.items():
            assert anchored(stated, place, keys) == full
            hint = getattr(anchored(stated, place, keys), "hint", "")
            assert bool(hint) == (stated in paths) and hint.startswith(f"It is stated as {stated!r} " * bool(hint))


def test_every_setting_that_is_said_to_be_relative_to_its_file_is_one_of_these_keys() -> None:
    settings = {
        f.name for cls in (Recipe, RunSettings, SourceConfig) for f in dataclasses.fields(cls)
        if "relative to the TOML file" in f.metadata["doc"]
    }  # fmt: skip
    assert settings == {keys[-1] for keys in PATHS} - {"recipe"}


@pytest.mark.parametrize("keys", PATHS, ids=".".join)
@pytest.mark.parametrize("value", [3, None, ["a"], {}], ids=str)
def test_what_is_no_path_or_no_table_is_left_for_the_check_to_refuse(keys: tuple[str, ...], value: Any) -> None:
    for depth in range(len(keys) + 1):
        table = table_of(keys[:depth], value) if depth else {}
        assert anchor_paths(table, None) == table


def test_a_path_that_leads_nowhere_is_told_as_it_was_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "sub" / "r.toml"
    stated = {
        anchored("data/a", file): f"file or folder '{tmp_path}/sub/data/a'.* It is stated as 'data/a' in '{file}'",
        anchored("data/a", None): f"'{tmp_path}/data/a'.* 'data/a' on the command line, .*'{tmp_path}'",
        anchored("*.jsonl", None): rf"'{tmp_path}/\*.jsonl'.* '\*.jsonl' on the command line, ",
        "data/a": f"'data/a'; this is relative to the working folder, '{tmp_path}'",
    }
    for path, message in stated.items():
        with pytest.raises(SourceError, match=message):
            opened("x", Recipe(sources={"x": SourceConfig(path=path)}))
    absolute = anchored("/no/such/place", file)
    with pytest.raises(SourceError, match=r"'/no/such/place'") as refusal:
        opened("x", Recipe(sources={"x": SourceConfig(path=absolute)}))
    assert "is stated as" not in str(refusal.value)
    (tmp_path / "a.jsonl").write_text("", "utf-8")
    with pytest.raises(SourceError, match="are empty") as refusal:  # its path is right
        opened("x", Recipe(sources={"x": SourceConfig(path=anchored("a.jsonl", None))}))
    assert "is stated as" not in str(refusal.value)


def test_a_stated_path_is_a_string_like_any_other() -> None:
    path = anchored("data", None)
    again = pickle.loads(pickle.dumps(path))
    assert (again, again.hint) == (path, path.hint) == (str(path), path.hint)
    assert repr(SourceConfig(path=path)) == repr(SourceConfig(path=str(path)))
