"""Long work says how far it is: a bar on a terminal, lines in a log, and nothing where it is short or not the first."""

from __future__ import annotations

import io
import logging
import re
from pathlib import Path

import pytest

from tests.scenarios import rank_steps, small_pipeline, texts_of, write_jsonl, write_parquet
from torchtitan_zephon import progress
from torchtitan_zephon.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Seconds pass only when ``tick`` says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    caplog.set_level(logging.INFO, logger="torchtitan_zephon")
    monkeypatch.delenv("RANK", raising=False)
    return made


def work(clock: Clock, seconds: int, total: int | None = 1_000_000) -> None:
    """Some thousand files a second."""
    with Progress("sampling", total, "files") as shown:
        for _ in range(seconds):
            shown.done(3_000)
            clock.now += 1.0
        shown.done(0)


def test_a_log_has_a_line_after_two_seconds_and_every_five(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    work(clock, 12)
    done = [3_000 * seconds for seconds in (4, 9)]  # behind the second and the seventh second
    assert caplog.messages == [f"sampling: {n:,} of 1,000,000 files" for n in done]


def test_without_a_total_the_line_says_what_is_done(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    work(clock, 4, None)
    assert caplog.messages == ["sampling: 12,000 files"]


def test_what_is_done_in_two_seconds_is_not_shown(
    clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stream in (io.StringIO(), Terminal()):
        monkeypatch.setattr("sys.stderr", stream)
        work(clock, 2)
        assert stream.getvalue() == ""
    assert caplog.messages == []


def test_a_terminal_has_a_bar_that_goes_at_the_end(
    clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    work(clock, 12)
    assert re.search(r"sampling: +1%.*\| 12000/1000000 \[.* files", stream.getvalue())
    assert stream.getvalue().endswith("\r")
    assert caplog.messages == []


def test_only_the_first_process_of_a_job_shows_it(
    clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    work(clock, 12)
    assert caplog.messages == []
    monkeypatch.setenv("RANK", "0")
    work(clock, 12)
    assert len(caplog.messages) == 2


def test_an_error_ends_the_bar(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)

    def fail() -> None:
        with Progress("sampling", None, "files") as shown:
            clock.now += 3.0
            shown.done()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert stream.getvalue().endswith("\r")


def test_listing_sampling_footers_counting_and_restoring_say_how_far_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SILENT_S", -1.0)
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    caplog.set_level(logging.INFO, logger="torchtitan_zephon")
    lines = write_jsonl(tmp_path / "lines" / "a.jsonl", texts_of(300))
    rows = write_parquet(tmp_path / "rows" / "a.parquet", texts_of(300))

    def pipeline():  # type: ignore[no-untyped-def]
        return small_pipeline({"lines": lines.parent, "rows": rows.parent}, repeat=False)

    stream = pipeline().for_rank(0, 1)
    rank_steps(stream, 3)
    state = stream.state_dict()
    stream.close()
    again = pipeline().for_rank(0, 1)
    again.load_state_dict(state)
    rank_steps(again, 1)
    again.close()
    said = "\n".join(caplog.messages)
    for line in (
        rf"listing '{lines.parent}': 1 files found",
        r"sampling the files of source 'lines': 1 of 1 files",
        r"reading the footers of Parquet files: 1 of 1 files",
        r"counting one pass: \d+ sequences",
        r"restoring 4 lanes: \d+ of \d+ sequences read again",
        r"restored: \d+ sequences of 4 lanes",
    ):
        assert re.search(line, said), line
