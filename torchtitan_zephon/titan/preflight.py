"""Everything that can be known to be wrong before a model is built, found before it is built.

What flows in: a ``Start``, which each generation fills from its own finished configuration. What
flows out: the step at which the loader's stream begins, or a ``ZephonError``: the first of the
findings (``findings.py``). As soon as there is a process group, and before a model is built, the ranks
do that together (``agreed``): one lists the files for all, each looks for itself, and they compare
what they found. A rank that fails takes part with its error, so that no other waits for a time-out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.tools.logging import logger

from ..ops.tokenize import TokenizerSpec
from ..plan.layout import Layout
from ..program import Program
from ..read.source import Opening, open_source
from ..run.statement import Statement, before_the_mesh
from ..run.together import open_together
from .checkpoint import Restart, checkpoint_to_load, repeats
from .feed import Feed, tokenizer_spec
from .findings import ask
from .ranks import exchange_of_job
from .reading import READING, Reading, loaded
from .resume import RESUME, Resume

RAISED = nullcontext()
"""The first finding is raised."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Loader:
    """One loader as the trainer is going to build it. Sizes in sequences and tokens.

    ``local_batch_sizes``: the trainer's, and behind it the loader's where that is another (a pipeline's micro-batches).
    """

    feed: Feed
    seq_len: int
    local_batch_sizes: tuple[int, ...]

    def layout(self, dp_degree: int) -> Layout:
        """The first rank's. Raises ``ConfigError`` if any of the sizes does not divide."""
        return self.feed.layouts(dp_degree, self.local_batch_sizes)[-1]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """A job about to start."""

    train: Loader
    validation: Loader | None
    dp_degree: int
    hf_assets_path: str
    tokenizer: Callable[[], BaseTokenizer]
    vocab_size: int | None
    restart: Restart


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """``first_step``: steps the trainer will have done when the loader's stream begins."""

    first_step: int
    statement: Statement


def agreed(start: Start) -> int:
    """The ``first_step`` that all ranks of the job find, after one of them has listed the files for all.

    Raises the same ``ZephonError`` on every rank where they find other things, or where one of them fails.
    """
    found = open_together(exchange_of_job(), lambda opening: preflight(start, opening), lambda found: found.statement)
    return found.first_step


def preflight(start: Start, opening: Opening = open_source) -> Found:
    """What this rank finds; ``ZephonError`` if the job cannot run."""
    loaders = {"": start.train} if start.validation is None else {"": start.train, "validation: ": start.validation}
    layouts = {name: loader.layout(start.dp_degree) for name, loader in loaders.items()}
    checkpoint = checkpoint_to_load(start.restart)
    continues = checkpoint is not None and "dataloader" not in start.restart.exclude_from_loading
    readings: dict[str, tuple[Program, Layout, tuple[int, ...] | None]] = {}
    for name, loader in loaders.items():
        reading = reading_of(start, loader, opening, sampled=loader is not start.train or not continues)
        ask(READING, reading, RAISED)
        assert reading.program is not None
        measured = tuple(source.estimate.tokens_per_mib for source in reading.sources)
        readings[name] = (reading.program, layouts[name], measured or None)
    first_step = 0 if checkpoint is None else resumed(start, readings[""][0], checkpoint)
    found = before_the_mesh(readings, checkpoint="none" if checkpoint is None else checkpoint.name)
    return Found(first_step=first_step, statement=found)


def reading_of(start: Start, loader: Loader, opening: Opening, *, sampled: bool) -> Reading:
    """What ``loader`` is going to read, with the trainer's own tokenizer."""
    feed = loader.feed

    def spec() -> TokenizerSpec:
        return tokenizer_spec(start.tokenizer(), feed.recipe)

    return Reading(
        feed.effective,
        load=lambda: loaded(start.hf_assets_path, spec),
        settings=feed.settings,
        seq_len=loader.seq_len,
        vocab_size=start.vocab_size,
        sampled=sampled,
        opening=opening,
    )


def resumed(start: Start, program: Program, checkpoint: Path) -> int:
    """The ``first_step`` of a job that loads ``checkpoint``: 0 if its stream continues."""
    feed, excluded = start.train.feed, start.restart.exclude_from_loading
    resume = Resume(
        checkpoint,
        program,
        feed.settings,
        global_batch_size=feed.global_batch_size,
        exclude_from_loading=excluded,
    )
    ask(RESUME, resume, RAISED)
    if not resume.new_stream:
        return 0
    warn_of_repeats(program, checkpoint)
    return resume.trainer_step or 0


def warn_of_repeats(program: Program, path: Path) -> None:
    """Say so if a new stream is going to train again on what the run saved at ``path`` has seen."""
    if text := repeats(path, program.identity):
        logger.warning("zephon: %s", text)
