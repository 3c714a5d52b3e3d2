"""The loader's figures for TorchTitan's own metric logger (TensorBoard, W&B).

What flows in: a rank's stream while it is read. What flows out: a flat table of numbers, since the
last reading where a rate is meant. Rates are of this rank. Shares and passes are of all ranks: each
posts its own on a ``Board`` when it takes the last batch of a step that is logged, which is before
the trainer's own reduction of the loss, so the rank that logs finds those of the same step there.
Nobody waits, and there is no collective.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from .balance import Figures
from .records import Batch
from .run.stream import RankStream

PREFIX = "zephon"
NAMES = {
    "data_wait_seconds": "Time the trainer waited for batches since the last line.",
    "tokens_per_second": "Tokens handed to the trainer by this rank's loader, over wall time since the last line.",
    "ready_sequences": "Packed sequences that could be handed out now.",
    "restore_seconds": "From the first batch asked for after a resume to its arrival, replay included; else 0.",
    "share/SOURCE": "Share of the tokens handed to the trainers of all ranks that came from the source, since step 1.",
    "share_error/SOURCE": "That share less the source's weight.",
    "epoch/SOURCE": "Passes through the source that were handed to the trainers of all ranks.",
    "estimate_error/SOURCE": "Tokens of the source that this rank packed, over what was estimated for them, less 1.",
    "bad_records/SOURCE": "Records of the source that all ranks left out as bad, of those read so far, since step 1.",
    "packed_share/SOURCE": "The source's share of what this rank has packed, which runs ahead of its trainer.",
}
"""Metric, below ``PREFIX``, and what it says."""


class Board(Protocol):
    """Where each rank posts a note that replaces its last one, and any rank can read those of all."""

    def post(self, note: bytes) -> None: ...
    def notes(self) -> list[bytes]: ...


class Gauges:
    """Watches one stream. ``timed`` wraps its iterator; ``read`` gives the figures and starts anew."""

    def __init__(self, stream: RankStream) -> None:
        self._stream = stream
        self._board: Board | None = None
        self._notes: list[dict[str, Any]] = []
        self._logged: Callable[[int], bool] = lambda step: False
        self._since = time.monotonic()
        self._waited = self._restore = 0.0
        self._tokens = 0

    def share(self, board: Board, logged: Callable[[int], bool]) -> None:
        """Post on ``board`` at each step of the trainer that is ``logged``, and read the notes of all ranks there."""
        self._board, self._logged = board, logged

    def timed(self, batches: RankStream) -> Iterator[Batch]:
        """``batches``, with the time taken by each counted."""
        iterator = iter(batches)
        while True:
            resumed = batches.step > 0 and not batches.begun
            asked = time.monotonic()
            batch = next(iterator, None)
            wait = time.monotonic() - asked
            self._waited += wait
            if resumed:
                self._restore = wait
            if batch is None:
                return
            self._tokens += batch.input.size
            if self._board and not batches.waiting and self._logged(batches.first_step + batches.step):
                self._notes = [*self._notes[-1:], self._note()]
                self._board.post(json.dumps(self._notes).encode())
            yield batch

    def _note(self) -> dict[str, Any]:
        """What this rank's lanes have handed to the trainer so far: lanes, and tokens and planned bytes by source."""
        figures = self._stream.figures
        assert figures is not None
        own = len(self._stream.layout.own_lanes)
        step = self._stream.step
        tokens, num_bytes = figures.delivered_tokens, figures.delivered_bytes
        return {"step": step, "lanes": own, "tokens": tokens, "bytes": num_bytes, "refused": figures.refused}

    def _notes_of_all(self) -> list[dict[str, Any]]:
        """A note of each rank, of the step at hand. A rank that is faster may have posted for the next one already,
        but no further, as TorchTitan reduces the loss in each; so it posts its last two."""
        posted = [json.loads(notes) for notes in self._board.notes() if notes] if self._board else []
        step = self._notes[-1]["step"] if self._notes else None
        return [next((n for n in notes if n["step"] == step), notes[-1]) for notes in posted] or [self._note()]

    def read(self) -> dict[str, float]:
        """``{"zephon/NAME": value}``; see ``NAMES``."""
        now, lanes = time.monotonic(), self._stream.figures
        figures = {
            "data_wait_seconds": self._waited,
            "tokens_per_second": self._tokens / max(now - self._since, 1e-9),
            "ready_sequences": 0.0 if lanes is None else float(lanes.ready),
            "restore_seconds": self._restore,
        }
        self._since, self._waited, self._tokens = now, 0.0, 0
        mixture = {} if lanes is None else self._mixture(lanes)
        return {f"{PREFIX}/{name}": value for name, value in {**figures, **mixture}.items()}

    def _mixture(self, lanes: Figures) -> dict[str, float]:
        program = self._stream.program
        notes = self._notes_of_all()
        delivered, packed = np.sum([note["tokens"] for note in notes], axis=0), np.array(lanes.source_tokens)
        # Ranks that share a lane both count it.
        lanes_counted = sum(note["lanes"] for note in notes)
        counted_once = program.recipe.lanes / lanes_counted
        read, refused = (np.sum([note[what] for note in notes], axis=0) * counted_once for what in ("bytes", "refused"))
        weights = np.array([program.recipe.sources[name].weight for name in program.names])
        figures: dict[str, float] = {}
        for s, name in enumerate(program.names):
            share = float(delivered[s] / max(1, delivered.sum()))
            figures[f"share/{name}"] = share
            figures[f"share_error/{name}"] = share - float(weights[s] / weights.sum())
            figures[f"epoch/{name}"] = float(read[s] / program.tables[s].pieces.sizes.sum())
            figures[f"bad_records/{name}"] = float(refused[s])
            figures[f"estimate_error/{name}"] = lanes.source_tokens[s] / max(1, lanes.estimated_tokens[s]) - 1.0
            figures[f"packed_share/{name}"] = float(packed[s] / max(1, packed.sum()))
        return figures
