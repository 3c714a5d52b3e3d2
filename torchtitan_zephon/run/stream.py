"""The stream of one rank: its lanes, a pool of workers, and credit that bounds memory.

What flows in: a program, a layout, run settings. What flows out: the local batches of this rank,
step by step, and the state of its lanes at every step's end. The thread that asks for a batch
also packs it; workers read and tokenise ahead. Credit: chunk bytes in work or waiting, at most
``prefetch_bytes``, but one chunk a lane always, or a huge line could never be read.
Owner of everything here: the thread that iterates.
"""

from __future__ import annotations

import hashlib
import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ..config import RunSettings
from ..errors import ConfigError
from ..lane import Lane
from ..ledger import LaneEntry, LedgerWriter
from ..plan.chunking import Chunk
from ..plan.layout import Layout
from ..program import Program
from ..records import Balance, Batch, Figures, Packet, Sequence
from ..state import LaneState, Snapshot, StreamState, recipe_hash
from .agree import Exchange, agree, alone
from .count import count_pass
from .failure import Failure, in_mid_step
from .pool import Pool
from .progress import Progress
from .resume import decode_state, on_backend
from .statement import statement
from .waiting import wait_for
from .watch import Watch, figures_of

logger = logging.getLogger(__name__)


class RankStream:
    """An iterator over local batches with ``state_dict`` and ``load_state_dict``.

    Reading goes on where it stands: ``iter`` makes no new stream. After the end of a finite
    stream the next ``iter`` begins again.
    """

    def __init__(
        self,
        program: Program,
        layout: Layout,
        settings: RunSettings,
        *,
        first_step: int = 0,
        exchange: Exchange = alone,
        open_ledger: Callable[[Path, Layout, tuple[str, ...]], LedgerWriter] = LedgerWriter,
    ) -> None:
        """``first_step``: steps the trainer has done before this stream begins; its state remembers it.

        ``exchange``: how to compare, before the first batch, what all ranks are going to read.
        """
        self.exchange, self._open_ledger = exchange, open_ledger
        self.program, self.layout, self.settings, self.first_step = program, layout, settings, first_step
        self._tokens_per_mib: tuple[int, ...] | None = None
        self._pass_sequences: tuple[int, ...] | None = None
        self._saved: dict[int, LaneState] = {}
        self._lanes: dict[int, Lane] = {}
        self._active: list[Lane] = []
        self._work: dict[int, deque[tuple[Future[Packet], Chunk]]] = {}
        self._bytes_out = 0
        self._step = self._lane_sequences = 0
        self._parts: deque[list[Sequence]] = deque()
        self._last_step: int | None = None
        self._ended = False
        self._failure: Failure | None = None
        self._before: tuple[int, int, list[tuple[Any, ...]]] | None = None
        self._pool = Pool(settings.workers)
        self._end_pool: Callable[[], Any] = lambda: None
        self._ledger: LedgerWriter | None = None
        self._watch = Watch(program)

    # ---- reading

    def __iter__(self) -> Iterator[Batch]:
        if self._ended:
            self._reset()
        while (batch := self._next()) is not None:
            yield batch
        self._ended = True
        self._rest()

    def _next(self) -> Batch | None:
        if self._failure is not None:  # going on behind a failure would leave a gap
            raise self._failure.error
        at_end, self._before = not self.waiting, None
        try:
            return self._hand_out()
        except BaseException as error:
            self._fail(error, at_end)
            raise

    def _fail(self, error: BaseException, at_end: bool) -> None:
        """End with ``error``. A trainer that stands at a step's end (``at_end``) can still save that."""
        self._failure = Failure(error, f"in the middle of step {self._step}")
        try:
            if at_end:
                self._failure = Failure(error, self._place())
        finally:
            self._drop()

    def _place(self) -> dict[str, Any] | str:
        """The state behind the step that was handed out last, or why there is none."""
        if self._before is not None:
            self._step, self._lane_sequences, places = self._before
            self._saved = {n: LaneState(n, *place) for n, place in zip(self._lanes, places, strict=True)}
        return self.snapshot().encode()

    def _hand_out(self) -> Batch | None:
        return None if (part := self.next_part()) is None else Batch.of(part, self._step)

    def next_part(self) -> list[Sequence] | None:
        """The sequences of the next local batch, or None at the end of a finite stream."""
        if not self._lanes:
            self._start()
        if not self._parts:
            if self._step == self._last_step:
                for lane in self._lanes.values():
                    self._read_on(lane)  # records that gave no sequence are in the balance too
                return None
            self._read_step()
        return self._parts.popleft()

    def _read_step(self) -> None:
        """Take one step's sequences from every lane and cut them into local batches."""
        # Lanes that were taken from when another fails have left the place.
        self._before = self._step, self._lane_sequences, [lane.place for lane in self._lanes.values()]
        sequences: list[Sequence] = []
        step = self._step + 1
        entries: list[LaneEntry] = []
        part, index = self.layout.part, self.layout.own_lanes.start * self.layout.lane_sequences
        for lane in self._lanes.values():
            hashes = hashlib.sha256()
            for _ in range(self.layout.lane_sequences):
                sequence = self._take(lane)
                hashes.update(lane.taken_hash)
                if index in part:  # not so of a lane that is shared: another rank feeds it
                    sequences.append(sequence)
                index += 1
            entries.append(LaneEntry(lane.number, hashes.hexdigest(), lane.read_digests))
        if self._ledger:
            self._ledger.write(step, entries)
        self._fetch_ahead()
        if self.layout.dp_rank == 0 and step & (step - 1) == 0:  # at steps 1, 2, 4, 8, ...
            assert self._tokens_per_mib is not None
            self._watch.look(figures_of(list(self._lanes.values())), self._tokens_per_mib)
        size = self.layout.local_batch_size
        self._parts.extend(sequences[i : i + size] for i in range(0, len(sequences), size))
        self._step = step
        self._lane_sequences += self.layout.lane_sequences

    def _take(self, lane: Lane) -> Sequence:
        self._read_on(lane)
        return lane.take()

    def _read_on(self, lane: Lane) -> None:
        """Let chunks arrive until ``lane`` has a sequence, or is dry."""
        while not lane.ready and not lane.dry:
            if not self._work[lane.number]:
                self._fetch(lane)
            future, chunk = self._work[lane.number].popleft()
            lane.arrived(wait_for(future, chunk, self.program, self._pool))
            self._bytes_out -= chunk.num_bytes
            self._fetch_ahead()

    # ---- fetching

    def _fetch(self, lane: Lane) -> None:
        chunk = lane.plan_chunk()
        if chunk is None:
            return
        self._bytes_out += chunk.num_bytes
        self._work[lane.number].append((self._pool.submit(self.program.work, chunk), chunk))

    def _fetch_ahead(self) -> None:
        """Keep a chunk of every active lane in work, and two calls a worker queued, as the credit goes."""
        depth = max(1, -(-2 * self.settings.workers // len(self._active)))
        for level in range(depth):
            for lane in self._active:
                waiting = len(self._work[lane.number])
                if waiting <= level and (not waiting or self._bytes_out < self.settings.prefetch_bytes):
                    self._fetch(lane)

    # ---- beginning, restoring, ending

    def _start(self) -> None:
        """Build the lanes where the state says, replay to where the trainer was, compare digests."""
        rates = self._measure()
        self._pool = Pool(self.settings.workers)
        self._end_pool = weakref.finalize(self, self._pool.close)
        programs = self.program.lanes(self.layout.own_lanes, rates)
        self._lanes = {n: Lane(program, self._saved.get(n)) for n, program in programs.items()}
        self._work = {n: deque() for n in programs}
        self._bytes_out = 0
        self._replay()
        self._active = list(self._lanes.values())
        self._fetch_ahead()
        if self.settings.ledger:
            self._ledger = self._open_ledger(Path(self.settings.ledger) / self._name(), self.layout, self.program.names)
        if self._pass_sequences is not None:  # steps behind this place may have been of another size
            left = max(self._pass_sequences) - self._lane_sequences
            self._last_step = self._step + max(0, -(-left // self.layout.lane_sequences))

    def _measure(self) -> tuple[int, ...]:
        """What a stream has to know before it begins, alike on all ranks: tokens per byte, and its end."""

        def look() -> None:
            if self._tokens_per_mib is None:
                estimates = program.measure()
                self._tokens_per_mib = tuple(e.tokens_per_mib for e in estimates)
                if layout.dp_rank == 0:
                    program.warn(estimates)

        program, layout = self.program, self.layout
        agree(self.exchange, look, lambda _: statement(program, layout, self.snapshot()))
        assert self._tokens_per_mib is not None
        if self._pass_sequences is None and not program.recipe.repeat:
            rates, workers = self._tokens_per_mib, self.settings.workers
            self._pass_sequences = count_pass(program, rates, layout, workers, self.exchange)
        return self._tokens_per_mib

    def _replay(self) -> None:
        """Read again what the trainer took of the segments at hand, all lanes in step, and compare."""
        progress = Progress(lanes=len(self._saved), sequences=sum(s.delivered for s in self._saved.values()))
        for i in range(max((s.delivered for s in self._saved.values()), default=0)):
            behind = [self._lanes[n] for n, saved in self._saved.items() if i < saved.delivered]
            self._active = behind  # the workers are for the lanes that still have far to go
            for lane in behind:
                self._take(lane)
            progress.done(len(behind))
        for n, saved in self._saved.items():
            self._lanes[n].check_replay(saved)
        if self._saved:
            progress.end()
        self._saved = {}

    def _name(self) -> str:
        """Names the global batches from here on: the recipe, their size, and where in the lanes step 0 would be."""
        named = {"recipe": self.program.identity, "global_batch_size": self.layout.global_batch_size}
        if begin := self._lane_sequences - self._step * self.layout.lane_sequences:
            named["begin"] = begin
        return recipe_hash(named)[:12]

    def _reset(self) -> None:
        self._drop()
        self._saved, self._step, self._lane_sequences, self._last_step, self._ended = {}, 0, 0, None, False

    def close(self) -> None:
        """End the workers. Reading or saving afterwards is an error; ``load_state_dict`` opens it again."""
        self._failure = Failure(ConfigError("this stream was closed; load_state_dict opens it again."), "by close()")
        self._drop()

    def _rest(self) -> None:
        """End the workers behind the last batch; figures and state stay."""
        self._end_pool()

    def _drop(self) -> None:
        self._rest()
        self._lanes, self._work = {}, {}
        self._parts.clear()

    @property
    def step(self) -> int:
        """Steps whose last local batch was handed out, or is being handed out."""
        return self._step

    @property
    def waiting(self) -> int:
        """Local batches of the step at hand that are still to be handed out."""
        return len(self._parts)

    @property
    def begun(self) -> bool:
        """Whether the first batch was asked for, so that anything behind it was restored."""
        return bool(self._lanes)

    @property
    def figures(self) -> Figures | None:
        """What this rank's lanes read and gave; None before ``begun``."""
        return figures_of(list(self._lanes.values())) if self._lanes else None

    @property
    def balance(self) -> Balance:
        """What this rank's lanes read and gave since the stream was started or restored."""
        return Balance() if (figures := self.figures) is None else figures.balance

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """``{"stream": bytes, "lane": {"00007": bytes, ...}}`` for the lanes of this rank.

        Raises ``StateError`` in the middle of a step: the global batch is all or nothing. After an error in reading
        the next step, the state is that of the step before, the last that was handed out whole.
        """
        if self._failure is not None:
            return self._failure.saved()
        if self.waiting:
            raise in_mid_step(self._step, self.layout.local_batches, self.waiting)
        return self._encoded()

    def _encoded(self) -> dict[str, Any]:
        return self.snapshot().encode()

    def snapshot(self) -> Snapshot:
        """Where this rank is. Only at a step's end is it a place that a checkpoint may name."""
        stream = StreamState(
            self.program.identity,
            self.program.tokenize.backend,
            self._tokens_per_mib,
            self.layout.global_batch_size,
            self._step,
            self.first_step,
            self._lane_sequences,
            self._pass_sequences,
        )
        return Snapshot(stream, tuple(map(self._lane_state, self.layout.own_lanes)))

    def _lane_state(self, n: int) -> LaneState:
        if n in self._saved:  # during a replay, too: the trainer's place is still the one that was loaded
            return self._saved[n]
        if n in self._lanes:
            return self._lanes[n].state()
        return LaneState.first(n, len(self.program.names))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the place in ``state``. Raises ``StateError``, ``RecipeChangedError``.

        The data is replayed and compared when the next batch is asked for.
        """
        stream, lanes = decode_state(state, self.program, self.layout, self.settings)
        self.program = on_backend(stream.tokenizer_backend, self.program, self.settings)
        self._drop()
        self._ended, self._last_step, self._failure = False, None, None
        self._saved, self._tokens_per_mib, self._pass_sequences = lanes, stream.tokens_per_mib, stream.pass_sequences
        self._step, self.first_step, self._lane_sequences = stream.step, stream.first_step, stream.lane_sequences
