"""A launch under torchrun that a test can watch, signal and kill whole, whatever sessions its processes are in.

torchrun starts every worker in a session of its own, so no process group holds them all. What does:
a mark in the environment, which each descendant inherits.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

MARK = "TEST_LAUNCH_ID"


def alone() -> None:
    """Refuse to launch beside other tests: ``scripts/test`` runs those that are not marked ``slow`` in parallel."""
    assert "PYTEST_XDIST_WORKER" not in os.environ, "this test launches ranks: mark it slow, and run it without -n"


class Launch:
    """``python -m module arguments`` in ``processes`` processes; its output grows in ``output``."""

    def __init__(self, processes: int, module: str, *arguments: object, cwd: Path) -> None:
        alone()
        self.mark = f"{MARK}={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._agent = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", str(processes), "-m", module, *map(str, arguments)),
            ],
            cwd=cwd, env={**os.environ, "OMP_NUM_THREADS": "1", name: value}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace",
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._agent.stdout is not None
        for line in self._agent.stdout:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()

    @property
    def output(self) -> str:
        """All that the launch has said so far."""
        return "".join(self.lines)

    def saw(self, pattern: str, times: int = 1, timeout_s: float = 600) -> bool:
        """Wait for the ``times``-th line that matches; False if the launch ends before."""
        end, seen, at = time.monotonic() + timeout_s, 0, 0
        while True:
            with self._news:
                if at == len(self.lines):
                    self._news.wait(0.05)
                fresh, at = self.lines[at:], len(self.lines)
            seen += sum(bool(re.search(pattern, line)) for line in fresh)
            if seen >= times:
                return True
            if not fresh and self.ended:
                return False
            assert time.monotonic() < end, f"no {pattern!r} in {timeout_s} s:\n{self.output[-3000:]}"

    @property
    def ended(self) -> bool:
        """Whether torchrun has exited and all output is read."""
        return self._agent.poll() is not None and not self._reader.is_alive()

    def wait(self, timeout_s: float = 600) -> int:
        """torchrun's exit code."""
        code = self._agent.wait(timeout_s)
        self._reader.join(10)
        assert self._agent.stdout is not None and not self._reader.is_alive(), f"still running: {self.pids()}"
        self._agent.stdout.close()
        return code

    def pids(self) -> list[int]:
        """Every live process of the launch."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is_ours(pid)]  # noqa: PTH208

    def _is_ours(self, pid: int) -> bool:
        try:
            marked = self.mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            return marked and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:  # it has just ended, or is another user's
            return False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the launch."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """``kill -9`` of every process, until none is left."""
        while self.pids():
            self.signal(signal.SIGKILL)
        self.wait()
