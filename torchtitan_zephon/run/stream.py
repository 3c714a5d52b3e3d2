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
import time
import typing
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

from ..config import RunSettings
from ..errors import ConfigError, StateError, TokenizerError
from ..lane import Lane
from ..ledger import LaneEntry, LedgerWriter
from ..ops.tokenize import Backend
from ..plan.layout import Layout
from ..program import Program
from ..records import Balance, Batch, Sequence, Tokens
from ..state import (
    NEW_STREAM,
    NO_DIGEST,
    OLDER_STEP,
    LaneState,
    SegmentStart,
    StreamState,
    check_recipe,
    decode_lane,
    decode_stream,
    encode_lane,
    encode_stream,
    recipe_hash,
)
from .count import count_sequences
from .pool import Pool

SHOW_PROGRESS_S = 2.0
"""A restore that takes longer says how far it is, as often."""
logger = logging.getLogger(__name__)


class RankStream:
    """An iterator over local batches with ``state_dict`` and ``load_state_dict``.

    Reading goes on where it stands: ``iter`` makes no new stream. After the end of a finite
    stream the next ``iter`` begins again.
    """

    def __init__(self, program: Program, layout: Layout, settings: RunSettings, *, first_step: int = 0) -> None:
        """``first_step``: steps the trainer has done before this stream begins; its state remembers it."""
        self.program, self.layout, self.settings, self.first_step = program, layout, settings, first_step
        self._tokens_per_mib: tuple[int, ...] | None = None
        self._saved: dict[int, LaneState] = {}
        self._lanes: dict[int, Lane] = {}
        self._active: list[Lane] = []
        self._work: dict[int, deque[tuple[Future[Tokens], int]]] = {}
        self._bytes_out = 0
        self._step = self._lane_sequences = 0
        self._batches: deque[Batch] = deque()
        self._last_step: int | None = None
        self._ended = False
        self._failure: BaseException | None = None
        self._pool: Pool | None = None
        self._ledger: LedgerWriter | None = None

    # ---- reading

    def __iter__(self) -> Iterator[Batch]:
        if self._ended:
            self._reset()
        while (batch := self._next()) is not None:
            yield batch
        self._ended = True
        assert self._pool is not None
        self._pool.close()

    def _next(self) -> Batch | None:
        if self._failure is not None:  # going on behind a failure would leave a gap
            raise self._failure
        try:
            if not self._lanes:
                self._start()
            if not self._batches:
                if self._step == self._last_step:
                    for lane in self._lanes.values():
                        self._read_on(lane)  # records that gave no sequence are in the balance too
                    return None
                self._read_step()
        except BaseException as error:
            self._failure = error
            self._drop()
            raise
        return self._batches.popleft()

    def _read_step(self) -> None:
        """Take one step's sequences from every lane and cut them into local batches."""
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
        size = self.layout.local_batch_size
        self._batches.extend(Batch.of(sequences[i : i + size], step) for i in range(0, len(sequences), size))
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
            future, num_bytes = self._work[lane.number].popleft()
            lane.arrived(future.result())
            self._bytes_out -= num_bytes
            self._fetch_ahead()

    # ---- fetching

    def _fetch(self, lane: Lane) -> None:
        chunk = lane.plan_chunk()
        if chunk is None:
            return
        assert self._pool is not None
        self._bytes_out += chunk.num_bytes
        self._work[lane.number].append((self._pool.submit(self.program.work, chunk), chunk.num_bytes))

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
        if self._tokens_per_mib is None:
            self._tokens_per_mib = self.program.measure()
        self._pool = Pool(self.settings.workers)
        weakref.finalize(self, self._pool.close)
        numbers = self.layout.own_lanes
        self._lanes = {n: Lane(self.program.lane(n, self._tokens_per_mib), self._saved.get(n)) for n in numbers}
        self._work = {n: deque() for n in numbers}
        self._bytes_out = 0
        self._replay()
        self._active = list(self._lanes.values())
        self._fetch_ahead()
        if self.settings.ledger:
            self._ledger = LedgerWriter(Path(self.settings.ledger) / self._name(), self.layout, self.program.names)
        if not self.program.recipe.repeat:
            most = max(count_sequences(self.program, self._tokens_per_mib, self.settings.workers))
            # Steps behind this place may have been of another size.
            self._last_step = self._step + max(0, -(-(most - self._lane_sequences) // self.layout.lane_sequences))

    def _replay(self) -> None:
        """Read again what the trainer took of the segments at hand, all lanes in step, and compare."""
        total, done = sum(s.delivered for s in self._saved.values()), 0
        show = time.monotonic() + SHOW_PROGRESS_S
        for i in range(max((s.delivered for s in self._saved.values()), default=0)):
            behind = [self._lanes[n] for n, saved in self._saved.items() if i < saved.delivered]
            self._active = behind  # the workers are for the lanes that still have far to go
            for lane in behind:
                self._take(lane)
            done += len(behind)
            if time.monotonic() > show:
                show += SHOW_PROGRESS_S
                logger.info(
                    "restoring: %s of %s sequences of %d lanes read again", f"{done:,}", f"{total:,}", len(self._saved)
                )
        for n, saved in self._saved.items():
            self._lanes[n].check_replay(saved)
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
        self._failure = ConfigError("this stream was closed; load_state_dict opens it again.")
        self._drop()

    def _drop(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._pool, self._lanes, self._work = None, {}, {}
        self._batches.clear()

    @property
    def step(self) -> int:
        """Steps whose last local batch was handed out, or is being handed out."""
        return self._step

    @property
    def lanes(self) -> Mapping[int, Lane]:
        """The lanes of this rank by number, to be looked at; none before the first batch was asked for."""
        return self._lanes

    @property
    def balance(self) -> Balance:
        """What this rank's lanes read and gave since the stream was started or restored.

        A lane that is shared counts whole on each of its ranks.
        """
        total = Balance()
        for lane in self._lanes.values():
            total.add(lane.balance)
        return total

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """``{"stream": bytes, "lane": {"00007": bytes, ...}}`` for the lanes of this rank.

        Raises ``StateError`` in the middle of a step: the global batch is all or nothing.
        """
        if self._failure is not None:
            raise StateError(f"no checkpoint can be made of a stream that has ended with an error: {self._failure}")
        if self._batches:
            done = self.layout.local_batches - len(self._batches)
            raise StateError(
                f"a checkpoint was asked for in the middle of step {self._step}: {done} of its "
                f"{self.layout.local_batches} local batches were handed out. Save after the last one, when the step "
                "is complete."
            )
        stream = StreamState(
            self.program.identity,
            self.program.tokenize.backend,
            self._tokens_per_mib,
            self.layout.global_batch_size,
            self._step,
            self.first_step,
            self._lane_sequences,
        )
        return {
            "stream": encode_stream(stream),
            "lane": {lane_key(n): encode_lane(self._lane_state(n)) for n in self.layout.own_lanes},
        }

    def _lane_state(self, n: int) -> LaneState:
        if n in self._lanes:
            return self._lanes[n].state()
        sources = len(self.program.names)
        return self._saved.get(n) or LaneState(n, SegmentStart.first(sources), 0, 0, NO_DIGEST, ("",) * sources)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the place in ``state``. Raises ``StateError``, ``RecipeChangedError``.

        The data is replayed and compared when the next batch is asked for.
        """
        stream, lanes = self._decode(state)
        self.program = self._on_backend(stream.tokenizer_backend)
        self._drop()
        self._ended, self._last_step, self._failure = False, None, None
        self._saved, self._tokens_per_mib = lanes, stream.tokens_per_mib
        self._step, self.first_step, self._lane_sequences = stream.step, stream.first_step, stream.lane_sequences

    def _on_backend(self, before: str) -> Program:
        """The program on the tokenizer back-end of a checkpoint, or on another where that is allowed."""
        wanted = self.settings.tokenizer_backend
        if before not in typing.get_args(Backend):
            raise StateError(
                f"the checkpoint was made with tokenizer_backend = {before!r}, which this version does not have."
            )
        if "tokenizer_backend" in self.settings.allow_changes:
            return self.program.on(wanted)
        if wanted not in ("auto", before):
            raise StateError(
                f"the checkpoint was made with tokenizer_backend = {before!r}, this job has {wanted!r}. Set it "
                'back, or to "auto", which goes on with that of the checkpoint; or set '
                'allow_changes = ["tokenizer_backend"].'
            )
        try:
            return self.program.on(cast(Backend, before))
        except TokenizerError as error:
            raise StateError(
                f"the checkpoint was made with tokenizer_backend = {before!r}, but here {error} Install what "
                'is missing; or set allow_changes = ["tokenizer_backend"], to go on with tokenizers.'
            ) from None

    def _decode(self, state: Mapping[str, Any]) -> tuple[StreamState, dict[int, LaneState]]:
        """Everything that can be wrong with a state, found before anything here changes."""
        if "stream" not in state or not isinstance(state.get("lane"), Mapping):
            raise StateError(
                "the checkpoint's loader state has no stream and lanes (it has: "
                f"{', '.join(map(repr, state)) or 'nothing'}), so it was not made by torchtitan_zephon. {NEW_STREAM}"
            )
        stream = decode_stream(state["stream"])
        check_recipe(stream.recipe, self.program.identity)
        before, now = stream.global_batch_size, self.layout.global_batch_size
        if before != now and "global_batch_size" not in self.settings.allow_changes:
            raise StateError(
                f"the checkpoint was made with global_batch_size = {before}, this job has {now}. Set it back to "
                "continue the same global batches; or, to go on with the same sequences in batches of another size, "
                'set allow_changes = ["global_batch_size"].'
            )
        lanes: dict[int, LaneState] = {}
        for n in self.layout.own_lanes:
            if lane_key(n) not in state["lane"]:
                raise StateError(
                    f"the checkpoint holds no state of lane {n}, which this rank owns; it was saved "
                    f"incompletely. {OLDER_STEP}"
                )
            lanes[n] = decode_lane(state["lane"][lane_key(n)], n, len(self.program.names))
            if lanes[n].sequences != stream.lane_sequences:
                raise StateError(
                    f"lane {n} stands at sequence {lanes[n].sequences}, but step {stream.step} ends at "
                    f"{stream.lane_sequences}: the parts of this checkpoint are of different steps. {OLDER_STEP}"
                )
        return stream, lanes


def lane_key(lane: int) -> str:
    """The checkpoint key of a lane."""
    return f"{lane:05d}"
