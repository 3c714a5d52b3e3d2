"""How a stream ended before its time, and what can still be saved of it."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..errors import StateError

DIED = "with its process, which held its place"
"""Why there is no state, in the words of an error."""


class Failure(NamedTuple):
    """``step``: the last one that was handed out, or was being handed out.

    ``state``: behind it if it was handed out whole; or in words, after "ended", why there is none.
    """

    error: BaseException
    step: int
    state: dict[str, Any] | str

    def saved(self) -> dict[str, Any]:
        """The state. Raises ``StateError`` if there is none."""
        if isinstance(self.state, str):
            raise StateError(f"no checkpoint can be made of a stream that has ended {self.state}: {self.error}")
        return self.state


def in_mid_step(step: int, local_batches: int, waiting: int) -> StateError:
    """A checkpoint was asked for between two local batches of a step, of which ``waiting`` are to come."""
    return StateError(
        f"a checkpoint was asked for in the middle of step {step}: {local_batches - waiting} of its {local_batches} "
        "local batches were handed out. Save after the last one, when the step is complete."
    )
