"""Everything that can be known to be wrong before a model is built, found before it is built.

What flows in: a ``Start``, which each generation fills from its own finished configuration. What
flows out: the step at which the loader's stream begins, or a ``ZephonError``. Every rank looks for
itself, without a process group: at layout, sources, a sample of their records, the tokenizer against
the model's vocabulary, and the checkpoint that is about to be loaded. As soon as there is a group,
and before a model is built, the ranks compare what they found (``agreed``). A rank that failed takes
its error there, because the others would otherwise wait for it until the group's time-out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.tools.logging import logger

from ..config import RunSettings
from ..errors import ConfigError, TokenizerError
from ..ops.tokenize import check_vocabulary
from ..ops.tokenizer_files import unusable
from ..plan.layout import Layout
from ..program import Program
from ..run.agree import agree
from ..run.statement import Statement, before_the_mesh
from ..run.stream import RankStream
from ..state import decode_stream
from .checkpoint import (
    Restart,
    check_files,
    check_moment,
    check_strays,
    checkpoint_to_load,
    model_only,
    read_loader_state,
    read_trainer_step,
    repeats,
    saved_whole,
)
from .feed import Feed
from .ranks import exchange_of_job


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One loader as the trainer is going to build it. Sizes in sequences and tokens."""

    feed: Feed
    seq_len: int
    local_batch_size: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """A job about to start. ``local_batch_size``: the trainer's, of which pipeline micro-batches are parts."""

    train: Reading
    validation: Reading | None
    local_batch_size: int
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


def agreed(look: Callable[[], Found]) -> int:
    """The ``first_step`` that ``look`` finds, after all ranks of the job have found the same data.

    Raises the same ``ZephonError`` on every rank where they have not, or where ``look`` failed on one of them.
    """
    return agree(exchange_of_job(), look, lambda found: found.statement).first_step


def preflight(start: Start) -> Found:
    """What this rank finds; ``ZephonError`` if the job cannot run."""
    layout = start.train.feed.layout(start.dp_degree, 0, start.train.local_batch_size)
    if (share := layout.global_batch_size // layout.dp_degree) % start.local_batch_size:
        raise ConfigError(
            f"training.local_batch_size = {start.local_batch_size} does not divide a rank's share of the "
            f"global batch, {share} sequences."
        )
    program = _program(start, start.train)
    first_step, measured = 0, None
    if (checkpoint := checkpoint_to_load(start.restart)) is None:
        measured = _measured(program)  # tokenises a sample: a wrong field or a broken file shows here
    else:
        check_files(checkpoint)
        with_trainer = "train_state" not in start.restart.exclude_from_loading
        if with_trainer and not saved_whole(checkpoint):
            raise model_only(checkpoint)
        if "dataloader" in start.restart.exclude_from_loading:
            measured = _measured(program)
            warn_of_repeats(program, checkpoint)
            first_step = (read_trainer_step(checkpoint) or 0) if with_trainer else 0
        else:
            check_checkpoint(program, layout, start.train.feed.settings, checkpoint, with_trainer=with_trainer)
    readings: dict[str, tuple[Program, Layout, tuple[int, ...] | None]] = {"": (program, layout, measured)}
    if start.validation:
        layout = start.validation.feed.layout(start.dp_degree, 0, start.validation.local_batch_size)
        validation = _program(start, start.validation)
        readings["validation: "] = (validation, layout, _measured(validation))
    found = before_the_mesh(readings, checkpoint="none" if checkpoint is None else checkpoint.name)
    return Found(first_step=first_step, statement=found)


def _measured(program: Program) -> tuple[int, ...]:
    return tuple(estimate.tokens_per_mib for estimate in program.measure())


def _program(start: Start, reading: Reading) -> Program:
    try:
        tokenizer = start.tokenizer()
    except Exception as error:
        raise TokenizerError(
            f"the tokenizer in model.hf_assets_path = {start.hf_assets_path!r} cannot be loaded: "
            f"{unusable(start.hf_assets_path) or f'{error}.'} The path is relative to the working folder, "
            f"{str(Path.cwd())!r}; it must hold tokenizer.json."
        ) from None
    program = reading.feed.program(reading.seq_len, tokenizer)
    if start.vocab_size is not None:
        check_vocabulary(program.tokenize, start.vocab_size)
    return program


def warn_of_repeats(program: Program, path: Path) -> None:
    """Say so if a new stream is going to train again on what the run saved at ``path`` has seen."""
    if text := repeats(path, program.identity):
        logger.warning("zephon: %s", text)


def check_checkpoint(
    program: Program, layout: Layout, settings: RunSettings, path: Path, *, with_trainer: bool = True
) -> None:
    """Raise ``StateError`` unless every lane can go on from the checkpoint at ``path``, at the trainer's step."""
    state = read_loader_state(path)
    alone = dataclasses.replace(layout, dp_degree=1, dp_rank=0)
    RankStream(program, alone, settings).load_state_dict(state)
    check_strays(state, alone.lanes)
    if with_trainer:
        check_moment(decode_stream(state["stream"]), read_trainer_step(path))
