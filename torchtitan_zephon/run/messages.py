"""What the trainer's process and the loader's say to each other, besides the batches themselves.

First the ``Setup``, once. Then, from the trainer: ``Taken`` for each local batch, ``Save`` for a
checkpoint, None to end. From the loader's process, in the stream's order: ``Ready`` for each local
batch that stands in a slot, and last ``Ended`` or ``Failed``; in between ``Saved``, for each ``Save``, and ``Said``,
for each line of the log.
All are small; both processes are ours and of one program, so they are pickled.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..balance import Figures
from ..config import Recipe, RunSettings
from ..errors import RunnerError, ZephonError
from ..ops.functions import Function
from ..ops.tokenize import TokenizerSpec
from ..plan.layout import Layout
from ..read.files import Manifest
from ..state import Snapshot


class Files(NamedTuple):
    """The files of a source, so that they are not listed once more, and what the trainer found them to consist of."""

    manifest: Manifest
    pieces: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """All that the loader's process needs: the program's parts, and the place where it begins."""

    recipe: Recipe
    seq_len: int
    tokenizer: TokenizerSpec
    functions: tuple[Function, ...]
    layout: Layout
    settings: RunSettings
    at: Snapshot
    files: dict[str, Files]


class Taken(NamedTuple):
    """The trainer has a local batch of ``step``; its slot is free."""

    slot: int
    step: int


class Save(NamedTuple):
    """The trainer stands at the end of ``step`` and wants its state."""

    step: int


class Ready(NamedTuple):
    """A local batch of ``step`` stands in ``slot``; ``waiting`` more of the step are to come."""

    slot: int
    step: int
    waiting: int
    figures: Figures | None


class Saved(NamedTuple):
    """The state at the end of the step that was asked for; None if the trainer has taken a batch behind it."""

    state: dict[str, Any] | None


class Said(NamedTuple):
    """A line for the trainer's log, of the logger of that name. It belongs to no place in the stream."""

    logger: str
    level: int
    text: str


class Ended(NamedTuple):
    """The end of a finite stream, and where that is."""

    snapshot: Snapshot
    figures: Figures | None


class Failed(NamedTuple):
    """An error, to be raised where the trainer is: as it was if it is one of ours, else as text."""

    error: type[ZephonError]
    arguments: tuple[Any, ...]
    attributes: dict[str, Any]
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Failed:
        """Take ``error`` apart."""
        if isinstance(error, ZephonError):
            return cls(type(error), error.args, error.__dict__, _text(error))
        return cls.unknown(error)

    @classmethod
    def unknown(cls, error: BaseException) -> Failed:
        """An error that is not one of ours, or cannot travel."""
        return cls(
            RunnerError, (f"the loader's process failed with an error nobody expected:\n{_text(error)}",), {}, ""
        )

    def rebuilt(self) -> ZephonError:
        """The error, with the traceback of the other process as a note."""
        error = self.error.__new__(self.error, *self.arguments)
        error.__dict__.update(self.attributes)
        if self.traceback:
            error.add_note(f"In the loader's process:\n{self.traceback}")
        return error


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()


FromLoader = Ready | Saved | Said | Ended | Failed
