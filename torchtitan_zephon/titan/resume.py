"""Can a job continue from a checkpoint? It is opened through torch, by one process alone; no data is replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..changes import recipe_changes
from ..config import RunSettings
from ..errors import RecipeChangedError
from ..plan.layout import Layout
from ..program import Program
from ..run.resume import pinned
from ..run.stream import RankStream
from ..state import NEW_STREAM, StreamState, decode_stream, listed
from .checkpoint import check_files, check_moment, model_only, read_loader_state, read_trainer_step
from .findings import Finding, always

LONGEST_CHANGE = 92
"""A changed field that is longer, such as two hashes, is on three lines."""


class Resume:
    """A job that is to continue from the checkpoint at ``path``, and what has been found of it so far."""

    def __init__(
        self,
        path: Path,
        program: Program | None,
        settings: RunSettings,
        *,
        global_batch_size: int,
        exclude_from_loading: list[str],
    ) -> None:
        """``program``: None where it cannot be had; the recipe is not compared then."""
        self.path, self.program, self.settings, self.global_batch_size = path, program, settings, global_batch_size
        self.with_trainer = "train_state" not in exclude_from_loading
        self.new_stream = "dataloader" in exclude_from_loading
        self.readable = False
        self.trainer_step: int | None = None
        self.state: dict[str, Any] = {}
        self.stream: StreamState | None = None
        self.changes: list[str] | None = None


def _read_files(resume: Resume) -> None:
    check_files(resume.path)
    if resume.with_trainer:
        resume.trainer_step = read_trainer_step(resume.path)
        if resume.trainer_step is None:
            raise model_only(resume.path)
    resume.readable = True


def _read_state(resume: Resume) -> None:
    resume.state = read_loader_state(resume.path)
    resume.stream = decode_stream(resume.state["stream"])
    if resume.program is not None:
        resume.program = pinned(resume.program, resume.stream.recipe)


def _compare(resume: Resume) -> None:
    assert resume.stream is not None
    changes = [] if resume.program is None else recipe_changes(resume.stream.recipe, resume.program.identity)
    before, now = resume.stream.global_batch_size, resume.global_batch_size
    other_batch = before != now and "global_batch_size" not in resume.settings.allow_changes
    if other_batch:
        changes = [f"global_batch_size: {before} -> {now}", *changes]
    resume.changes = changes
    if changes:
        way = 'zephon.allow_changes = ["global_batch_size"]'
        more = f" To go on with the same sequences in batches of another size: {way}." * other_batch
        raise RecipeChangedError(
            f"the job is not the one that made the checkpoint {resume.path} (field: checkpoint -> now):"
            f"{listed([_on_lines(change) for change in changes])}\n"
            f"Put these back to continue the same stream. {NEW_STREAM}{more}",
            changes,
        )


def _on_lines(change: str) -> str:
    name, _, values = change.partition(": ")
    before, arrow, now = values.rpartition(" -> ")
    return change if len(change) <= LONGEST_CHANGE or not arrow else f"{name}:\n        {before}\n     -> {now}"


def _restore(resume: Resume) -> None:
    assert resume.program is not None
    lanes = resume.program.recipe.lanes
    alone = Layout(lanes=lanes, global_batch_size=resume.global_batch_size, local_batch_size=1)
    RankStream(resume.program, alone, resume.settings).load_state_dict(resume.state)


def _compare_steps(resume: Resume) -> None:
    assert resume.stream is not None
    check_moment(resume.stream, resume.trainer_step)


RESUME = (
    Finding("the checkpoint is not whole", always, _read_files),
    Finding("its loader state cannot be read", lambda r: r.readable and not r.new_stream, _read_state),
    Finding("another job made it", lambda r: r.stream is not None, _compare),
    Finding("a lane cannot continue", lambda r: r.changes == [] and r.program is not None, _restore),
    Finding("trainer and stream are at two steps", lambda r: r.stream is not None, _compare_steps),
)
