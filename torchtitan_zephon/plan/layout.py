"""Which part of each global batch a rank feeds: lanes to ranks, sequences to local batches.

Global batch t is lane-major: index i = lane * (B/L) + j. Rank r of D feeds [r * B/D, (r+1) * B/D)
and owns lanes [r * L/D, (r+1) * L/D). Where L % D != 0 a lane falls into the ranges of two ranks or
more; with ``shared_lanes`` each of them runs it whole and feeds its own part. The checks here run
before any model is built.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Lanes L, global batch size B, dp degree D, dp rank and local batch size b, in sequences.

    ``shared_lanes`` allows a D that does not divide L, but divides B: ranks then share lanes.
    """

    lanes: int
    global_batch_size: int
    dp_degree: int = 1
    dp_rank: int = 0
    local_batch_size: int
    shared_lanes: bool = False

    def __post_init__(self) -> None:
        lanes, batch, degree, local = self.lanes, self.global_batch_size, self.dp_degree, self.local_batch_size
        for name in ("lanes", "global_batch_size", "dp_degree", "local_batch_size"):
            if type(getattr(self, name)) is not int:
                raise ConfigError(f"{name} = {getattr(self, name)!r} must be a whole number.")
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{name} = {getattr(self, name)} must be 1 or more."
                    + (
                        " TorchTitan's -1 grows with the number of GPUs, which would make the batch depend on them."
                        if name == "global_batch_size"
                        else ""
                    )
                )
        if not 0 <= self.dp_rank < degree:
            raise ConfigError(f"dp_rank = {self.dp_rank} is not below dp_degree = {degree}.")
        if self.shared_lanes and batch % degree:
            raise ConfigError(
                f"global_batch_size = {batch} cannot be shared out evenly over {degree} data-parallel ranks "
                f"(global_batch_size % dp_degree must be 0, with shared_lanes too). With this global batch use "
                f"{_near_divisors(batch, degree)} ranks."
            )
        if lanes % degree and not self.shared_lanes:
            fits = batch % degree == 0 == batch % lanes
            shared = f"to go on with {degree} ranks all the same, set shared_lanes = true; " * fits
            raise ConfigError(
                f"lanes = {lanes} cannot be shared out evenly over {degree} data-parallel ranks "
                f"(lanes % dp_degree must be 0). With {lanes} lanes use {_near_divisors(lanes, degree)} "
                f"ranks; {shared}{_new_lanes(batch, degree, lanes)}."
            )
        if batch % lanes:
            raise ConfigError(
                f"global_batch_size = {batch} cannot be taken evenly from {lanes} lanes "
                f"(global_batch_size % lanes must be 0). Use a global batch of "
                f"{_near_multiples(math.lcm(lanes, degree), batch)}; {_new_lanes(batch, degree, lanes)}."
            )
        if (batch // degree) % local:
            raise ConfigError(
                f"local_batch_size = {local} does not divide a rank's share of the global batch, "
                f"{batch} / {degree} = {batch // degree} sequences. Use a local batch of "
                f"{_near_divisors(batch // degree, local)}; it changes memory and speed, never the stream."
            )

    @property
    def own_lanes(self) -> range:
        """The lanes this rank runs: those with a sequence in its part of the global batch."""
        part = self.part
        return range(part.start // self.lane_sequences, -(-part.stop // self.lane_sequences))

    @property
    def part(self) -> range:
        """Indices into the global batch that this rank feeds."""
        share = self.global_batch_size // self.dp_degree
        return range(self.dp_rank * share, (self.dp_rank + 1) * share)

    @property
    def lane_sequences(self) -> int:
        """Sequences a step takes from every lane, B / L."""
        return self.global_batch_size // self.lanes

    @property
    def local_batches(self) -> int:
        """Local batches a rank feeds in one step, B / D / b."""
        return self.global_batch_size // self.dp_degree // self.local_batch_size


def _new_lanes(batch: int, degree: int, wish: int) -> str:
    """Numbers of lanes near ``wish`` that fit both the batch and the ranks, for a run not begun yet."""
    if batch % degree:
        return f"for a new run on {degree} ranks make the global batch a multiple of {degree}"
    return f"for a new run on {degree} ranks use {_near_divisors(batch, wish, degree)} lanes"


def _near_divisors(n: int, wish: int, multiple_of: int = 1) -> str:
    divisors = [d for d in range(multiple_of, n + 1, multiple_of) if n % d == 0]
    return _either([d for d in divisors if d < wish][-1:] + [d for d in divisors if d > wish][:1])


def _near_multiples(n: int, wish: int) -> str:
    lower = wish // n * n
    return _either([m for m in (lower, lower + n) if m > 0])


def _either(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))
