"""The loader's figures for TorchTitan's own metric logger (TensorBoard, W&B).

What flows in: a rank's stream while it is read. What flows out: a flat table of numbers, for the
lanes of this rank, since the last reading where a rate is meant. Reading them costs no collective.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from .records import Batch, Figures
from .run.stream import RankStream

PREFIX = "zephon"
NAMES = {
    "data_wait_seconds": "Time the trainer waited for batches since the last line.",
    "tokens_per_second": "Tokens handed to the trainer by this rank's loader, over wall time since the last line.",
    "ready_sequences": "Packed sequences that could be handed out now.",
    "restore_seconds": "From the first batch asked for after a resume to its arrival, replay included; else 0.",
    "share/SOURCE": "Share of the tokens packed by this rank's lanes that came from the source, since step 1.",
    "share_error/SOURCE": "That share less the source's weight.",
    "epoch/SOURCE": "Passes through the source, planned by this rank's lanes.",
}
"""Metric, below ``PREFIX``, and what it says."""


class Gauges:
    """Watches one stream. ``timed`` wraps its iterator; ``read`` gives the figures and starts anew."""

    def __init__(self, stream: RankStream) -> None:
        self._stream = stream
        self._since = time.monotonic()
        self._waited = self._restore = 0.0
        self._tokens = 0

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
            yield batch

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
        program, own = self._stream.program, len(self._stream.layout.own_lanes)
        tokens = np.array(lanes.source_tokens)
        runs = np.array(lanes.source_runs) * program.recipe.lanes / own
        weights = np.array([program.recipe.sources[name].weight for name in program.names])
        figures: dict[str, float] = {}
        for s, name in enumerate(program.names):
            share = float(tokens[s] / max(1, tokens.sum()))
            figures[f"share/{name}"] = share
            figures[f"share_error/{name}"] = share - float(weights[s] / weights.sum())
            figures[f"epoch/{name}"] = float(runs[s] / program.tables[s].num_runs)
        return figures
