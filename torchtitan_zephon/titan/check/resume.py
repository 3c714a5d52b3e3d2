"""Can a job go on from a checkpoint? Every reason why not, not only the first.

What flows in: the compiled program of a job, and a checkpoint's folder. What flows out: a ``Resume``. The
checkpoint is opened through torch, by one process alone; no data is replayed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ...changes import recipe_changes
from ...errors import ConfigError, StateError, ZephonError
from ...plan.layout import Layout
from ...program import Program
from ...run.stream import RankStream
from ...state import NEW_STREAM, StreamState, decode_stream
from ..generations import Generation
from ..job import Job
from .stated import stated

LONGEST_CHANGE = 92
"""A changed field that is longer, such as two hashes, is on three lines."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resume:
    """Whether a job can go on from the checkpoint at ``path``: yes if there are no changes and no problems.

    ``changes``: every field of the recipe that differs, ``field: checkpoint -> now``. ``step``: that of the trainer
    behind which a stream is continued, or begins anew if ``new_stream``; None if the checkpoint cannot be read.
    """

    path: Path
    step: int | None = None
    global_batch_size: int = 0
    lanes: int = 0
    new_stream: bool = False
    changes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def possible(self) -> bool:
        """Whether the job can go on."""
        return not self.changes and not self.problems

    @property
    def told(self) -> tuple[str, ...]:
        """Why it cannot, each with the way out."""
        if not self.changes:
            return self.problems
        lines = "".join(f"\n    {_on_lines(change)}" for change in self.changes)
        ways = f"Put these back to continue the same stream. {NEW_STREAM}"
        if any(change.startswith("global_batch_size:") for change in self.changes):
            way = 'zephon.allow_changes = ["global_batch_size"]'
            ways += f" To go on with the same sequences in batches of another size: {way}."
        text = f"the job is not the one that made the checkpoint {self.path} (field: checkpoint -> now):"
        return (f"{text}{lines}\n{ways}", *self.problems)


def _on_lines(change: str) -> str:
    name, _, values = change.partition(": ")
    before, arrow, now = values.rpartition(" -> ")
    return change if len(change) <= LONGEST_CHANGE or not arrow else f"{name}:\n        {before}\n     -> {now}"


def check_resume(job: Job, program: Program | None, path: Path) -> Resume:
    """Compare ``job`` with the complete checkpoint at ``path``; possible where ``titan.preflight`` lets it start.

    ``program``: None where it cannot be had; the recipe is not compared then.
    """
    titan = _reader()
    excluded: list[str] = stated(job, "checkpoint", "exclude_from_loading")
    try:
        titan.check_files(path)
        if "train_state" not in excluded and not titan.saved_whole(path):
            raise titan.model_only(path)
        trainer = None if "train_state" in excluded else titan.read_trainer_step(path)
        if "dataloader" in excluded:
            return _new_stream(job, program, path, trainer or 0)
        state = titan.read_loader_state(path)
        stream = decode_stream(state["stream"])
    except StateError as error:
        return Resume(path=path, problems=(str(error),))
    changes = _changes(stream, program, job)
    problems = [] if changes or program is None else _problems(state, program, job)
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
        notes=(*_notes(stream, program, job), *_notes_on_loading(job, stream.first_step + stream.step)),
    )


def _new_stream(job: Job, program: Program | None, path: Path, step: int) -> Resume:
    """The job takes the rest of the checkpoint and begins a new stream, as it says itself."""
    notes = [f"checkpoint.exclude_from_loading has 'dataloader', so a new stream begins there, behind step {step}."]
    if program is not None and (text := _reader().repeats(path, program.identity)):
        notes.append(f"Warning: {text}")
    return Resume(path=path, step=step, new_stream=True, notes=(*notes, *_notes_on_loading(job, step)))


def _changes(stream: StreamState, program: Program | None, job: Job) -> tuple[str, ...]:
    changes = [] if program is None else recipe_changes(stream.recipe, program.identity)
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


def _notes(stream: StreamState, program: Program | None, job: Job) -> list[str]:
    notes = []
    before, now = stream.global_batch_size, job.global_batch_size
    if before != now and "global_batch_size" in job.settings.allow_changes:
        notes.append(f"global_batch_size goes from {before} to {now} there, as zephon.allow_changes permits.")
    if program is None:
        notes.append("The recipes are not compared, as what the job reads is not known: see the problems below.")
    return notes


def _notes_on_loading(job: Job, step: int) -> list[str]:
    """What keeps a job that could go on behind the trainer's ``step`` from doing so, by its own settings."""
    notes = []
    if not stated(job, "checkpoint", "enable"):
        notes.append("checkpoint.enable is false, so the job as it stands loads nothing.")
    if (steps := stated(job, "training", "steps")) <= step:
        notes.append(f"training.steps = {steps} is no further than the checkpoint, so there is nothing to train.")
    return notes


# ---- folders


def find_checkpoint(path: Path, job: Job) -> Path | None:
    """The checkpoint that ``path`` means: itself (step-N), in it the job's ``load_step``, or the newest complete one.

    ``path`` may also be a run's dump folder. None if nothing complete is saved there yet: a folder of checkpoints, or
    the place where the job itself is going to save, which need not be there. Raises ``StateError`` for a path that
    leads nowhere, and for a step that is named and is not complete.
    """
    own = own_folder(job)
    if not path.is_dir():
        if path.resolve() in (own.resolve(), Path(stated(job, "job", "dump_folder")).resolve()):
            return None
        raise StateError(
            f"there is no folder {str(path)!r} (a relative path is relative to {str(Path.cwd())!r}). "
            "Give a folder step-N with .metadata in it, the folder of such folders, or the dump folder of a run; this "
            f"job's own checkpoints are in {str(own)!r}."
        )
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
    if re.fullmatch(r"step-\d+", path.name):
        raise StateError(
            f"there is no complete checkpoint at {str(path)!r}: it has no .metadata, so its save was cut off. "
            f"Complete beside it: {_reader().complete_steps(path.parent) or 'none'}."
        )
    return None


def own_folder(job: Job) -> Path:
    """Where ``job`` saves its checkpoints and looks for them."""
    folder: str = stated(job, "checkpoint", "folder")
    return Path(stated(job, "job", "dump_folder")) / folder


def checkpoint_of(job: Job, generation: Generation) -> Path | None:
    """The checkpoint that ``job`` itself would load now; None without torch to look with. Raises ``StateError``."""
    try:
        titan = _reader()
    except ZephonError:
        return None
    restart = titan.Restart(
        enable=stated(job, "checkpoint", "enable"),
        folder=own_folder(job),
        load_step=stated(job, "checkpoint", "load_step"),
        initial_load_path=stated(job, "checkpoint", "initial_load_path", ""),
        initial_load_model_only=stated(job, "checkpoint", "initial_load_model_only"),
        exclude_from_loading=stated(job, "checkpoint", "exclude_from_loading"),
        initial_load_if_no_folder=generation.initial_load_if_no_folder,
    )
    found: Path | None = titan.checkpoint_to_load(restart)
    return found


def _reader() -> ModuleType:
    try:
        from .. import checkpoint
    except ImportError as error:
        raise ZephonError(f"reading a checkpoint needs torch, in the build that fits the machine ({error}).") from None
    return checkpoint
