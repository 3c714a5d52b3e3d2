"""A read that fails for a moment is tried again, with a word; one that goes on failing ends the run, with the count."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.faults import needs_cc, with_faults
from tests.scenarios import texts_of, tokenizer_folder, write_jsonl, write_parquet
from torchtitan_zephon import SourceError
from torchtitan_zephon.read import retry
from torchtitan_zephon.read.retry import transient, with_retries
from torchtitan_zephon.run.pool import Pool

FILE = Path("/data/x.jsonl")
ROOT = Path(__file__).resolve().parents[2]
PASSING = [errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.ECONNRESET, errno.EBUSY,
           errno.ENOTCONN, errno.ESHUTDOWN, errno.EREMOTEIO]  # fmt: skip
LASTING = [errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EINVAL, errno.EMFILE]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "WAITS_S", (0.01, 0.02, 0.03, 0.04))
    retry._faults.clear()


class Failing:
    """A read that fails as often as there are ``errors``, then gives 7."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors, self.tries = list(errors), 0

    def __call__(self) -> int:
        self.tries += 1
        if self.errors:
            raise self.errors.pop(0)
        return 7


@pytest.mark.parametrize("number", PASSING, ids=errno.errorcode.get)
def test_a_fault_that_may_pass_is_tried_again_up_to_five_times(number: int) -> None:
    for faults in range(5):
        read = Failing(*(OSError(number, "") for _ in range(faults)))
        assert with_retries(read, FILE, "bytes 0 to 9") == 7
        assert read.tries == faults + 1


@pytest.mark.parametrize("number", LASTING, ids=errno.errorcode.get)
def test_a_fault_that_will_not_pass_is_raised_at_once_as_it_is(number: int) -> None:
    error = OSError(number, "said so")
    read = Failing(error)
    with pytest.raises(OSError, match="said so") as raised:
        with_retries(read, FILE, "bytes 0 to 9")
    assert raised.value is error
    assert read.tries == 1


def test_what_is_no_fault_of_the_file_system_is_raised_at_once() -> None:
    for error in (ValueError("[errno 5]"), KeyboardInterrupt(), pa.ArrowInvalid("not Parquet"), OSError("no number")):
        read = Failing(error)
        with pytest.raises(type(error)):
            with_retries(read, FILE, "")
        assert read.tries == 1


def source_error(cause: BaseException | None) -> SourceError:
    error = SourceError("source 'x': cannot be read")
    error.__cause__ = cause
    return error


def test_a_fault_that_has_become_an_error_of_its_source_is_tried_again_as_well() -> None:
    fault = OSError(errno.EIO, "")
    read = Failing(source_error(fault), source_error(fault))
    assert with_retries(read, FILE, "") == 7
    with pytest.raises(SourceError, match=r"source 'x': cannot be read \(on each of 5 tries in 0.1 s\)") as error:
        with_retries(Failing(*(source_error(fault) for _ in range(5))), FILE, "")
    assert error.value.__cause__ is fault
    for cause in (None, OSError(errno.ENOENT, ""), ValueError("[errno 5]")):
        lasting = Failing(source_error(cause))
        with pytest.raises(SourceError, match=r"cannot be read$"):
            with_retries(lasting, FILE, "")
        assert lasting.tries == 1


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_read_within_a_read_is_given_up_once(wrapped: bool) -> None:
    fault = OSError(errno.EIO, "")
    read = Failing(*(source_error(fault) if wrapped else fault for _ in range(99)))

    def inner() -> int:
        try:
            return with_retries(read, FILE, "inner")
        except OSError as error:
            raise source_error(error) from error

    with pytest.raises(SourceError):
        with_retries(inner, FILE, "outer")
    assert read.tries == 5


def test_a_fault_of_another_kind_behind_one_that_may_pass_is_raised_as_it_is() -> None:
    read = Failing(OSError(errno.EIO, ""), FileNotFoundError(errno.ENOENT, "gone"))
    with pytest.raises(FileNotFoundError, match="gone"):
        with_retries(read, FILE, "")


def test_a_read_that_is_given_up_says_how_often_and_how_long() -> None:
    read = Failing(*(OSError(errno.ESTALE, "") for _ in range(9)))
    with pytest.raises(OSError, match=r"ESTALE, Stale file handle, on each of 5 tries in 0\.1 s: '/data/x.jsonl'"):
        with_retries(read, FILE, "")
    assert read.tries == 5


def test_the_tries_go_on_for_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert (len(retry.WAITS_S) + 1, sum(retry.WAITS_S)) == (5, 30)


@pytest.mark.parametrize("error", [OSError("Error reading bytes. Detail: [errno 5] x"), pa.ArrowException("[Errno 5]")])
def test_arrow_may_have_the_number_in_its_text_only(error: Exception) -> None:
    assert transient(error) == errno.EIO


def test_one_warning_a_file_says_what_and_where_and_later_how_often(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(12):
        with_retries(Failing(OSError(errno.ESTALE, "")), FILE, "bytes 5 to 9")
    with_retries(Failing(OSError(errno.EIO, "")), Path("/data/y"), "the footer")
    first, tenth, other = (record.getMessage() for record in caplog.records)
    assert "reading bytes 5 to 9 of '/data/x.jsonl' failed: ESTALE, Stale file handle (fault 1 of this file)" in first
    assert "up to 4 more times in 0.1 s" in first
    assert "(fault 10 of this file)" in tenth
    assert "the footer of '/data/y' failed: EIO, Input/output error (fault 1 " in other


def test_a_worker_that_waits_for_another_try_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "WAITS_S", (600.0,))
    pool, begun = Pool(1), threading.Event()

    def read() -> int:
        begun.set()
        raise OSError(errno.EIO, "waited out")

    future = pool.submit(with_retries, read, FILE, "")
    begun.wait(10)
    began = time.monotonic()
    pool.close()
    assert time.monotonic() - began < 5
    with pytest.raises(OSError, match="waited out"):
        future.result(0)


# ---- the stream, with real faults

SCRIPT = """
import errno, logging, os, sys
logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
from tests.faults import fail
from tests.scenarios import row_bytes, small_pipeline
from torchtitan_zephon import ZephonError
from torchtitan_zephon.read import retry
retry.WAITS_S = (0.01, 0.02, 0.03, 0.04)
pipeline = small_pipeline({"news": sys.argv[1]}, tokenizer=sys.argv[2], workers=1)

def batches(*fault):
    stream = pipeline.for_rank(0, 1)
    fail(*fault)
    try:
        return [row_bytes(batch, row) for _, batch in zip(range(48), stream) for row in range(2)]
    finally:
        fail("none")
        stream.close()
"""
PASSES = """
whole = batches("none")
for number in (errno.ESTALE, errno.EIO):
    for call in ("open", "read"):
        for first in (0, 1, 4, 9):
            assert batches(call, number, first, 2) == whole
            print("same")
"""
LISTING = """
def listed():
    anew = small_pipeline({"news": sys.argv[1]}, tokenizer=sys.argv[2], workers=1)
    return anew.for_rank(0, 1).program.identity["sources"]

whole = listed()
for call in ("open", "read", "list"):
    for first in (0, 1):
        fail(call, errno.ESTALE, first, 2)
        assert listed() == whole
        print("same")
    fail(call, errno.ESTALE, 0, 10**6)
    try:
        listed()
    except ZephonError as error:
        print(type(error).__name__, error)
fail("none")
"""
STAYS = """
for call in ("open", "read"):
    try:
        batches(call, errno.ESTALE, 3, 10**6)
    except ZephonError as error:
        print(type(error).__name__, error)
"""


def jsonl(folder: Path) -> Path:
    return write_jsonl(folder / "x.jsonl", texts_of(200))


def parquet(folder: Path) -> Path:
    return write_parquet(folder / "x.parquet", texts_of(200), row_group_rows=20)


def parquet_of_one_group(folder: Path) -> Path:
    return write_parquet(folder / "x.parquet", texts_of(1200), row_group_rows=1200)


def run(script: str, path: Path, faulty: str = "") -> list[str]:
    command = [sys.executable, "-c", SCRIPT + script, str(path), str(tokenizer_folder())]
    environment = {**with_faults(faulty or path.name), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@needs_cc
@pytest.mark.parametrize("make", [jsonl, parquet, parquet_of_one_group])
def test_a_fault_at_any_call_on_a_file_changes_nothing(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    lines = run(PASSES, make(tmp_path))
    assert lines.count("same") == 16
    warnings = [line for line in lines if line != "same"]
    assert len(warnings) == 2  # at the first fault of the file, and at the tenth
    assert "failed: ESTALE, Stale file handle (fault 1 of this file)" in warnings[0]
    assert "(fault 10 of this file)" in warnings[1]


@needs_cc
@pytest.mark.parametrize("make", [jsonl, parquet])
def test_a_fault_that_stays_ends_the_run_with_file_and_tries(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path)
    errors = [line for line in run(STAYS, path) if line.startswith("SourceError")]
    assert len(errors) == 2
    for error in errors:
        assert str(path.name) in error
        assert "Stale file handle" in error
        assert "on each of 5 tries in 0.1 s" in error


@needs_cc
def test_faults_while_files_are_listed_and_sampled_are_waited_out_too(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "folder" / "x.jsonl", texts_of(20))
    lines = run(LISTING, tmp_path / "folder", "folder/")  # a folder is listed by this name
    assert lines.count("same") == 6
    (error,) = [line for line in lines if line.startswith("SourceError")]
    assert "folder" in error and "ESTALE, Stale file handle, on each of 5 tries in 0.1 s" in error
    lines = run(LISTING, tmp_path / "folder", "x.jsonl")
    errors = [line for line in lines if line.startswith("SourceError")]
    assert len(errors) == 2
    assert all("x.jsonl' cannot be read: ESTALE, Stale file handle, on each of 5 tries" in error for error in errors)
