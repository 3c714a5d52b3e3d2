"""Can a job go on from a checkpoint, and which one would it load? Every reason why not, not only the first.

What flows in: the compiled program of a job, and a checkpoint's folder. What flows out: a ``ResumeReport``.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ...errors import Problems, StateError, ZephonError
from ...program import Program
from ..findings import ask
from ..generations import Generation
from ..job import Job
from .stated import stated


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumeReport:
    """Whether a job can go on from the checkpoint at ``path``: yes if there are no problems.

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
        return not self.problems


def check_resume(job: Job, program: Program | None, path: Path) -> ResumeReport:
    """Compare ``job`` with the complete checkpoint at ``path``; possible where ``titan.preflight`` lets it start.

    ``program``: None where it cannot be had; the recipe is not compared then.
    """
    reader = _reader()
    from ..resume import RESUME, Resume

    excluded: list[str] = stated(job, "checkpoint", "exclude_from_loading")
    resume = Resume(path, program, job.settings, global_batch_size=job.global_batch_size, exclude_from_loading=excluded)
    problems = Problems()
    ask(RESUME, resume, problems)
    report = ResumeReport(path=path, problems=tuple(problems.texts))
    if resume.new_stream and resume.readable:
        step = resume.trainer_step or 0
        notes = [f"checkpoint.exclude_from_loading has 'dataloader', so a new stream begins there, behind step {step}."]
        if program is not None and (text := reader.repeats(path, program.identity)):
            notes.append(f"Warning: {text}")
        return dataclasses.replace(report, step=step, new_stream=True, notes=(*notes, *_notes_on_loading(job, step)))
    if (stream := resume.stream) is None:
        return report
    step = stream.first_step + stream.step
    return dataclasses.replace(
        report,
        step=step,
        global_batch_size=stream.global_batch_size,
        lanes=len(resume.state["lane"]),
        changes=tuple(resume.changes or ()),
        notes=(*_notes(stream.global_batch_size, program, job), *_notes_on_loading(job, step)),
    )


def _notes(before: int, program: Program | None, job: Job) -> list[str]:
    notes = []
    if before != job.global_batch_size and "global_batch_size" in job.settings.allow_changes:
        notes.append(
            f"global_batch_size goes from {before} to {job.global_batch_size} there, as zephon.allow_changes permits."
        )
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
        reader = _reader()
    except ZephonError:
        return None
    restart = reader.Restart(
        enable=stated(job, "checkpoint", "enable"),
        folder=own_folder(job),
        load_step=stated(job, "checkpoint", "load_step"),
        initial_load_path=stated(job, "checkpoint", "initial_load_path", ""),
        initial_load_model_only=stated(job, "checkpoint", "initial_load_model_only"),
        exclude_from_loading=stated(job, "checkpoint", "exclude_from_loading"),
        initial_load_if_no_folder=generation.initial_load_if_no_folder,
    )
    found: Path | None = reader.checkpoint_to_load(restart)
    return found


def _reader() -> ModuleType:
    try:
        from .. import checkpoint
    except ImportError as error:
        raise ZephonError(f"reading a checkpoint needs torch, in the build that fits the machine ({error}).") from None
    return checkpoint
