"""Will a job run on these numbers of GPUs, and can it go on from this checkpoint? Asked before it is queued.

What flows in: a parsed job, the TorchTitan release it is for, data-parallel degrees, maybe a checkpoint. What
flows out: a ``Report`` (``check_text`` writes it out). No GPU, model or process group; TorchTitan only where it is
installed, and torch only to open a checkpoint, so that it answers on a login node. It lists the files and
tokenises a sample of each source, as a start does: seconds, where a wrong job in the queue costs hours. Not
checked: memory, and that the data replayed is what was trained on (a resume proves that itself).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ..errors import StateError
from ..titan import GENERATIONS, installed_version
from ..titan.job import Job
from .degrees import Mesh, default_degrees, mesh_of, training_degree, validation_degree
from .resume import Resume, check_resume, checkpoint_of, find_checkpoint
from .sources import Reading, reading
from .stated import stated


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """The TorchTitan a job is checked for. ``unchecked``: why the job's other sections are not checked by it, if so."""

    version: str
    unchecked: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Everything found. ``would_load``: the checkpoint that the job itself would load, if any, or why it cannot."""

    job: Job
    release: Release
    mesh: Mesh
    train: Reading
    validation: Reading | None
    resume: Resume | None
    would_load: Path | StateError | None
    vocab_size: int | None

    @property
    def good(self) -> bool:
        """Whether every degree fits and, if asked, the job can resume."""
        readings = [self.train] + ([self.validation] if self.validation else [])
        fits = all(d.problem is None for r in readings for d in r.degrees)
        if isinstance(self.would_load, StateError):
            return False
        return fits and (self.resume is None or self.resume.possible)


def find_release(asked: str | None) -> Release:
    """The release ``asked`` for, else the installed one, else the newest. ``ConfigError`` for an unsupported one."""
    try:
        present: str | None = metadata.version("torchtitan").partition("+")[0]
    except metadata.PackageNotFoundError:
        present = None
    if asked is None and present is not None:
        return Release(version=installed_version(), unchecked=None)
    version = asked or list(GENERATIONS)[-1]
    return Release(version=version, unchecked=None if version == present else "it is not installed")


def check(job: Job, release: Release, degrees: Sequence[int] | None, checkpoint: Path | None) -> Report:
    """Look at everything that can be known before ``job`` runs. ``degrees`` None: all that fit.

    Raises ``ZephonError`` for a job that cannot run on any number of GPUs.
    """
    release, vocab_size = titan_check(job, release)
    version = release.version
    mesh = mesh_of(job)
    asked = tuple(degrees) if degrees else default_degrees(job, version, mesh)
    train = reading(
        job, release.version, job.recipe, [training_degree(job, version, mesh, dp) for dp in asked], vocab_size
    )
    validation = None
    if job.validation is not None and stated(job, "validation", "enable"):
        repeat = job.validation.repeat and stated(job, "validation", "steps") != -1
        recipe = dataclasses.replace(job.validation, repeat=repeat)
        rows = [validation_degree(job, version, mesh, dp) for dp in asked]
        validation = reading(job, version, recipe, rows, vocab_size)
    return Report(
        job=job,
        release=release,
        mesh=mesh,
        train=train,
        validation=validation,
        resume=None if checkpoint is None else check_resume(job, train.program, find_checkpoint(checkpoint, job)),
        would_load=None if checkpoint is not None else checkpoint_of(job, version),
        vocab_size=vocab_size,
    )


def titan_check(job: Job, release: Release) -> tuple[Release, int | None]:
    """Check the job's other sections by ``release`` if it is here; entries of the model's vocabulary.

    Where it is not, or cannot be imported on this machine, the release says so. Raises ``ConfigError``.
    """
    if release.unchecked is not None:
        return release, None
    logging.disable(logging.WARNING)  # TorchTitan warns of its own defaults
    try:
        if release.version == "0.2.2":
            from ..titan import v022

            config = v022.build_config(job)
            size = v022.start_of(job, config, v022.spec_of(config), 1, lambda: None).vocab_size
        else:
            from ..titan import v030_job

            size = getattr(v030_job.build_config(job).model_spec.model, "vocab_size", None)
    except ImportError as error:
        return dataclasses.replace(release, unchecked=f"it cannot be imported here: {error}"), None
    finally:
        logging.disable(logging.NOTSET)
    return release, size
