"""The engine in a process of its own: the trainer's side.

What flows in: a program, a layout, run settings. What flows out: the same local batches, states and
errors as from ``RankStream``, read in one child process. The trainer's process waits on a socket and
copies a batch out of shared memory; it holds its interpreter for about 0.4 ms a local batch of
8 x 2048. The price is about a second at the start and the memory of another interpreter.

The child runs ahead by the slots of the ring and holds the state of each step the trainer may still
stand at. It ends when told, or by itself when this process ends.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import signal
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Pipe
from pathlib import Path
from types import FunctionType
from typing import Any

from ..balance import Figures
from ..config import RunSettings
from ..errors import ConfigError, RunnerError
from ..ops.functions import Function
from ..plan.layout import Layout
from ..program import Program
from ..records import Batch, Rows
from ..state import Snapshot, StreamState
from .failure import DIED
from .messages import Ended, Failed, Files, FromLoader, Ready, Said, Save, Saved, Setup, Taken
from .ring import allocate
from .statement import pieces_text

BOOT = Path(__file__).resolve().with_name("boot.py")
_LOOK_UP_S = 1.0
_GRACE_S = 5.0


class ChildEngine:
    """The engine in a child process: what is here is the trainer's place in the stream."""

    def __init__(self, program: Program, layout: Layout, settings: RunSettings, at: Snapshot) -> None:
        """``at``: where to begin, with the estimate, and of a finite stream the counts."""
        self._at = at
        self._setup = Setup(
            recipe=program.recipe,
            seq_len=program.seq_len,
            tokenizer=program.tokenize.spec,
            functions=program.functions,
            layout=layout,
            settings=settings,
            at=at,
            files={
                source.name: Files(source.reader.manifest, pieces_text(table))
                for source, table in zip(program.sources, program.tables, strict=True)
            },
        )
        self._child: Child | None = None
        self._close: Callable[[], Any] = lambda: None
        self._last: Ready | Ended | None = None

    @property
    def step(self) -> int:
        return self._last.step if isinstance(self._last, Ready) else self._stream().step

    def _stream(self) -> StreamState:
        return (self._last.snapshot if isinstance(self._last, Ended) else self._at).stream

    @property
    def waiting(self) -> int:
        return self._last.waiting if isinstance(self._last, Ready) else 0

    @property
    def figures(self) -> Figures | None:
        """When the step at hand was made."""
        return None if self._last is None else self._last.figures

    def begin(self) -> None:
        """Start the child, which replays by itself."""
        self._child = Child(self._setup)
        self._close = weakref.finalize(self, self._child.close)

    def next(self) -> Batch | None:
        assert self._child is not None
        if isinstance(self._last, Ended):
            return None
        message = self._child.receive()
        if isinstance(message, Failed):
            raise message.rebuilt()
        if isinstance(message, Ended):
            self._last = message
            return None
        batch = Batch.of_rows(self._child.copy(message), message.step)
        self._child.taken(message)  # not before there is a batch: the child forgets the places before this step
        self._last = message
        return batch

    def save(self) -> dict[str, Any]:
        if not isinstance(self._last, Ready):
            return self._place_known()
        assert self._child is not None
        return self._child.save(self._last.step)

    def place(self, step: int) -> dict[str, Any] | str:
        if self._child is None or not isinstance(self._last, Ready):
            return self._place_known()
        return self._child.place(step)

    def _place_known(self) -> dict[str, Any]:
        """The end, or, if nothing was taken from the child, the place where it began."""
        return (self._last.snapshot if isinstance(self._last, Ended) else self._at).encode()

    def close(self) -> None:
        self._close()


class Child:
    """The process, the socket to it and the memory shared with it; all end with ``close``.

    Owner: the process that made it. In a fork of that process it is a dead copy.
    """

    def __init__(self, setup: Setup) -> None:
        self._owner = os.getpid()
        self._inbox: deque[Ready | Ended | Failed] = deque()
        self._torn = False
        memory, self._ring = allocate(setup.layout.local_batch_size, setup.seq_len)
        self._socket, theirs = Pipe()
        try:
            self._process = _start(theirs.fileno(), memory, setup.layout)
        except OSError as error:
            raise RunnerError(f"the loader's process cannot be started: {error}.") from None
        finally:
            theirs.close()
            os.close(memory)
        try:
            self._socket.send(sys.path)
            self._socket.send(setup)
        except ConnectionError:
            raise self._died() from None
        except BaseException:
            self.close()
            raise

    def receive(self) -> Ready | Ended | Failed:
        """The next message of the stream, waited for. Raises ``RunnerError`` as soon as the process is dead."""
        self._check_owner()
        if self._inbox:
            return self._inbox.popleft()
        message = self._listen()
        assert not isinstance(message, Saved)
        return message

    def copy(self, ready: Ready) -> Rows:
        """A local batch out of its slot."""
        return self._ring.read(ready.slot)

    def taken(self, ready: Ready) -> None:
        """Free the slot."""
        self._tell(Taken(ready.slot, ready.step))

    def save(self, step: int) -> dict[str, Any]:
        """The state at the end of ``step``, which must be the one last taken."""
        self._check_owner()
        self._tell(Save(step))
        while not isinstance(message := self._listen(), Saved):
            self._inbox.append(message)
        if message.state is None:
            raise RunnerError(f"the loader's process has no place behind step {step}: the trainer is past it.")
        return message.state

    def place(self, step: int) -> dict[str, Any] | str:
        """``save`` after an error: the process may have died, or the error may have cut a message in two."""
        if self._torn or self._process.poll() is not None:
            return DIED
        try:
            return self.save(step)
        except RunnerError:
            return DIED

    def close(self) -> None:
        """End the process and wait for it. Safe to call twice."""
        if os.getpid() != self._owner:
            return
        with suppress(OSError):
            self._socket.send(None)  # a fork of this process may hold the socket open
        self._socket.close()
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _tell(self, message: Taken | Save) -> None:
        try:
            self._socket.send(message)
        except ConnectionError:
            raise self._died() from None

    def _listen(self) -> Ready | Saved | Ended | Failed:
        try:
            while isinstance(message := self._hear(), Said):
                logging.getLogger(message.logger).log(message.level, "%s", message.text)
            return message
        except (EOFError, ConnectionError):
            raise self._died() from None

    def _hear(self) -> FromLoader:
        while not self._socket.poll(_LOOK_UP_S):
            # Whatever else holds the other end open: a process forked while this one was started.
            if self._process.poll() is not None and not self._socket.poll():
                raise EOFError
        self._torn = True
        message: FromLoader = self._socket.recv()
        self._torn = False
        return message

    def _died(self) -> RunnerError:
        self.close()
        code = self._process.returncode
        how = f"signal {-code}, {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        hint = "Look for what it said on stderr."
        if code == -signal.SIGKILL:
            hint = (
                "As a rule that is the kernel when memory runs out (dmesg says so): use fewer workers, a smaller "
                "prefetch_bytes or shuffle buffer, or more ranks."
            )
        return RunnerError(
            f"the loader's process died ({how}), so the stream ends here; resume from the last checkpoint. {hint}"
        )

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            raise RunnerError(
                f"this stream belongs to process {self._owner}; a fork of it (here process {os.getpid()}) cannot read "
                "or save it. Open a stream where it is read."
            )


def _start(socket: int, memory: int, layout: Layout) -> subprocess.Popen[bytes]:
    name = f"rank-{layout.dp_rank}-of-{layout.dp_degree}"  # for people who look at a list of processes
    arguments = [str(BOOT), str(socket), str(memory), str(os.getpid()), name]
    return subprocess.Popen(
        [sys.executable, "-u", "-P", *arguments], stdin=subprocess.DEVNULL, pass_fds=(socket, memory)
    )


def check_process(program: Program) -> None:
    """Raise ``ConfigError`` unless a child process can run ``program``."""
    if not hasattr(os, "memfd_create"):
        raise ConfigError(f'runner = "process" needs Linux, and this is {sys.platform}; use runner = "thread".')
    for function in program.functions:
        check_function(function)


def check_function(function: Function) -> None:
    """Raise ``ConfigError`` unless another process can import the user's function by its name."""
    try:
        _ByName(io.BytesIO()).dump(function.call)
    except Exception as error:
        raise ConfigError(
            f"the {function.kind} function {function.identity} cannot be found by another process ({error}). Move it "
            'to a module, as a plain function, or use runner = "thread".'
        ) from None


class _ByName(pickle.Pickler):
    """Refuses what is defined in the main program, which the child does not run."""

    def persistent_id(self, value: Any) -> None:
        if isinstance(value, (type, FunctionType)) and value.__module__ == "__main__":
            raise pickle.PicklingError(f"{value.__qualname__} is defined in the program that is run, __main__")
