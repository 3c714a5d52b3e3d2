"""What is kept between runs: the same value or none, and never an error, whatever is in the way."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios import small_pipeline
from torchtitan_zephon.cache import MOST_BYTES, _check, cached, counts_of, is_line


def pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2


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
    assert [cached("a", ["k", 1], compute, pair) for _ in range(3)] == [[7, 8]] * 3
    assert compute.runs == 1
    for kind, key in (("a", ["k", 2]), ("b", ["k", 1]), ("a", [["k"], 1])):
        cached(kind, key, compute, pair)
    assert compute.runs == 4


def test_what_is_not_valid_is_not_kept(compute: Counted) -> None:
    assert cached("a", ["k"], lambda: None, pair) is None
    assert cached("a", ["k"], compute, pair) == [7, 8]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b"{}", b"\xff\x00", b'{"key": "k"}', b"[" * 200_000, b'{"key": ["k"], "value": 1}'],
    ids=range(9),
)
def test_a_damaged_entry_is_computed_again_and_mended(content: bytes, compute: Counted, tmp_path: Path) -> None:
    cached("a", ["k"], compute, pair)
    entry(tmp_path).write_bytes(content)
    assert cached("a", ["k"], compute, pair) == [7, 8]
    assert cached("a", ["k"], compute, pair) == [7, 8]
    assert compute.runs == 2


def test_an_entry_of_another_key_in_its_place_is_not_taken(compute: Counted, tmp_path: Path) -> None:
    cached("a", ["k"], compute, pair)
    entry(tmp_path).write_text(json.dumps({"key": json.dumps(["other"]), "value": [0]}))
    assert cached("a", ["k"], compute, pair) == [7, 8]


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
    assert [cached("a", ["k"], compute, pair) for _ in range(2)] == [[7, 8]] * 2
    assert compute.runs == 2


def test_a_user_without_a_home_folder_gets_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert cached("a", ["k"], Counted(), pair) == [7, 8]


# ---- values that are not what was computed


def put(file: Path, value: str) -> None:
    """Put ``value``, JSON text, into the entry, under its right key and with a check sum that fits."""
    key = json.loads(file.read_text())["key"]
    try:
        check = _check(key, json.loads(value))
    except (ValueError, RecursionError):
        check = ""
    file.write_text(f'{{"key": {json.dumps(key)}, "value": {value}, "check": "{check}"}}')


@pytest.mark.parametrize("value", ["null", "7", '"ab"', "{}", "[1]", "[1, 2, 3]", "[" * 5000 + "]" * 5000])
def test_a_value_that_cannot_be_one_is_computed_again_and_mended(compute: Counted, tmp_path: Path, value: str) -> None:
    cached("a", ["k"], compute, pair)
    put(entry(tmp_path), value)
    assert [cached("a", ["k"], compute, pair) for _ in range(2)] == [[7, 8]] * 2
    assert compute.runs == 2


WRONG_COUNTS = ["null", "5", "[]", "[[9, 8]]", "[[9, 8], [9, 8], [9, 8]]", "[[9, 8], [9]]", "[[9, 8], [9.0, 8]]",
                "[[9, 8], [true, true]]", '[[9, 8], ["9", "8"]]', "[[9, 8], [-9, -8]]", "[[9, 8], [8, 9]]", "[9, 8]",
                "[[9, 8], [[9], 8]]", "[[9, 8], [NaN, 8]]", "[[9, 8], [Infinity, 8]]", "[[9, 8], [1e999, 8]]",
                f"[[9, 8], [{10**30}, 8]]", f"[[9, 8], [{'9' * 5000}, 8]]", "[[12801, 8], [9, 8]]",
                "[[9, 8], {}]"]  # fmt: skip


@pytest.mark.parametrize("value", WRONG_COUNTS)
def test_counts_that_cannot_be_are_refused(value: str) -> None:
    valid = counts_of([100, 200])
    try:
        found = json.loads(value)
    except ValueError:
        return
    assert not valid(found)


def test_counts_that_can_be_are_taken() -> None:
    valid = counts_of([100, 200])
    assert all(map(valid, [[[9, 8], (9, 9)], [[0, 0], [0, 0]], [[12800, 8], [25600, 25600]]]))
    assert is_line("") and is_line("the ids of 'a' differ")
    assert not any(map(is_line, [None, 7, ["a"], "two\nlines", "\ud800", "\x1b[2J"]))


@pytest.mark.parametrize("value", WRONG_COUNTS)
def test_an_estimate_cannot_be_poisoned(sources: dict[str, Path], compute: Counted, tmp_path: Path, value: str) -> None:
    program = small_pipeline(sources).for_rank(0, 1).program
    right = program.measure()
    for file in (tmp_path / "cache" / "torchtitan_zephon").glob("estimate-*"):
        put(file, value)
    assert program.measure() == right


def test_an_estimate_that_was_edited_is_measured_again(
    sources: dict[str, Path], compute: Counted, tmp_path: Path
) -> None:
    program = small_pipeline(sources).for_rank(0, 1).program
    right = program.measure()
    for file in (tmp_path / "cache" / "torchtitan_zephon").glob("estimate-*"):
        value = json.loads(file.read_text())["value"]
        edited = [[tokens + 1, inputs] for tokens, inputs in value]
        file.write_text(file.read_text().replace(json.dumps(value), json.dumps(edited)))
        assert json.loads(file.read_text())["value"] == edited
    assert program.measure() == right


# ---- files that this user has not written


def test_an_entry_is_written_for_this_user_alone_whatever_the_umask(compute: Counted, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cached("a", ["k"], compute, pair)
    finally:
        os.umask(before)
    assert stat.S_IMODE(entry(tmp_path).stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_an_entry_that_others_may_write_to_is_not_trusted(compute: Counted, tmp_path: Path, mode: int) -> None:
    cached("a", ["k"], compute, pair)
    put(entry(tmp_path), "[1, 2]")
    assert cached("a", ["k"], compute, pair) == [1, 2]
    entry(tmp_path).chmod(mode)
    assert [cached("a", ["k"], compute, pair) for _ in range(2)] == [[7, 8]] * 2
    assert compute.runs == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_an_entry_of_another_user_is_not_trusted(compute: Counted, tmp_path: Path) -> None:
    cached("a", ["k"], compute, pair)
    put(entry(tmp_path), "[1, 2]")
    os.chown(entry(tmp_path), 65534, 65534)
    assert [cached("a", ["k"], compute, pair) for _ in range(2)] == [[7, 8]] * 2
    assert compute.runs == 2


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path) -> None:
    put(path, "[1, 2]")
    path.rename(path.parents[2] / "elsewhere")
    path.symlink_to(path.parents[2] / "elsewhere")


def _large(path: Path) -> None:
    path.write_text(path.read_text() + " " * MOST_BYTES)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("replace", [_fifo, _link, _large, _folder, lambda path: path.unlink()])
def test_what_is_no_file_of_an_entry_costs_the_computation_and_never_waits(
    compute: Counted, tmp_path: Path, replace: Callable[[Path], None]
) -> None:
    cached("a", ["k"], compute, pair)
    replace(entry(tmp_path))
    began = time.monotonic()
    assert cached("a", ["k"], compute, pair) == [7, 8]
    assert time.monotonic() - began < 5
    assert compute.runs == 2


def _fill(home: str, results: Any) -> None:
    os.environ["XDG_CACHE_HOME"] = home
    found = {tuple(cached("a", [n % 5], lambda n=n: [n % 5, "x" * 5000], pair)) for n in range(400)}  # type: ignore[misc]
    results.put(len(found))


def test_processes_that_fill_one_entry_at_a_time_do_not_mix(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_fill, args=(str(tmp_path), results)) for _ in range(3)]
    for process in processes:
        process.start()
    assert [results.get(timeout=60) for _ in processes] == [5, 5, 5]
    for process in processes:
        process.join()
    files = sorted((tmp_path / "torchtitan_zephon").iterdir())
    assert [file.suffix for file in files] == [".json"] * 5
    for file in files:
        assert len(json.loads(file.read_text())["value"][1]) == 5000
