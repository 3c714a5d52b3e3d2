"""What the tests of ``runner = "process"`` share: functions it can import, a look at processes, trainers as scripts."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios import small_pipeline, tokenizer_folder
from torchtitan_zephon import Pipeline, RankStream, StateError, ZephonError
from torchtitan_zephon.plan import keyed
from torchtitan_zephon.run import waiting
from torchtitan_zephon.run.process import Child, ChildEngine
from torchtitan_zephon.run.ring import SLOTS
from torchtitan_zephon.state import decode_stream

ROOT = Path(__file__).resolve().parents[2]
SOON_S = 60.0
"""Far above what an end takes (a second at most), for busy machines."""
Sources = dict[str, Path]


def made(sources: Sources, **options: Any) -> Pipeline:
    return small_pipeline(sources, **options).options(runner="process")


def children() -> list[int]:
    """Loader processes of this one that still run."""
    pids: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            pids += (task / "children").read_text().split()
    return [int(pid) for pid in pids if b"boot.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def soon(condition: Callable[[], object]) -> bool:
    """Whether ``condition`` comes true within ``SOON_S``."""
    deadline = time.monotonic() + SOON_S
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


def child_of(stream: RankStream) -> Child:
    """The process that reads ``stream``, which has begun."""
    engine = stream._engine
    assert isinstance(engine, ChildEngine)
    assert engine._child is not None
    return engine._child


def let_run_ahead(stream: RankStream) -> None:
    """Wait until the process has filled every slot of the ring; the batches stay to be taken."""
    child = child_of(stream)
    while len(child._inbox) < SLOTS:
        child._inbox.append(child._listen())  # type: ignore[arg-type]


def failure(stream: RankStream) -> tuple[int, ZephonError]:
    """Batches before the error that ends ``stream``, and the error; the last whole step can be saved, or is lost."""
    taken: list[int] = []
    with pytest.raises(ZephonError) as error:
        taken.extend(batch.step for batch in stream)
    assert children() == []
    with pytest.raises(type(error.value)) as again:
        next(iter(stream))
    assert again.value is error.value
    died = "process died" in str(error.value) and stream.step > 0
    if died:
        with pytest.raises(StateError, match=r"has ended (with its process, which held|in the middle of step)"):
            stream.state_dict()
    else:
        assert decode_stream(stream.state_dict()["stream"]).step == stream.step
    stream.close()
    return len(taken), error.value


def is_loader(place: Path) -> bool:
    """Whether the process at ``place`` in /proc is a loader's with the mark of this one."""
    mark = f"TESTED={os.environ['TESTED']}".encode()
    try:
        return b"boot.py" in (place / "cmdline").read_bytes() and mark in (place / "environ").read_bytes()
    except OSError:
        return False


# ---- functions that another process can import


def strip(record: dict[str, Any]) -> dict[str, Any]:
    return {"text": record["text"].replace("xy", "yx")}


def most(record: dict[str, Any]) -> bool:
    return keyed.below(keyed.key(record["text"]), 0, 3) > 0


class UnlikeAnyOther(ZephonError):
    def __init__(self, held: object) -> None:
        super().__init__("cannot be pickled")
        self.held = held


class Bomb:
    def __reduce__(self) -> str:
        sys.exit("pickled")


def fail_late(record: dict[str, Any]) -> dict[str, Any]:
    if record["id"] == 150:
        raise LookupError("too late")
    return record


def exit_late(record: dict[str, Any]) -> dict[str, Any]:
    if record["id"] == 150:
        sys.exit("too late")
    return record


def elsewhere() -> bool:
    """Whether this is the loader's process: the trainer's measures tokens per byte, which runs functions too."""
    return sys.argv[0].endswith("boot.py")


def fail_strangely(record: dict[str, Any]) -> dict[str, Any]:
    if elsewhere():
        raise UnlikeAnyOther(lambda: None)
    return record


def fail_unspeakably(record: dict[str, Any]) -> dict[str, Any]:
    if elsewhere():
        raise UnlikeAnyOther(Bomb())
    return record


def stall_elsewhere(record: dict[str, Any]) -> dict[str, Any]:
    """Touch the file ``STALLED`` and be busy for ten minutes."""
    if elsewhere():
        Path(os.environ["STALLED"]).touch()
        time.sleep(600)
    return record


def note_elsewhere(record: dict[str, Any]) -> dict[str, Any]:
    """Append the record to the file ``NOTES``."""
    if elsewhere():
        with open(os.environ["NOTES"], "a", encoding="utf-8") as file:
            file.write(record["text"] + "\n")
    return record


def fail_where_told(record: dict[str, Any]) -> dict[str, Any]:
    """Fail on some records while the file ``TOLD`` is there."""
    if record["id"] % 40 == 7 and Path(os.environ["TOLD"]).exists():
        raise LookupError("told to fail")
    return record


def stall_where_told(record: dict[str, Any]) -> dict[str, Any]:
    """Wait on some records while the file ``TOLD`` is there; a line in the log is due soon."""
    waiting.SAY_AFTER_S = 0.1
    while record["id"] % 40 == 7 and Path(os.environ["TOLD"]).exists():
        time.sleep(0.01)
    return record


def say_elsewhere(record: dict[str, Any]) -> dict[str, Any]:
    """Log a line of this package, for information."""
    if elsewhere():
        logging.getLogger("torchtitan_zephon.lane").info("%s %% of {} done", 100)
    return record


def no_torch(record: dict[str, Any]) -> dict[str, Any]:
    assert not elsewhere() or "torch" not in sys.modules, "torch came with the main program"
    return record


def import_torch(record: dict[str, Any]) -> dict[str, Any]:
    __import__("torch")
    return record


# ---- a trainer as a script

HEAD = """
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job is born ignoring it
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and one under nohup this
from pathlib import Path
from tests.scenarios import small_pipeline, row_bytes, rank_steps
from tests.run import processes
from torchtitan_zephon import ConfigError, RunnerError
def made():
    alpha = {"alpha": Path(sys.argv[1])}
    return small_pipeline(alpha, tokenizer=sys.argv[2], lanes=2, global_batch_size=4).options(runner="process")
def say(*words):
    print(*words, flush=True)
"""


class Script:
    """A trainer in a process group of its own; ``mark`` is in the environment of all that it starts."""

    def __init__(self, text: str, sources: Sources, *, by: str = "-c", **environment: str) -> None:
        self.mark = uuid.uuid4().hex
        script = HEAD + textwrap.dedent(text)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TESTED": self.mark, **environment}
        arguments = [script if by == "-c" else by, str(sources["alpha"]), str(tokenizer_folder())]
        command = [sys.executable, *(["-c"] if by == "-c" else []), *arguments]
        self.process = subprocess.Popen(
            command, env=environment, start_new_session=True, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        if by == "-":
            assert self.process.stdin is not None
            self.process.stdin.write(script)
            self.process.stdin.close()
            self.process.stdin = None

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> tuple[int, str]:
        """Its exit code and stderr, once it and all that it started have ended."""
        self.process.wait(60)
        assert soon(lambda: not self.alive()), self.alive()
        _, errors = self.process.communicate()
        return self.process.returncode, errors

    def alive(self) -> list[bytes]:
        """Command lines of the processes with the mark, besides the trainer."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if place.name != str(self.process.pid) and self.mark.encode() in (place / "environ").read_bytes():
                    found.append((place / "cmdline").read_bytes())
            except OSError:  # it has ended meanwhile
                continue
        return [line for line in found if line]
