"""What is in a TorchTitan checkpoint for us, read by one process alone, without a process group.

What flows in: a checkpoint folder. What flows out: the loader's state of all lanes, as the
trainer will be handed it. DCP itself stores every value with ``torch.save``; what is inside ours
is plain bytes, which are parsed as JSON and nothing else.
"""

from __future__ import annotations

import logging
import re
import warnings
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from ..errors import StateError
from ..state import NEW_STREAM, OLDER_STEP

logger = logging.getLogger(__name__)


def latest_step(folder: Path) -> int:
    """The newest step whose checkpoint is complete (TorchTitan's rule: it has ``.metadata``), or -1."""
    return max(complete_steps(folder), default=-1)


def complete_steps(folder: Path) -> list[int]:
    """Steps with a complete checkpoint in ``folder``; warns of those whose save was cut off."""
    steps = [(int(m[1]), p) for p in folder.glob("step-*") if (m := re.fullmatch(r"step-(\d+)", p.name))]
    for _, path in steps:
        if not (path / ".metadata").is_file():
            logger.warning("%s has no .metadata (its save was cut off); it is passed over", path)
    return sorted(step for step, path in steps if (path / ".metadata").is_file())


def read_loader_state(path: Path) -> dict[str, Any]:
    """The loader's state in a TorchTitan checkpoint, all lanes, read by one process alone.

    Raises ``StateError`` if the checkpoint cannot be read or holds none of ours.
    """
    try:
        keys = dcp.FileSystemReader(str(path)).read_metadata().state_dict_metadata
    except (Exception, CheckpointException) as error:  # DCP's own is no Exception
        raise StateError(f"the checkpoint at {str(path)!r} cannot be read: {error}. {OLDER_STEP}") from None
    ours = [k for k in keys if k.startswith("dataloader.")]
    if not ours:
        raise StateError(
            f"the checkpoint at {str(path)!r} has no loader state (saved model-only, or without a loader). {NEW_STREAM}"
        )
    if "dataloader.stream" not in ours:
        raise StateError(
            f"the loader state in {str(path)!r} was made by another data loader (keys: {', '.join(ours[:4])}), and "
            f"says nothing about a place in this stream. {NEW_STREAM}"
        )
    lanes = sorted(k.removeprefix("dataloader.lane.") for k in ours if k.startswith("dataloader.lane."))
    state: dict[str, Any] = {"dataloader": {"stream": b"", "lane": dict.fromkeys(lanes, b"")}}
    try:
        _load(state, path)
    except (Exception, CheckpointException) as error:  # DCP's own is no Exception
        raise StateError(f"the loader state in {str(path)!r} is damaged: {_reason(error)}. {OLDER_STEP}") from None
    loaded: dict[str, Any] = state["dataloader"]
    return loaded


def read_trainer_step(path: Path) -> int | None:
    """The step that TorchTitan's trainer will take from the checkpoint; None if it holds none of its own.

    Raises ``StateError`` if it cannot be read.
    """
    try:
        if "train_state.step" not in dcp.FileSystemReader(str(path)).read_metadata().state_dict_metadata:
            return None
        state: dict[str, Any] = {"train_state": {"step": 0}}
        _load(state, path)
    except (Exception, CheckpointException) as error:  # DCP's own is no Exception
        raise StateError(f"the trainer's step in {str(path)!r} cannot be read: {_reason(error)}. {OLDER_STEP}") from None
    return int(state["train_state"]["step"])


def _load(state: dict[str, Any], path: Path) -> None:
    """Fill ``state`` from the checkpoint at ``path``, in this process alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        dcp.load(state, checkpoint_id=str(path), no_dist=True)


def _reason(error: BaseException) -> str:
    """What went wrong, without the traceback of each rank that DCP puts into its message."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    return f"{type(error).__name__}: {error}".splitlines()[0]
