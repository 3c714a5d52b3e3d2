"""Launches without the imports: ``forked`` is torchrun, with ranks forked from processes that have imported TorchTitan.

The caller does the work of torchrun's agent: it holds the store where the ranks meet, gives each rank torchrun's
variables, collects their output, and ends the others when one fails. ``test_forks.py`` compares the two. A launch that
is about signals, kills or torchrun itself stays under torchrun.

Ranks come from ``SERVERS`` processes in turn. So neighbours hash strings differently, as real ranks do, and an order
that follows from a set or from ``hash()`` differs between them.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

from torch.distributed import TCPStore

from tests.titan.fork_server import MAX_REQUEST_BYTES
from tests.titan.launches import alone

ROOT = Path(__file__).parents[2]
SERVERS = 2
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
"""What the servers start with: the environment before any test has changed it."""
MAY_CHANGE = {"PYTHONPATH", "PYTEST_CURRENT_TEST", "TOKENIZERS_PARALLELISM", "TORCHINDUCTOR_CACHE_DIR"}
"""What pytest and libraries set as the tests run in this process; all are read when used, or by ``fork_server``."""
OTHERS_END_S = 30.0
"""torchrun kills the other ranks so long after it has asked them to end, because one failed."""
LEAKS = re.compile(r"^(nanobind: | - (leaked|\.\.\. skipped) |See https://nanobind).*\n?", re.MULTILINE)
"""What triton says when Python ends, of objects that ``gc.freeze`` has kept: pages of it, in each rank."""


def forked(
    processes: int, module: str, *arguments: object, cwd: Path = ROOT, timeout_s: float = 1200
) -> tuple[int, str]:
    """Exit code and output of ``python -m module arguments`` in ``processes`` ranks; 1 if any of them fails."""
    alone()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    changed = {k for k in environment.keys() | ENVIRONMENT if environment.get(k) != ENVIRONMENT.get(k)} - MAY_CHANGE
    assert not changed, f"{changed}: libraries may have read these when the servers imported them; use torchrun here"
    launch = _Launch(processes)
    try:
        launch.start({"module": module, "arguments": [*map(str, arguments)], "folder": str(cwd)}, environment)
        launch.follow(timeout_s)
    finally:
        launch.end()
    return int(any(launch.codes.values())), LEAKS.sub("", launch.output.decode(errors="replace"))


class ForkServer:
    """The near end of a ``fork_server`` process."""

    def __init__(self) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", "tests.titan.fork_server", str(theirs.fileno())],
            cwd=ROOT, env={**ENVIRONMENT, "PYTHONHASHSEED": "random"}, stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()], start_new_session=True,
        )  # fmt: skip
        theirs.close()
        atexit.register(self._close)

    def fork(self, output: int, **request: object) -> None:
        """Ask for a rank that writes to ``output``; its process id comes with the answers."""
        socket.send_fds(self.channel, [json.dumps(request).encode()], [output])

    def answer(self) -> dict[str, int]:
        """The next answer; waits for it."""
        data = self.channel.recv(MAX_REQUEST_BYTES)
        assert data, f"the fork server has ended with exit code {self._process.wait()}"
        return dict(json.loads(data))

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Signal one of its ranks, if that is still there."""
        self.channel.send(json.dumps({"signal": number, "pid": pid}).encode())

    def _close(self) -> None:
        self.channel.close()
        self._process.wait(30)


@functools.cache
def servers() -> list[ForkServer]:
    """The servers of this process, from the first launch to its end."""
    return [ForkServer() for _ in range(SERVERS)]


class _Launch:
    """The ranks of one launch. ``pids`` are those forked, ``codes`` the exit codes of those that have ended.

    Each request is answered by one ``forked`` and, once, by one ``ended``; ``end`` waits until all are.
    """

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self.output = b""
        self.pids: dict[int, ForkServer] = {}
        self.codes: dict[int, int] = {}
        self._requested = 0
        self._asked: dict[int, signal.Signals] = {}
        self._failed_at: float | None = None
        self._store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self._watched = selectors.DefaultSelector()
        for server in servers():
            self._watched.register(server.channel, selectors.EVENT_READ, server)

    def start(self, command: dict[str, object], environment: dict[str, str]) -> None:
        """Ask the servers for all ranks."""
        mine, theirs = os.pipe()
        shared = {
            **{name: str(self.processes) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE")},
            "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "ROLE_NAME": "default",
            "MASTER_ADDR": "localhost", "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": str(uuid.uuid4()), "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
            "TORCHELASTIC_ERROR_FILE": "", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        }  # fmt: skip
        for rank in range(self.processes):
            own = {name: str(rank) for name in ("RANK", "LOCAL_RANK", "ROLE_RANK")}
            servers()[rank % SERVERS].fork(theirs, **command, environment={**environment, **shared, **own})
            self._requested += 1
        os.close(theirs)
        self._watched.register(mine, selectors.EVENT_READ)

    def follow(self, timeout_s: float) -> None:
        """Collect output and exit codes until every rank has ended and the last writer has closed the output."""
        began = time.monotonic()
        while len(self.codes) < self.processes or len(self._watched.get_map()) > SERVERS:
            for key, _ in self._watched.select(1.0):
                if key.data is not None:
                    self._heard(key.data)
                elif chunk := os.read(key.fd, 1 << 16):
                    self.output += chunk
                else:
                    self._watched.unregister(key.fd)
                    os.close(key.fd)
            waited = time.monotonic() - began
            assert waited < timeout_s, f"no end in {timeout_s} s:\n{self.output[-3000:].decode(errors='replace')}"
            if self._failed_at is not None:
                late = time.monotonic() - self._failed_at > OTHERS_END_S
                self._ask(signal.SIGKILL if late else signal.SIGTERM)

    def end(self) -> None:
        """Kill what is left of the ranks."""
        while len(self.codes) < self._requested:
            self._ask(signal.SIGKILL)
            for key, _ in self._watched.select(1.0):
                if key.data is not None:
                    self._heard(key.data)
        for key in [*self._watched.get_map().values()]:
            if key.data is None:
                os.close(key.fd)
        self._watched.close()

    def _heard(self, server: ForkServer) -> None:
        answer = server.answer()
        if "forked" in answer:
            self.pids[answer["forked"]] = server
            return
        self.codes[answer["ended"]] = answer["code"]
        if answer["code"] and self._failed_at is None:
            self._failed_at = time.monotonic()

    def _ask(self, number: signal.Signals) -> None:
        """Send the signal to each live rank, once."""
        for pid, server in self.pids.items():
            if pid not in self.codes and self._asked.get(pid) != number:
                self._asked[pid] = number
                server.signal(pid, number)
