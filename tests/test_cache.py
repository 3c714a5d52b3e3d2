"""What is kept between runs: the same value or none, and never an error, whatever is in the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from torchtitan_zephon.cache import cached


class Counted:
    """A computation that counts its runs."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self) -> list[int]:
        self.runs += 1
        return [7, 8]


@pytest.fixture
def compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Counted()


def entry(tmp_path: Path) -> Path:
    (file,) = (tmp_path / "cache" / "torchtitan_zephon").iterdir()
    return file


def test_a_value_is_computed_once_for_a_key(compute: Counted) -> None:
    assert [cached("a", ["k", 1], compute) for _ in range(3)] == [[7, 8]] * 3
    assert compute.runs == 1
    for kind, key in (("a", ["k", 2]), ("b", ["k", 1]), ("a", [["k"], 1])):
        cached(kind, key, compute)
    assert compute.runs == 4


def test_none_is_not_kept(compute: Counted) -> None:
    assert cached("a", ["k"], lambda: None) is None
    assert cached("a", ["k"], compute) == [7, 8]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b"{}", b"\xff\x00", b'{"key": "k"}', b"[" * 200_000, b'{"key": ["k"], "value": 1}'],
    ids=range(9),
)
def test_a_damaged_entry_is_computed_again_and_mended(content: bytes, compute: Counted, tmp_path: Path) -> None:
    cached("a", ["k"], compute)
    entry(tmp_path).write_bytes(content)
    assert cached("a", ["k"], compute) == [7, 8]
    assert cached("a", ["k"], compute) == [7, 8]
    assert compute.runs == 2


def test_an_entry_of_another_key_in_its_place_is_not_taken(compute: Counted, tmp_path: Path) -> None:
    cached("a", ["k"], compute)
    entry(tmp_path).write_text(json.dumps({"key": json.dumps(["other"]), "value": [0]}))
    assert cached("a", ["k"], compute) == [7, 8]


def _file_as_folder(path: Path) -> Path:
    path.write_text("a file")
    return path


def _loop(path: Path) -> Path:
    path.symlink_to(path)
    return path


PLACES: list[Callable[[Path], Path]] = [
    _file_as_folder,
    _loop,
    lambda path: Path("/dev/null"),
    lambda path: Path("/proc"),
    lambda path: path / ("x" * 300),
]


@pytest.mark.parametrize("place", PLACES)
def test_a_folder_that_cannot_be_used_costs_the_computation_and_no_error(
    place: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(place(tmp_path / "cache")))
    compute = Counted()
    assert [cached("a", ["k"], compute) for _ in range(2)] == [[7, 8]] * 2
    assert compute.runs == 2


def test_a_user_without_a_home_folder_gets_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert cached("a", ["k"], Counted()) == [7, 8]
