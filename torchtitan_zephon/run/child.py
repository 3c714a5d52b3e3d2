"""The engine in a process of its own: the loader's side.

What flows in: a ``Setup``, then a message for each local batch that the trainer took. What flows out:
local batches in the slots of a ring, in order, then the end or the error. Two threads besides the
workers: one reads the stream and fills slots; the main thread answers the trainer at any moment,
also in the middle of a long read, and does what may happen only once the trainer took a step: write
its ledger, forget the states before it.
"""

from __future__ import annotations

import logging
import os
import pickle
import queue
import threading
import traceback
from collections import deque
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

from ..config import SourceConfig
from ..errors import SourceError, ZephonError
from ..ledger import LaneEntry, LedgerWriter
from ..ops.tokenize import Backend
from ..plan.layout import Layout
from ..program import Program, compile_program
from ..read.source import Source, source_of
from ..read.stores.settings import StorageSettings
from ..state import Snapshot, listed
from .engine import LaneEngine
from .messages import Ended, Failed, FromLoader, Ready, Said, Save, Saved, Setup, Taken
from .ring import SLOTS, Ring
from .statement import pieces_text


def serve(trainer: Connection, memory: int) -> None:
    """Read the stream that the trainer asks for until it says None; ``EOFError`` if it ends before."""
    loader = _Loader(trainer, memory)
    setup = trainer.recv_bytes()  # unpickled there, as it may import any module of the user's
    threading.Thread(target=loader.deliver, args=(setup,), name="zephon-loader", daemon=True).start()
    while (message := trainer.recv()) is not None:
        if isinstance(message, Save):
            loader.save(message.step)
        else:
            loader.taken(message)


class _HeldLedger(LedgerWriter):
    """Keeps the lines of steps that the trainer has not come to."""

    def __init__(self, folder: Path, layout: Layout, source_names: tuple[str, ...]) -> None:
        super().__init__(folder, layout, source_names)
        self._held: deque[tuple[int, list[LaneEntry]]] = deque()

    def write(self, step: int, entries: list[LaneEntry]) -> None:
        self._held.append((step, entries))

    def release(self, step: int) -> None:
        """Write the steps up to ``step``."""
        while self._held and self._held[0][0] <= step:
            super().write(*self._held.popleft())


class _Forward(logging.Handler):
    """Sends what this package logs to the trainer, whose log it belongs to; no handler of this process repeats it."""

    def __init__(self, loader: _Loader) -> None:
        super().__init__(logging.INFO)
        self._loader = loader

    def begin(self) -> None:
        """From here on."""
        package = logging.getLogger(__name__.split(".", maxsplit=1)[0])
        package.addHandler(self)
        package.setLevel(logging.INFO)
        package.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self._loader.send(Said(record.name, record.levelno, record.getMessage()))


class _Loader:
    """What the two threads share: the free slots, the ledger's held lines, the places the trainer may stand at.

    Kept by step, a place is added by the thread that reads and dropped by the main thread, once the trainer is past it.
    """

    def __init__(self, trainer: Connection, memory: int) -> None:
        self._snapshots: dict[int, Snapshot] = {}
        self._keeping = threading.Lock()
        self._trainer, self._memory = trainer, memory
        self._sending = threading.Lock()
        self._ledger: _HeldLedger | None = None
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(SLOTS):
            self._free.put(slot)

    def send(self, message: FromLoader) -> None:
        """Tell the trainer, if it is still there; the main thread sees to it if it is not."""
        with self._sending, suppress(ConnectionError):
            self._trainer.send(message)

    def keep(self, snapshot: Snapshot) -> None:
        """Remember the place at the end of a step."""
        with self._keeping:
            self._snapshots[snapshot.stream.step] = snapshot

    def save(self, step: int) -> None:
        """Send the place at the end of ``step``, where the trainer stands."""
        with self._keeping:
            snapshot = self._snapshots.get(step)
        self.send(Saved(None if snapshot is None else snapshot.encode()))

    def taken(self, message: Taken) -> None:
        """The trainer took a local batch, the first or a later one of its step."""
        try:
            if self._ledger is not None:
                self._ledger.release(message.step)
        except ZephonError as error:
            self.send(Failed.of(error))
        with self._keeping:
            for step in [s for s in self._snapshots if s < message.step]:
                del self._snapshots[step]
        self._free.put(message.slot)

    def deliver(self, setup: bytes) -> None:
        """Read the stream to its end, or to an error. What cannot even be told ends the process."""
        try:
            try:
                self._deliver(pickle.loads(setup))
            except BaseException as error:
                self._tell(error)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _tell(self, error: BaseException) -> None:
        try:
            self.send(Failed.of(error))
        except Exception:  # a user's own kind of error that cannot be pickled
            self.send(Failed.unknown(error))

    def _deliver(self, setup: Setup) -> None:
        program = _compiled(setup)  # what there is to say of it the trainer has said: it compiled the same
        _Forward(self).begin()
        engine = LaneEngine(program, setup.layout, setup.settings, setup.at, self._open_ledger)
        engine.begin()
        ring = Ring(self._memory, setup.layout.local_batch_size, setup.seq_len)
        while (part := engine.next_part()) is not None:
            slot = self._free.get()
            ring.write(slot, part)
            if not engine.waiting:
                self.keep(engine.snapshot())
            self.send(Ready(slot, engine.step, engine.waiting, engine.figures))
        self.send(Ended(engine.snapshot(), engine.figures))

    def _open_ledger(self, folder: Path, layout: Layout, source_names: tuple[str, ...]) -> LedgerWriter:
        self._ledger = _HeldLedger(folder, layout, source_names)
        return self._ledger


def _compiled(setup: Setup) -> Program:
    """The trainer's program, compiled once more of the same files. Raises ``SourceError`` if they changed."""

    def opening(name: str, settings: SourceConfig, max_record_bytes: int, storage: StorageSettings) -> Source:
        return source_of(name, settings, max_record_bytes, setup.files[name].manifest)

    backend = cast(Backend, setup.at.stream.tokenizer_backend)
    program = compile_program(setup.recipe, setup.seq_len, setup.tokenizer, setup.functions, backend, opening)
    found = zip(program.names, map(pieces_text, program.tables), strict=True)
    if changed := [
        f"source {n!r}: {setup.files[n].pieces} -> {now}" for n, now in found if now != setup.files[n].pieces
    ]:
        raise SourceError(
            f"files changed between the start of the job and that of its loader's process:{listed(changed)}\n"
            "Start again when nothing writes to the sources."
        )
    return program
