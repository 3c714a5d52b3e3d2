"""What makes a rank's batches: the lanes and their workers here, or a child process that has them.

What flows in: a program, a layout, run settings, and the place to begin at. What flows out: the local batches of this
rank, step by step, and the state of its lanes at every step's end.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ..balance import Figures
from ..config import RunSettings
from ..lane.machine import Lane
from ..ledger import LaneEntry, LedgerWriter
from ..plan.layout import Layout
from ..program import Program
from ..progress import Progress
from ..records import Batch, Sequence
from ..state import Snapshot, recipe_hash
from .fetch import Fetch
from .watch import Watch, balance_of, figures_of

logger = logging.getLogger(__name__)


class Engine(Protocol):
    """Begins where it is told, once. ``close`` ends what it started and may be called twice."""

    @property
    def step(self) -> int:
        """Steps whose last local batch was handed out, or is being handed out."""

    @property
    def waiting(self) -> int:
        """Local batches of the step at hand that are still to be handed out."""

    @property
    def figures(self) -> Figures | None:
        """What the lanes read and gave; None until there is something behind ``begin``."""

    def begin(self) -> None:
        """Read again what the trainer took of the segments at hand. Raises ``ReplayError`` if it is not the same."""

    def next(self) -> Batch | None:
        """The next local batch; None at the end of a finite stream."""

    def save(self) -> dict[str, Any]:
        """The state at the end of the step at hand, as a checkpoint holds it."""

    def place(self, step: int) -> dict[str, Any] | str:
        """After an error: the state behind ``step``, the last one handed out whole, or in words why there is none."""

    def close(self) -> None: ...


class LaneEngine:
    """Lanes and workers in this process. Owner: the thread that iterates."""

    def __init__(
        self,
        program: Program,
        layout: Layout,
        settings: RunSettings,
        at: Snapshot,
        open_ledger: Callable[[Path, Layout, tuple[str, ...]], LedgerWriter] = LedgerWriter,
    ) -> None:
        """``at``: where to begin, with the estimate, and of a finite stream the counts."""
        self._program, self._layout, self._settings, self._at = program, layout, settings, at
        self._before = at
        assert at.stream.tokens_per_mib is not None
        rates = [at.stream.tokens_per_mib[name] for name in program.names]
        states = {state.lane: state for state in at.lanes}
        self._lanes = [Lane(of_lane, states[n]) for n, of_lane in program.lanes(layout.own_lanes, rates).items()]
        self._fetch = Fetch(program, self._lanes, settings)
        self._parts: deque[list[Sequence]] = deque()
        self._replayed = False
        self._ledger: LedgerWriter | None = None
        if settings.ledger:
            self._ledger = open_ledger(Path(settings.ledger) / self._name(), layout, program.names)
        self._watch = Watch(program)

    @property
    def step(self) -> int:
        return self._at.stream.step

    @property
    def waiting(self) -> int:
        return len(self._parts)

    @property
    def figures(self) -> Figures | None:
        return figures_of(self._lanes)

    def begin(self) -> None:
        """Replay, all lanes in step, and compare the digests."""
        states = {state.lane: state for state in self._at.lanes}
        delivered = [(lane, states[lane.number].delivered) for lane in self._lanes]
        sequences, began = sum(n for _, n in delivered), time.monotonic()
        with Progress(f"restoring {len(self._lanes)} lanes", sequences, "sequences read again") as progress:
            for i in range(max(n for _, n in delivered)):
                behind = [lane for lane, n in delivered if i < n]
                self._fetch.active = behind  # the workers are for the lanes that still have far to go
                for lane in behind:
                    self._take(lane)
                progress.done(len(behind))
        for lane in self._lanes:
            lane.check_replay(states[lane.number])
        if self.step:
            said = f"{sequences:,}", len(self._lanes), time.monotonic() - began
            logger.info("restored: %s sequences of %d lanes read again in %.1f s", *said)
        self._replayed = True
        self._fetch.active = self._lanes
        self._fetch.ahead()

    def next(self) -> Batch | None:
        return None if (part := self.next_part()) is None else Batch.of(part, self.step)

    def next_part(self) -> list[Sequence] | None:
        """The sequences of the next local batch; None at the end of a finite stream."""
        if not self._parts:
            if self._at_end():
                for lane in self._lanes:
                    self._fetch.read_on(lane)  # records that gave no sequence are in the balance too
                self._tell_refused()
                return None
            self._read_step()
        return self._parts.popleft()

    def _at_end(self) -> bool:
        """Whether every lane of the stream has been taken whole; steps behind may have been of another size."""
        stream = self._at.stream
        return stream.pass_sequences is not None and stream.lane_sequences >= max(stream.pass_sequences)

    def _read_step(self) -> None:
        """Take one step's sequences from every lane and cut them into local batches."""
        self._before = self.snapshot()  # lanes that were taken from when another fails have left the place
        layout, step = self._layout, self.step + 1
        sequences: list[Sequence] = []
        entries: list[LaneEntry] = []
        part, index = layout.part, layout.own_lanes.start * layout.lane_sequences
        for lane in self._lanes:
            hashes = hashlib.sha256()
            for _ in range(layout.lane_sequences):
                sequence = self._take(lane)
                hashes.update(lane.taken_hash)
                if index in part:  # not so of a lane that is shared: another rank feeds it
                    sequences.append(sequence)
                index += 1
            entries.append(LaneEntry(lane.number, hashes.hexdigest(), lane.read_digests))
        if self._ledger:
            self._ledger.write(step, entries)
        self._fetch.ahead()
        self._tell_refused()
        if layout.dp_rank == 0 and step & (step - 1) == 0:  # at steps 1, 2, 4, 8, ...
            self._watch.look(figures_of(self._lanes), self._at.stream.tokens_per_mib or {})
        size = layout.local_batch_size
        self._parts.extend(sequences[i : i + size] for i in range(0, len(sequences), size))
        behind = self._at.stream.lane_sequences + layout.lane_sequences
        self._at = self._at._replace(stream=replace(self._at.stream, step=step, lane_sequences=behind))

    def _tell_refused(self) -> None:
        if self._program.recipe.on_bad_record == "skip":
            self._watch.look_at_refused(balance_of(self._lanes))

    def _take(self, lane: Lane) -> Sequence:
        self._fetch.read_on(lane)
        return lane.take()

    def snapshot(self) -> Snapshot:
        """Where this rank is. Only at a step's end is it a place that a checkpoint may name."""
        if not self._replayed:  # the trainer's place is still the one that was loaded
            return self._at
        return self._at._replace(lanes=tuple(lane.state() for lane in self._lanes))

    def save(self) -> dict[str, Any]:
        return self.snapshot().encode()

    def place(self, step: int) -> dict[str, Any] | str:
        return (self._before if self._before.stream.step == step else self.snapshot()).encode()

    def close(self) -> None:
        self._fetch.close()

    def _name(self) -> str:
        """Names the global batches from here on: the recipe, their size, and where in the lanes step 0 would be."""
        named = {"recipe": self._program.identity, "global_batch_size": self._layout.global_batch_size}
        stream = self._at.stream
        if begin := stream.lane_sequences - stream.step * self._layout.lane_sequences:
            named["begin"] = begin
        return recipe_hash(named)[:12]
