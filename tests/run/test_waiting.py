"""A read that hangs, or a document that takes minutes, is named in the log and waited for."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.run.processes import Sources, made, say_elsewhere, soon, stall_where_told
from tests.scenarios import rank_steps, row_bytes, small_pipeline, texts_of, write_jsonl
from torchtitan_zephon import SourceError
from torchtitan_zephon.plan.chunking import Chunk
from torchtitan_zephon.program import Program
from torchtitan_zephon.records import Packet
from torchtitan_zephon.run import waiting
from torchtitan_zephon.run.pool import Pool
from torchtitan_zephon.run.waiting import wait_for


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SAY_AFTER_S", 0.1)


@pytest.fixture
def one(tmp_path: Path) -> Program:
    """One JSONL file in several chunks."""
    return small_pipeline({"one": write_jsonl(tmp_path / "x.jsonl", texts_of(400))}).for_rank(0, 1).program


def chunk_of(program: Program, run: int) -> Chunk:
    return program.tables[0].chunk(0, run, 0)[0]


@pytest.fixture
def pool() -> Iterator[Pool]:
    workers = Pool(1)
    yield workers
    workers.close()


def release_when(condition: Any, event: threading.Event) -> None:
    threading.Thread(target=lambda: (soon(condition), event.set())).start()


@pytest.mark.usefixtures("quick")
def test_a_wait_is_said_when_it_is_long_and_again_when_it_has_doubled(
    one: Program, pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    may_go = threading.Event()
    release_when(lambda: len(caplog.records) == 3, may_go)
    chunk = chunk_of(one, 1)

    def slow(chunk: Chunk) -> Packet:
        may_go.wait(10)
        return one.work(chunk)

    tokens = wait_for(pool.submit(slow, chunk), chunk, one, pool)
    assert tokens.digest == one.work(chunk).digest
    texts = [record.getMessage() for record in caplog.records]
    file = repr(str(one.sources[0].reader.manifest.path(0)))
    for text, seconds in zip(texts, ("0.1 s", "0.2 s", "0.4 s"), strict=True):
        assert f"held up for {seconds} by source 'one', file {file}, bytes {chunk.start:,} to {chunk.stop:,}. " in text
        assert "the file system does not answer, or these records take long" in text
        assert "kept a worker busy" not in text
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


@pytest.mark.usefixtures("quick")
def test_a_chunk_that_waits_for_a_worker_names_what_keeps_the_worker(
    one: Program, pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    may_go = threading.Event()
    hanging, chunk = chunk_of(one, 2), chunk_of(one, 0)

    def hang(chunk: Chunk) -> None:
        may_go.wait(30)

    pool.submit(hang, hanging)
    release_when(lambda: caplog.records, may_go)
    wait_for(pool.submit(one.work, chunk), chunk, one, pool)
    text = caplog.records[0].getMessage()
    assert f"bytes {hanging.start:,} to {hanging.stop:,}, which has kept a worker busy for " in text


@pytest.mark.usefixtures("quick")
def test_an_error_of_the_work_is_raised_also_where_it_is_a_time_out(one: Program, pool: Pool) -> None:
    def fail(chunk: Chunk) -> Packet:
        time.sleep(0.15)
        raise TimeoutError("its own")

    chunk = chunk_of(one, 0)
    with pytest.raises(TimeoutError, match="its own"):
        wait_for(pool.submit(fail, chunk), chunk, one, pool)
    done: Future[Packet] = pool.submit(fail, chunk)
    time.sleep(0.3)
    with pytest.raises(TimeoutError, match="its own"):
        wait_for(done, chunk, one, pool)


def test_nothing_is_said_before_a_minute() -> None:
    assert waiting.SAY_AFTER_S == 60


@pytest.mark.usefixtures("quick")
def test_a_file_that_does_not_answer_is_named_and_does_not_end_the_stream(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A FIFO that nobody writes to: ``open`` waits for ever, as it does on a dead mount."""
    path = write_jsonl(tmp_path / "x.jsonl", texts_of(2000))
    stream = small_pipeline({"one": path}).for_rank(0, 1)
    rank_steps(stream, 1)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "fifo").replace(path)  # at no moment is there no file
    answered = threading.Event()

    def answer() -> None:
        soon(lambda: "held up" in caplog.text)
        while not answered.wait(0.01):
            with suppress(OSError):  # while nobody reads
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))

    answering = threading.Thread(target=answer)
    answering.start()
    with pytest.raises(SourceError):  # what answers in the end is no file that can be read
        list(stream)
    answered.set()
    answering.join()
    assert f"source 'one', file {str(path)!r}, bytes " in caplog.text
    assert stream.state_dict()["lane"]


def test_a_hang_in_the_process_of_the_loader_is_in_the_log_of_the_trainer(
    sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    monkeypatch.setattr(waiting, "SAY_AFTER_S", waiting.SAY_AFTER_S)  # lowered by the function, in either process
    stream = made(sources).map(stall_where_told).for_rank(0, 1)
    hashes = [row_bytes(batch, row) for step in rank_steps(stream, 1) for batch in step for row in range(2)]
    (tmp_path / "told").touch()
    told = threading.Thread(target=lambda: (soon(lambda: "held up" in caplog.text), (tmp_path / "told").unlink()))
    told.start()
    hashes += [row_bytes(batch, row) for step in rank_steps(stream, 20) for batch in step for row in range(2)]
    told.join()
    stream.close()
    straight = small_pipeline(sources).map(stall_where_told).for_rank(0, 1)
    assert hashes == [row_bytes(batch, row) for step in rank_steps(straight, 21) for batch in step for row in range(2)]
    straight.close()
    [record] = {record.name: record for record in caplog.records if "held up" in record.getMessage()}.values()
    assert (record.name, record.levelno) == ("torchtitan_zephon.run.waiting", logging.WARNING)
    assert str(sources["alpha"].parent) in record.getMessage()


def test_what_the_process_of_the_loader_says_is_in_the_log_of_the_trainer_alone(
    sources: Sources, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    stream = made(sources).map(say_elsewhere).for_rank(0, 1)
    rank_steps(stream, 1)
    stream.close()
    found = {(record.name, record.levelno, record.getMessage()) for record in caplog.records}
    assert ("torchtitan_zephon.lane", logging.INFO, "100 % of {} done") in found
    assert "100 %" not in capfd.readouterr().err
