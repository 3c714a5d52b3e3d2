"""Can a job go on from a checkpoint? Every reason why not, not only the first.

What flows in: the compiled program of a job, and a checkpoint's folder. What flows out: a ``Resume``. The
checkpoint is opened through torch, by one process alone; no data is replayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import ConfigError, RecipeChangedError, StateError, ZephonError
from ..plan.layout import Layout
from ..program import Program
from ..run.stream import RankStream
from ..state import StreamState, check_recipe, decode_stream
from ..titan.job import Job
from .stated import stated


@dataclass(frozen=True, kw_only=True, slots=True)
class Resume:
    """Whether a job can go on from the checkpoint at ``path``: yes if there are no changes and no problems.

    ``changes``: every field of the recipe that differs, ``field: checkpoint -> now``. ``step``: the
    trainer's, None if the checkpoint cannot be read.
    """

    path: Path
    step: int | None = None
    global_batch_size: int = 0
    lanes: int = 0
    changes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def possible(self) -> bool:
        """Whether the job can go on."""
        return not self.changes and not self.problems


def check_resume(job: Job, program: Program, path: Path) -> Resume:
    """Compare ``job`` with the complete checkpoint at ``path``; possible where ``titan.preflight`` lets it start."""
    titan = _reader()
    excluded: list[str] = stated(job, "checkpoint", "exclude_from_loading")
    try:
        titan.check_files(path)
        if "train_state" not in excluded and not titan.saved_whole(path):
            raise titan.model_only(path)
        state = titan.read_loader_state(path)
        stream = decode_stream(state["stream"])
        trainer = None if "train_state" in excluded else titan.read_trainer_step(path)
    except StateError as error:
        return Resume(path=path, problems=(str(error),))
    changes = _changes(stream, program, job)
    problems = [] if changes else _problems(state, program, job)
    try:
        titan.check_moment(stream, trainer)
    except StateError as error:
        problems.append(str(error))
    return Resume(
        path=path,
        step=stream.first_step + stream.step,
        global_batch_size=stream.global_batch_size,
        lanes=len(state["lane"]),
        changes=changes,
        problems=tuple(problems),
        notes=_notes(stream, job, excluded),
    )


def _changes(stream: StreamState, program: Program, job: Job) -> tuple[str, ...]:
    changes: list[str] = []
    try:
        check_recipe(stream.recipe, program.identity)
    except RecipeChangedError as error:
        changes = error.changes
    before, now = stream.global_batch_size, job.global_batch_size
    if before != now and "global_batch_size" not in job.settings.allow_changes:
        changes = [f"global_batch_size: {before} -> {now}", *changes]
    return tuple(changes)


def _problems(state: dict[str, Any], program: Program, job: Job) -> list[str]:
    """What is wrong with the lanes of a checkpoint whose recipe fits."""
    try:
        alone = Layout(lanes=job.recipe.lanes, global_batch_size=job.global_batch_size, local_batch_size=1)
        RankStream(program, alone, job.settings).load_state_dict(state)
        _reader().check_strays(state, alone.lanes)
    except (StateError, ConfigError) as error:
        return [str(error)]
    return []


def _notes(stream: StreamState, job: Job, excluded: list[str]) -> tuple[str, ...]:
    notes = []
    before, now = stream.global_batch_size, job.global_batch_size
    if before != now and "global_batch_size" in job.settings.allow_changes:
        notes.append(f"global_batch_size goes from {before} to {now} there, as zephon.allow_changes permits.")
    if not stated(job, "checkpoint", "enable"):
        notes.append("checkpoint.enable is false, so the job as it stands loads nothing.")
    if (steps := stated(job, "training", "steps")) <= stream.first_step + stream.step:
        notes.append(f"training.steps = {steps} is no further than the checkpoint, so there is nothing to train.")
    if "dataloader" in excluded:
        notes.append(
            "checkpoint.exclude_from_loading has 'dataloader', so the job as it stands begins a new stream instead."
        )
    return tuple(notes)


# ---- folders


def find_checkpoint(path: Path, job: Job) -> Path:
    """The checkpoint that ``path`` means: itself (step-N), in it the job's ``load_step``, or the newest complete one.

    ``path`` may also be a run's dump folder. Raises ``StateError`` if there is none.
    """
    for folder in (path, path / stated(job, "checkpoint", "folder")):
        if (folder / ".metadata").is_file():
            return folder
        if (newest := _reader().latest_step(folder)) > 0:
            asked: int = stated(job, "checkpoint", "load_step")
            found = folder / f"step-{asked if asked > 0 else newest}"
            if not (found / ".metadata").is_file() and asked > 0:
                raise StateError(
                    f"there is no complete checkpoint at {str(found)!r} (checkpoint.load_step = {asked}); complete "
                    f"there: {_reader().complete_steps(folder)}."
                )
            return found
    raise StateError(
        f"there is no complete checkpoint at {str(path)!r}; give a folder step-N with .metadata in it, the folder of "
        "such folders, or the dump folder of a run."
    )


def checkpoint_of(job: Job, version: str) -> Path | StateError | None:
    """The checkpoint that ``job`` itself would load now, or why it is refused; None without torch to look with."""
    try:
        titan = _reader()
    except ZephonError:
        return None
    restart = titan.Restart(
        enable=stated(job, "checkpoint", "enable"),
        folder=Path(stated(job, "job", "dump_folder")) / stated(job, "checkpoint", "folder"),
        load_step=stated(job, "checkpoint", "load_step"),
        initial_load_path=stated(job, "checkpoint", "initial_load_path", ""),
        initial_load_model_only=stated(job, "checkpoint", "initial_load_model_only"),
        exclude_from_loading=stated(job, "checkpoint", "exclude_from_loading"),
        initial_load_if_no_folder=version == "0.2.2",
    )
    try:
        found: Path | None = titan.checkpoint_to_load(restart)
    except StateError as error:
        return error
    return found


def _reader() -> ModuleType:
    try:
        from ..titan import checkpoint
    except ImportError as error:
        raise ZephonError(f"reading a checkpoint needs torch, in the build that fits the machine ({error}).") from None
    return checkpoint
