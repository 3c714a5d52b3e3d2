"""Who speaks when a job is refused, what torchrun's table says of it, and how a refused process ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from torchtitan_zephon import ZephonError, titan as titan_package, train

WHAT = "what\n    a: 1 -> 2"


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[float]:
    """How long was slept; there is a file for torchrun's table, with a traceback in it."""
    slept: list[float] = []
    (tmp_path / "error.json").write_text("{}")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return slept


def of_all_ranks() -> ZephonError:
    error = ZephonError(WHAT)
    error.of_all_ranks = True
    return error


@pytest.mark.parametrize(
    ("local_rank", "began", "waits", "said"),
    [("0", False, False, "torchtitan_zephon: what"), ("0", True, False, "torchtitan_zephon: rank 9: what"),
     ("3", False, True, "torchtitan_zephon: rank 9: what"), ("3", True, False, "torchtitan_zephon: rank 9: what")],
)  # fmt: skip
def test_the_nodes_first_rank_speaks_at_start_up_and_the_failing_rank_in_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], slept: list[float], local_rank: str,
    began: bool, waits: bool, said: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    monkeypatch.setattr(titan_package.training_began, "is_set", lambda: began)
    train.report(ZephonError(WHAT))
    assert capsys.readouterr().err == f"{said}\n    a: 1 -> 2\n"
    assert bool(slept) is waits


@pytest.mark.parametrize("began", [False, True])
def test_of_an_error_that_all_ranks_have_the_nodes_first_rank_speaks_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], slept: list[float], began: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(titan_package.training_began, "is_set", lambda: began)
    for local_rank, said in (("0", "torchtitan_zephon: what\n    a: 1 -> 2\n"), ("3", "")):
        monkeypatch.setenv("LOCAL_RANK", local_rank)
        train.report(of_all_ranks())
        assert capsys.readouterr().err == said
    assert len(slept) == 1, "the others wait for torchrun to end them"


def test_the_table_of_torchrun_holds_the_paragraph_of_the_rank_that_spoke_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slept: list[float]
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    train.report(of_all_ranks())
    message = json.loads((tmp_path / "error.json").read_text())["message"]
    assert message["message"] == "torchtitan_zephon: what\n    a: 1 -> 2"
    assert abs(int(message["extraInfo"]["timestamp"]) - time.time()) < 60
    monkeypatch.setenv("LOCAL_RANK", "3")
    train.report(of_all_ranks())
    assert not (tmp_path / "error.json").exists()
    assert slept


def test_a_table_that_cannot_be_written_does_not_keep_the_paragraph_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, slept: list[float]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "nowhere" / "error.json"))
    monkeypatch.setenv("LOCAL_RANK", "0")
    train.report(of_all_ranks())
    assert capsys.readouterr().err == "torchtitan_zephon: what\n    a: 1 -> 2\n"
    assert not slept


# ---- how it ends

SCRIPT = """
import atexit, sys, threading, time
from torchtitan_zephon import SourceError, train
def refuse(args):
    atexit.register(print, "closed")
    threading.Thread(target=lambda: (time.sleep(0.5), print("saved"))).start()
    error = SourceError("no")
    error.of_all_ranks = %s
    raise error
train.run = refuse
class HeldUp:  # as gloo's process group, which waits for the other ranks where Python clears its modules
    def __del__(self):
        time.sleep(600)
sys.modules["held_up"] = HeldUp()
train.main([])
"""


def refused(local_rank: str, *, of_all: bool = False) -> subprocess.Popen[str]:
    environ = {**os.environ, "LOCAL_RANK": local_rank, "RANK": local_rank}
    command = [sys.executable, "-u", "-c", textwrap.dedent(SCRIPT % of_all)]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_refused_process_ends_at_once_behind_its_threads_and_exit_handlers() -> None:
    process = refused("0")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out.split(), err) == (2, ["saved", "closed"], "torchtitan_zephon: no\n")


def test_a_rank_that_torchrun_ends_while_another_speaks_is_no_failure_in_its_table() -> None:
    process = refused("1", of_all=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "saved\n"
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")
