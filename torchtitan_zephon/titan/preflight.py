"""Everything that can be known to be wrong before a model is built, found before it is built.

What flows in: a ``Start``, which each generation fills from its own finished configuration. What
flows out: the step at which the loader's stream begins, or a ``ZephonError``. Every rank looks for
itself, at the same things, so all stop with the same message: layout, sources, a sample of their
records, the tokenizer against the model's vocabulary, and the checkpoint that is about to be
loaded, opened without a process group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.tools.logging import logger

from ..config import RunSettings
from ..errors import ConfigError, StateError, TokenizerError
from ..ops.tokenize import check_vocabulary
from ..plan.layout import Layout
from ..program import Program
from ..run.stream import RankStream, lane_key
from ..state import NEW_STREAM, OLDER_STEP, decode_stream
from .checkpoint import (
    HF_INDEX,
    check_files,
    complete_steps,
    latest_step,
    model_only,
    read_loader_state,
    read_trainer_step,
    saved_whole,
)
from .feed import Feed


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One loader as the trainer is going to build it. Sizes in sequences and tokens."""

    feed: Feed
    seq_len: int
    local_batch_size: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Restart:
    """TorchTitan's checkpoint settings, as far as they decide what is loaded.

    ``initial_load_if_no_folder``: ``initial_load_path`` counts only while there is no ``folder`` (0.2.2), not as
    long as no step in it is complete (0.3.0).
    """

    enable: bool
    folder: Path
    load_step: int
    initial_load_path: str | None
    initial_load_model_only: bool
    exclude_from_loading: list[str]
    initial_load_if_no_folder: bool = False


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


def preflight(start: Start) -> int:
    """Steps the trainer will have done when the loader's stream begins; ``ZephonError`` if the job cannot run."""
    layout = start.train.feed.layout(start.dp_degree, 0, start.train.local_batch_size)
    if (share := layout.global_batch_size // layout.dp_degree) % start.local_batch_size:
        raise ConfigError(
            f"training.local_batch_size = {start.local_batch_size} does not divide a rank's share of the "
            f"global batch, {share} sequences."
        )
    program = _program(start, start.train)
    first_step = 0
    if (checkpoint := checkpoint_to_load(start.restart)) is None:
        program.measure()  # tokenises a sample: a wrong field or a broken file shows here
    else:
        check_files(checkpoint)
        with_trainer = "train_state" not in start.restart.exclude_from_loading
        if with_trainer and not saved_whole(checkpoint):
            raise model_only(checkpoint)
        if "dataloader" in start.restart.exclude_from_loading:
            program.measure()
            first_step = (read_trainer_step(checkpoint) or 0) if with_trainer else 0
        else:
            check_checkpoint(program, layout, start.train.feed.settings, checkpoint, with_trainer=with_trainer)
    if start.validation:
        start.validation.feed.layout(start.dp_degree, 0, start.validation.local_batch_size)
        _program(start, start.validation).measure()
    return first_step


def _program(start: Start, reading: Reading) -> Program:
    try:
        tokenizer = start.tokenizer()
    except Exception as error:
        raise TokenizerError(
            f"the tokenizer in model.hf_assets_path = {start.hf_assets_path!r} cannot be loaded: {error}. The path "
            f"is relative to the working folder, {str(Path.cwd())!r}; it must hold tokenizer.json."
        ) from None
    program = reading.feed.program(reading.seq_len, tokenizer)
    if start.vocab_size is not None:
        check_vocabulary(program.tokenize, start.vocab_size)
    return program


def checkpoint_to_load(restart: Restart) -> Path | None:
    """The checkpoint folder from which TorchTitan is going to load more than the model, if any."""
    if not restart.enable:
        return None
    step = latest_step(restart.folder) if restart.load_step == -1 else restart.load_step
    if step > 0:
        path = restart.folder / f"step-{step}"
        if not any((path / mark).is_file() for mark in (".metadata", HF_INDEX)):
            raise StateError(
                f"there is no complete checkpoint at {str(path)!r} (checkpoint.load_step = {restart.load_step}); "
                f"complete there: {complete_steps(restart.folder) or 'none'}."
            )
        if later := [s for s in complete_steps(restart.folder) if s > step]:
            logger.warning(
                "zephon: going on from step %d although %s has step %s. Saves will write over these in place, and one "
                "cut off there is a mixture that looks complete; and a restart without checkpoint.load_step takes the "
                "newest. Move them away first.", step, restart.folder, ", ".join(map(str, later)),
            )  # fmt: skip
        return path
    if step == -1 and restart.initial_load_path:
        if restart.folder.exists() and restart.initial_load_if_no_folder:
            raise StateError(
                f"{str(restart.folder)!r} exists without a complete checkpoint (a first save that was cut off?), so "
                f"TorchTitan would ignore checkpoint.initial_load_path = {restart.initial_load_path!r} and train from "
                "random weights. Remove the folder."
            )
        if not restart.initial_load_model_only:
            return Path(restart.initial_load_path)
    return None


def check_checkpoint(
    program: Program, layout: Layout, settings: RunSettings, path: Path, *, with_trainer: bool = True
) -> None:
    """Raise ``StateError`` unless every lane can go on from the checkpoint at ``path``, at the trainer's step."""
    state = read_loader_state(path)
    alone = dataclasses.replace(layout, dp_degree=1, dp_rank=0)
    RankStream(program, alone, settings).load_state_dict(state)
    if strays := sorted(state["lane"].keys() - map(lane_key, alone.own_lanes)):
        raise StateError(
            f"the checkpoint at {str(path)!r} holds lane {strays[0]!r}, which is none of the recipe's {alone.lanes}; "
            f"it was put together from several. {OLDER_STEP}"
        )
    trainer = read_trainer_step(path) if with_trainer else None
    stream = decode_stream(state["stream"])
    if trainer is not None and trainer != stream.first_step + stream.step:
        began = f", which began behind step {stream.first_step}," if stream.first_step else ""
        raise StateError(
            f"the checkpoint at {str(path)!r} has the trainer behind step {trainer} and the data stream{began} behind "
            f"its step {stream.step}, so they are not of one moment: training on would skip or repeat data. "
            f"{OLDER_STEP} {NEW_STREAM}"
        )
