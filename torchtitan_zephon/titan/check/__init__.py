"""Will a job run on these numbers of GPUs, and can it go on from this checkpoint? Asked before it is queued.

What flows in: a parsed job, the TorchTitan release it is for, data-parallel degrees, maybe a checkpoint. What
flows out: a ``Report`` (``check_text`` writes it out) with every problem of the job: a step that cannot be done is
noted, and the others are done all the same. No GPU, model or process group; TorchTitan only where it is
installed, and torch only to open a checkpoint, so that it answers on a login node. It lists the files and
tokenises a sample of each source, as a start does: seconds, where a wrong job in the queue costs hours. Not
checked: memory, and that the data replayed is what was trained on (a resume proves that itself).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...config import Recipe
from ...errors import Problems
from ...program import Program
from ..generations import NEWEST, SUPPORTED, Generation, installed, version_here
from ..job import Job
from ..reading import Reading
from .degrees import Degree, Mesh, default_degrees, mesh_of, training_degree, validation_degree
from .resume import ResumeReport, check_resume, checkpoint_of, find_checkpoint
from .sources import read
from .stated import stated


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """The TorchTitan a job is checked for. ``unchecked``: why the job's other sections are not checked by it, if so.

    ``fits``: whether it takes all of them.
    """

    generation: Generation
    unchecked: str | None
    fits: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """What is known of checkpoints. ``found``: the one that ``asked`` means; ``empty``: nothing is saved there yet.

    ``would_load``: the one that the job itself would load now, where none is asked for or ``asked`` is empty.
    """

    asked: Path | None
    empty: bool = False
    found: Path | None = None
    resume: ResumeReport | None = None
    would_load: Path | None = None

    @property
    def new_stream(self) -> bool:
        """Whether the job begins a new stream."""
        if self.resume is not None:
            return self.resume.new_stream
        return self.empty and self.would_load is None


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Training or validation: what is read, and what it gives on every degree; degree to the number of its problem."""

    reading: Reading
    degrees: tuple[Degree, ...]
    misfits: dict[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Everything found. ``problems``: all that keeps the job from running as asked, each with its way out."""

    job: Job
    release: Release
    mesh: Mesh | None
    train: Part
    validation: Part | None
    checkpoint: Checkpoint
    vocab_size: int | None
    problems: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Whether every degree fits and, if asked, the job can resume."""
        return not self.problems

    @property
    def resume(self) -> ResumeReport | None:
        """Whether the job can go on from the checkpoint in question, if there is one."""
        return self.checkpoint.resume

    @property
    def would_load(self) -> Path | None:
        """The checkpoint that the job itself would load now."""
        return self.checkpoint.would_load


def find_release(asked: str | None) -> Release:
    """The release ``asked`` for, else the installed one, else the newest. ``ConfigError`` for an unsupported one."""
    present = version_here()
    if asked is None and present is not None:
        return Release(generation=installed(), unchecked=None)
    generation = NEWEST if asked is None else SUPPORTED[asked]
    return Release(generation=generation, unchecked=None if generation.version == present else "it is not installed")


def check(
    job: Job, release: Release, degrees: Sequence[int] | None, checkpoint: Path | None, problems: Problems
) -> Report:
    """Look at everything that can be known before ``job`` runs. ``degrees`` None: all that fit.

    ``problems``: those found when the job was parsed; what is found here is added.
    """
    release, vocab_size = titan_check(job, release, problems)
    generation = release.generation
    mesh, asked = None, tuple(degrees or ())
    rows: list[Degree] = []
    valid: list[Degree] = []
    validated = False
    with problems:
        mesh = mesh_of(job)
        asked = asked or default_degrees(job, generation, mesh)
        rows = [training_degree(job, generation, mesh, dp) for dp in asked]
    with problems:
        validated = stated(job, "validation", "enable") and job.validation is not None
    with problems:
        valid = [validation_degree(job, generation, mesh, dp) for dp in asked] if validated and mesh else []
    misfits = told("does not fit", rows, {}, problems)
    known = {row.problem: misfits[row.dp] for row in rows if row.dp in misfits}
    valid_misfits = told("validation does not fit", valid, known, problems)
    saved = chosen(job, generation, checkpoint, problems)
    reading = read(job, generation, job.recipe, vocab_size, problems)
    validation = None
    if validated and job.validation is not None:
        valid_reading = read(job, generation, validation_recipe(job, job.validation), vocab_size, problems)
        validation = Part(reading=valid_reading, degrees=tuple(valid), misfits=valid_misfits)
    return Report(
        job=job,
        release=release,
        mesh=mesh,
        train=Part(reading=reading, degrees=tuple(rows), misfits=misfits),
        validation=validation,
        checkpoint=compared(job, reading.program, saved, problems),
        vocab_size=vocab_size,
        problems=tuple(problems.texts),
    )


def told(what: str, rows: Sequence[Degree], known: dict[str | None, int], problems: Problems) -> dict[int, int]:
    """Note the degrees in ``rows`` that do not fit. Degree to the problem's number; ``known``: problems told before."""
    return {
        row.dp: known.get(row.problem) or problems.note(f"{what} on {row.dp} data-parallel ranks: {row.problem}")
        for row in rows
        if row.problem is not None
    }


def validation_recipe(job: Job, recipe: Recipe) -> Recipe:
    """``recipe``, the job's for validation, as the validator reads it: once, if its steps are -1."""
    whole = job.sections.get("validation", {}).get("steps", -1) == -1
    return dataclasses.replace(recipe, repeat=recipe.repeat and not whole)


def chosen(job: Job, generation: Generation, asked: Path | None, problems: Problems) -> Checkpoint:
    """The checkpoint that ``asked`` means; without one, what ``job`` would load itself."""
    checkpoint = Checkpoint(asked=asked)
    with problems:
        found = None if asked is None else find_checkpoint(asked, job)
        checkpoint = dataclasses.replace(checkpoint, empty=asked is not None and found is None, found=found)
        if found is None:
            checkpoint = dataclasses.replace(checkpoint, would_load=checkpoint_of(job, generation))
    return checkpoint


def compared(job: Job, program: Program | None, checkpoint: Checkpoint, problems: Problems) -> Checkpoint:
    """``checkpoint``, and whether ``job`` can go on from it."""
    if checkpoint.found is not None:
        with problems:
            resume = check_resume(job, program, checkpoint.found)
            checkpoint = dataclasses.replace(checkpoint, resume=resume)
            for text in resume.problems:
                problems.note(text)
    return checkpoint


def titan_check(job: Job, release: Release, problems: Problems) -> tuple[Release, int | None]:
    """Check the job's other sections by ``release`` if it is here; entries of the model's vocabulary, if known.

    Where it is not, or cannot be imported on this machine, the release says so.
    """
    if release.unchecked is not None:
        return release, None
    size = None
    before = len(problems.texts)
    # The model is found whatever else is wrong; a batch size must be stated, and is of no account here.
    naming = {"model": ("name", "flavor"), "experimental": ("custom_import",)}
    named = {s: {k: v for k, v in job.sections.get(s, {}).items() if k in keys} for s, keys in naming.items()}
    alone = dataclasses.replace(job, sections={**named, "training": {"global_batch_size": 1}})
    logging.disable(logging.WARNING)  # TorchTitan warns of its own defaults
    try:
        with problems:
            release.generation.load().build_config(job)
        with problems:
            size = release.generation.load().model_vocab_size(alone)
    except ImportError as error:
        return dataclasses.replace(release, unchecked=f"it cannot be imported here: {error}"), None
    finally:
        logging.disable(logging.NOTSET)
    return dataclasses.replace(release, fits=len(problems.texts) == before), size
