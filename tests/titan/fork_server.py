"""A process that has imported torch and TorchTitan and forks ranks on request.

    python -u -m tests.titan.fork_server FD

Importing TorchTitan takes 7 CPU seconds, which is nearly all of a small launch. Here they are paid once. Three rules
keep a forked rank what a rank of torchrun is:

- Nothing of ours is imported here, there is no process group and no Python thread. So a rank runs all of our code
  itself, CPU mode included, and it ends as Python ends, with its ``atexit`` functions.
- A rank gets the environment, folder, module path and output that the request names, and a session of its own.
- What libraries read while they are imported cannot be changed later. ``forks.py`` refuses another environment, and
  the stock entry point of 0.2.2, which reads its command line so, is launched by torchrun.

The socket ``FD`` carries JSON. A request for a rank comes with one end of a pipe for its output; the answer is
``{"forked": pid}``, and later ``{"ended": pid, "code": code}``. ``{"signal": number, "pid": pid}`` signals a rank.
When the socket closes, the server kills its ranks and ends.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
from typing import Any

MAX_REQUEST_BYTES = 1 << 17
PRELOADED = (
    "torchtitan.train", "torch.utils.tensorboard", "tokenizers", "fastokens", "orjson", "pyarrow.parquet", "pytest",
)  # fmt: skip
MODELS = ("deepseek_v3", "gpt_oss", "llama3", "llama4", "qwen3")
"""Models of TorchTitan that the tests use; a release lacks some of them."""


def preload() -> None:
    """Import the libraries. TorchTitan looks for its device when it is imported and is told the CPU, as in CPU mode."""
    import torch

    find_device = torch._utils._get_available_device_type
    torch._utils._get_available_device_type = lambda: "cpu"
    for name in PRELOADED:
        importlib.import_module(name)
    for name in MODELS:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(f"torchtitan.models.{name}")
    torch._utils._get_available_device_type = find_device
    ours = [name for name in sys.modules if name.startswith("torchtitan_zephon")]
    assert not ours, f"a rank must import these itself: {ours}"
    assert threading.active_count() == 1, f"a fork would lose these: {threading.enumerate()}"
    gc.collect()
    gc.freeze()  # a collection in a rank would copy the pages it shares with the server


class Server:
    """Forks ranks and reports their ends. ``_ranks`` maps the process descriptor of each live rank to its id."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._ranks: dict[int, int] = {}
        self._watched = selectors.DefaultSelector()
        self._watched.register(channel, selectors.EVENT_READ)

    def serve(self) -> dict[str, Any] | None:
        """Answer until the socket closes. Returns None in the server, and in each forked rank its request."""
        while True:
            for key, _ in self._watched.select():
                if key.fileobj is not self._channel:
                    self._reap(key.fd)
                    continue
                data, files, _, _ = socket.recv_fds(self._channel, MAX_REQUEST_BYTES, 1)
                if not data:
                    self._kill()
                    return None
                request = json.loads(data)
                if "signal" in request:
                    if request["pid"] in self._ranks.values():
                        os.kill(request["pid"], request["signal"])
                elif self._fork(files[0]):
                    return dict(request)

    def _fork(self, output: int) -> bool:
        """Whether this is the new rank, its output in place."""
        pid = os.fork()
        if pid:
            os.close(output)
            descriptor = os.pidfd_open(pid)
            self._ranks[descriptor] = pid
            self._watched.register(descriptor, selectors.EVENT_READ)
            self._send(forked=pid)
            return False
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        self._watched.close()
        self._channel.close()
        for descriptor in (output, *self._ranks):
            os.close(descriptor)
        return True

    def _reap(self, descriptor: int) -> None:
        self._watched.unregister(descriptor)
        os.close(descriptor)
        pid = self._ranks.pop(descriptor)
        self._send(ended=pid, code=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def _kill(self) -> None:
        for pid in self._ranks.values():
            os.kill(pid, signal.SIGKILL)

    def _send(self, **message: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # the caller is gone: the end of its requests is read next
            self._channel.send(json.dumps(message).encode())


def run(request: dict[str, Any]) -> None:
    """Become ``python -m module arguments`` in the environment and folder of ``request``."""
    of_server = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [entry for entry in sys.path[1:] if entry not in of_server]
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    named = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [os.getcwd(), *named, *others]  # noqa: PTH109
    sys.argv[:] = [request["module"], *request["arguments"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def main() -> None:
    preload()
    request = Server(socket.socket(fileno=int(sys.argv[1]))).serve()
    if request is None:
        os._exit(0)  # nothing to put away, and triton would list all that is frozen as leaks
    run(request)


if __name__ == "__main__":
    main()
