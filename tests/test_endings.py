"""A stream that is closed, dropped, interrupted or done leaves no thread behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.scenarios import rank_steps, small_pipeline, tokenizer_folder
from torchtitan_zephon import (
    FunctionError,
)  # fmt: skip

Sources = dict[str, Path]


def workers_alive() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("zephon-")]


def test_no_thread_is_left_after_close_or_when_a_stream_is_dropped(sources: Sources) -> None:
    closed, dropped = small_pipeline(sources).for_rank(0, 1), small_pipeline(sources).for_rank(0, 1)
    rank_steps(closed, 2)
    rank_steps(dropped, 2)
    assert workers_alive()
    closed.close()
    del dropped
    assert list(small_pipeline(sources, repeat=False))
    with pytest.raises(FunctionError):
        list(small_pipeline(sources).map(lambda r: {"text": r["nothing"]}, identity="fails"))
    deadline = time.monotonic() + 5
    while workers_alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not workers_alive()


ENDLESS = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job is born ignoring it
from pathlib import Path
from tests.scenarios import small_pipeline
from torchtitan_zephon import TokenEstimation
short = {"token_estimation": TokenEstimation(sample_bytes=1)}
pipeline = small_pipeline({"s": Path(sys.argv[1])}, tokenizer=sys.argv[2], **short)
pipeline = pipeline.map(lambda r: time.sleep(0.02) or r, identity="slow")
for batch in pipeline:
    print("first", flush=True)
    if sys.argv[3] == "exit":
        break
"""


@pytest.mark.parametrize("how", ["exit", "interrupt"])
def test_a_program_ends_at_once_with_work_still_queued(sources: Sources, how: str) -> None:
    command = [sys.executable, "-c", ENDLESS, str(sources["news"]), str(tokenizer_folder()), how]
    root = str(Path(__file__).parents[1])
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root}
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "first\n"
    if how == "interrupt":
        process.send_signal(signal.SIGINT)
    started = time.monotonic()
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - started < 5
    assert process.returncode == (0 if how == "exit" else -signal.SIGINT)
    assert ("KeyboardInterrupt" in errors) == (how == "interrupt")
