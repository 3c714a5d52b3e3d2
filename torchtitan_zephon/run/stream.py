"""The stream of one rank: an iterator over its batches that can be saved and restored at any step's end.

What flows in: a program, a layout, run settings. What flows out: the local batches of this rank, and the state behind
each step. The batches are made by an engine, in threads of this process or in a child process. Here is what is the
same for both: where to begin, what all ranks must agree on before, and that a stream fails once and for good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..balance import Balance, Figures
from ..config import RunSettings
from ..errors import ConfigError
from ..plan.layout import Layout
from ..program import Program
from ..records import Batch
from ..state import LaneState, Snapshot, StreamState
from .agree import Exchange, agree, alone
from .count import count_pass
from .engine import Engine, LaneEngine
from .failure import Failure, in_mid_step
from .process import ChildEngine, check_process
from .resume import decode_state, on_backend
from .statement import statement
from .together import look_at_first_segments


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
    ) -> None:
        """``first_step``: steps the trainer has done before this stream begins; its state remembers it.

        ``exchange``: how to compare, before the first batch, what all ranks are going to read. Raises ``ConfigError``
        if it cannot be run as ``settings.runner`` says.
        """
        if settings.runner == "process":
            check_process(program)
        self.program, self.layout, self.settings, self.exchange = program, layout, settings, exchange
        self._at = self._first(first_step)
        self._engine: Engine | None = None
        self._failure: Failure | None = None
        self._ended = False

    def _first(self, first_step: int) -> Snapshot:
        """The beginning of the stream."""
        identity, backend = self.program.identity, self.program.tokenize.backend
        stream = StreamState(identity, backend, None, self.layout.global_batch_size, 0, first_step, 0, None)
        return Snapshot(stream, tuple(LaneState.first(n, self.program.names) for n in self.layout.own_lanes))

    # ---- reading

    def __iter__(self) -> Iterator[Batch]:
        if self._ended:
            self._drop()
            known, self._ended = self._at.stream, False
            first = self._first(self.first_step)
            stream = replace(first.stream, tokens_per_mib=known.tokens_per_mib, pass_sequences=known.pass_sequences)
            self._at = first._replace(stream=stream)
        while (batch := self._next()) is not None:
            yield batch
        self._ended = True
        assert self._engine is not None
        self._engine.close()  # figures and state stay

    def _next(self) -> Batch | None:
        if self._failure is not None:  # going on behind a failure would leave a gap
            raise self._failure.error
        step, at_end = self.step, not self.waiting
        try:
            if self._engine is None:
                self._engine = self._begun()
            return self._engine.next()
        except BaseException as error:
            self._fail(error, step, at_end)
            raise

    def _begun(self) -> Engine:
        """The engine at the place to begin at."""
        self._measure()
        kind = ChildEngine if self.settings.runner == "process" else LaneEngine
        engine: Engine = kind(self.program, self.layout, self.settings, self._at)
        try:
            engine.begin()
        except BaseException:
            engine.close()
            raise
        return engine

    def _measure(self) -> None:
        """What a stream has to know before it begins, alike on all ranks: tokens per byte, and its end."""
        program, layout = self.program, self.layout

        def look() -> None:
            if self._at.stream.tokens_per_mib is None:
                estimates = program.measure()
                rates = {name: e.tokens_per_mib for name, e in zip(program.names, estimates, strict=True)}
                self._at = self._at._replace(stream=replace(self._at.stream, tokens_per_mib=rates))
                if layout.dp_rank == 0:
                    program.warn(estimates)
            if self.exchange is not alone and program.recipe.repeat:  # a pass is counted, by which all of it is read
                look_at_first_segments(program, self._at)

        agree(self.exchange, look, lambda _: statement(program, layout, self._at))
        stream = self._at.stream
        if stream.pass_sequences is None and not program.recipe.repeat:
            assert stream.tokens_per_mib is not None
            rates = tuple(stream.tokens_per_mib[name] for name in program.names)
            counted = count_pass(program, rates, layout, self.settings, self.exchange)
            self._at = self._at._replace(stream=replace(stream, pass_sequences=counted))

    def _fail(self, error: BaseException, step: int, at_end: bool) -> None:
        """End with ``error``. A trainer that stands at the end of ``step`` can still save that."""
        self._failure = Failure(error, step, f"in the middle of step {step}")
        try:
            if at_end:
                place = self._at.encode() if self._engine is None else self._engine.place(step)
                self._failure = Failure(error, step, place)
        finally:
            self._drop()

    def close(self) -> None:
        """End the workers. Reading or saving afterwards is an error; ``load_state_dict`` opens it again."""
        closed = ConfigError("this stream was closed; load_state_dict opens it again.")
        self._failure = Failure(closed, self.step, "by close()")
        self._drop()

    def _drop(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    @property
    def step(self) -> int:
        """Steps whose last local batch was handed out, or is being handed out."""
        if self._failure is not None:
            return self._failure.step
        return self._at.stream.step if self._engine is None else self._engine.step

    @property
    def first_step(self) -> int:
        """Steps the trainer had done before this stream began."""
        return self._at.stream.first_step

    @property
    def waiting(self) -> int:
        """Local batches of the step at hand that are still to be handed out."""
        return 0 if self._engine is None else self._engine.waiting

    @property
    def begun(self) -> bool:
        """Whether the first batch was asked for, so that anything behind it was restored."""
        return self._engine is not None

    @property
    def figures(self) -> Figures | None:
        """What this rank's lanes read and gave; None before ``begun``."""
        return None if self._engine is None else self._engine.figures

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
            raise in_mid_step(self.step, self.layout.local_batches, self.waiting)
        if self._engine is None:
            return self._at.encode()
        try:
            return self._engine.save()
        except BaseException as error:
            self._fail(error, self.step, True)
            raise

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the place in ``state``. Raises ``StateError``, ``RecipeChangedError``.

        The data is replayed and compared when the next batch is asked for.
        """
        at, program = decode_state(state, self.program, self.layout, self.settings)
        self.program = on_backend(at.stream.tokenizer_backend, program, self.settings)
        self._drop()
        self._ended, self._failure = False, None
        backend, batch = self.program.tokenize.backend, self.layout.global_batch_size
        self._at = at._replace(stream=replace(at.stream, tokenizer_backend=backend, global_batch_size=batch))
