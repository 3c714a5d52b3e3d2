"""What is in a TorchTitan checkpoint for us, read by one process alone, without a process group.

What flows in: a checkpoint folder. What flows out: the loader's state of all lanes, as the
trainer will be handed it. DCP itself stores every value with ``torch.save``; what is inside ours
is plain bytes, which are parsed as JSON and nothing else.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata

from ..changes import shared_shards
from ..errors import StateError
from ..state import NEW_STREAM, OLDER_STEP, StreamState, decode_stream, recipe_hash
from .generations import Generation

logger = logging.getLogger(__name__)

TRAINER_STEP = "train_state.step"
HF_INDEX = "model.safetensors.index.json"
"""What TorchTitan takes for the mark of a complete Hugging Face export (checkpoint.last_save_in_hf)."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Restart:
    """TorchTitan's checkpoint settings, as far as they decide what is loaded.

    ``initial_load_if_no_folder``: ``initial_load_path`` counts only while there is no ``folder``, not as long as no
    step in it is complete.
    """

    enable: bool
    folder: Path
    load_step: int
    initial_load_path: str | None
    initial_load_model_only: bool
    exclude_from_loading: list[str]
    initial_load_if_no_folder: bool

    @classmethod
    def of(cls, checkpoint: Any, dump_folder: str, generation: Generation) -> Restart:
        """Of TorchTitan's own configuration ``checkpoint``."""
        return cls(
            enable=checkpoint.enable,
            folder=Path(dump_folder) / checkpoint.folder,
            load_step=checkpoint.load_step,
            initial_load_path=checkpoint.initial_load_path,
            initial_load_model_only=checkpoint.initial_load_model_only,
            exclude_from_loading=checkpoint.exclude_from_loading,
            initial_load_if_no_folder=generation.initial_load_if_no_folder,
        )


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


def latest_step(folder: Path) -> int:
    """The step that TorchTitan takes for the newest complete one, or -1; warns of saves that were cut off.

    Its rule: any name with ``step-N`` in it, if ``.metadata`` or the index of a Hugging Face export is there.
    """
    steps = [-1]
    for path in folder.glob("*step-*"):
        if not (found := re.search(r"step-(\d+)", path.name)):
            continue
        if (path / ".metadata").is_file() or (path / HF_INDEX).is_file():
            steps.append(int(found[1]))
        else:
            logger.warning("%s has no .metadata (its save was cut off); it is passed over", path)
    return max(steps)


def complete_steps(folder: Path) -> list[int]:
    """Steps with a complete checkpoint in ``folder``."""
    steps = [(int(m[1]), p) for p in folder.glob("step-*") if (m := re.fullmatch(r"step-(\d+)", p.name))]
    return sorted(step for step, path in steps if (path / ".metadata").is_file())


def check_files(path: Path) -> None:
    """Raise ``StateError`` for the first file of the checkpoint that is missing, or shorter than ``.metadata`` says."""
    ends: dict[str, int] = {}
    try:
        for place in (_metadata(path).storage_data or {}).values():
            ends[place.relative_path] = max(ends.get(place.relative_path, 0), int(place.offset + place.length))
    except (AttributeError, TypeError, ValueError) as error:
        raise _unreadable(path, error) from None
    for name, end in sorted(ends.items()):
        file = path / name
        if not file.is_file():
            raise StateError(f"the checkpoint at {str(path)!r} is damaged: {name} is missing. {OLDER_STEP}")
        if (size := file.stat().st_size) < end:
            raise StateError(
                f"the checkpoint at {str(path)!r} is damaged: {name} has {size} bytes of {end}, so it was cut short. "
                f"{OLDER_STEP}"
            )


def saved_whole(path: Path) -> bool:
    """Whether the checkpoint holds the trainer's state beside the model."""
    return TRAINER_STEP in _metadata(path).state_dict_metadata


def model_only(path: Path) -> StateError:
    """The refusal of a checkpoint from which no training can go on, naming the newest that can."""
    whole = [step for step in complete_steps(path.parent) if saved_whole(path.parent / f"step-{step}")]
    way = f"Go on from step {whole[-1]}, the newest saved whole: --checkpoint.load_step {whole[-1]}." if whole else (
        "No step beside it was saved whole."
    )  # fmt: skip
    return StateError(
        f"the checkpoint at {str(path)!r} holds the model only (TorchTitan saves the last step so, unless "
        f"checkpoint.last_save_model_only = false), so neither optimizer nor data can go on from it. {way} For a new "
        "run with these weights: another job.dump_folder, and --checkpoint.initial_load_path with this folder."
    )


def read_loader_state(path: Path) -> dict[str, Any]:
    """The loader's state in a TorchTitan checkpoint, all lanes, read by one process alone.

    Raises ``StateError`` if the checkpoint cannot be read or holds none of ours.
    """
    keys = _metadata(path).state_dict_metadata
    ours = [k for k in keys if k.startswith("dataloader.")]
    if not ours:
        raise StateError(
            f"the checkpoint at {str(path)!r} has no loader state (saved model-only, or without a loader). {NEW_STREAM}"
        )
    foreign = [k for k in ours if k != "dataloader.stream" and not k.startswith("dataloader.lane.")]
    if "dataloader.stream" not in ours or foreign:
        raise StateError(
            f"the loader state in {str(path)!r} was made by another data loader (keys: "
            f"{', '.join((foreign or ours)[:4])}), and says nothing about a place in this stream. {NEW_STREAM}"
        )
    lanes = sorted(k.removeprefix("dataloader.lane.") for k in ours if k.startswith("dataloader.lane."))
    state: dict[str, Any] = {"dataloader": {"stream": b"", "lane": dict.fromkeys(lanes, b"")}}
    try:
        _load(state, path)
    except (Exception, CheckpointException) as error:  # DCP's own is no Exception
        raise StateError(f"the loader state in {str(path)!r} is damaged: {_reason(error)}. {OLDER_STEP}") from None
    loaded: dict[str, Any] = state["dataloader"]
    return {"stream": loaded["stream"], "lane": {lane: loaded["lane"][lane] for lane in lanes}}


def read_trainer_step(path: Path) -> int | None:
    """The step that TorchTitan's trainer will take from the checkpoint; None if it holds none of its own.

    Raises ``StateError`` if it cannot be read.
    """
    if not saved_whole(path):
        return None
    state: dict[str, Any] = {"train_state": {"step": 0}}
    try:
        _load(state, path)
        step = state["train_state"]["step"]
        if not 0 <= int(step) < 2**63 or int(step) != step:
            raise ValueError(f"it is {str(step)[:40]}")
        return int(step)
    except (Exception, CheckpointException) as error:  # DCP's own is no Exception
        reason = _reason(error)
        raise StateError(f"the trainer's step in {str(path)!r} cannot be read: {reason}. {OLDER_STEP}") from None


def check_moment(stream: StreamState, trainer_step: int | None) -> None:
    """Raise ``StateError`` unless trainer (None: it has no step here) and stream stand at the same step."""
    if trainer_step is None or trainer_step == stream.first_step + stream.step:
        return
    began = f", which began behind step {stream.first_step}," if stream.first_step else ""
    raise StateError(
        f"the checkpoint has the trainer behind step {trainer_step} and the data stream{began} behind its step "
        f"{stream.step}, so they are not of one moment: training on would skip or repeat data. {OLDER_STEP} "
        f"{NEW_STREAM}"
    )


def repeats(path: Path, identity: Mapping[str, Any]) -> str | None:
    """What a new stream of the recipe ``identity`` would train on again that the run saved at ``path`` has seen.

    None if it shares no source with it, or has another seed, or the checkpoint holds no stream of ours.
    """
    try:
        stream = decode_stream(read_loader_state(path)["stream"])
    except StateError:
        return None
    shared = shared_shards(stream.recipe, identity)
    if not stream.step or not shared or stream.recipe.get("seed") != identity["seed"]:
        return None
    sources = ", ".join(f"{name} ({same} of {count} files)" for name, (same, count) in shared.items())
    same_recipe = recipe_hash(stream.recipe) == recipe_hash(identity)
    way = "Leave the key out to continue that stream, or change" if same_recipe else "For other data first change"
    return (
        f"checkpoint.exclude_from_loading begins the data stream anew, and {path} is in step {stream.step} of "
        f"{'this very recipe' if same_recipe else 'a recipe with the same seed'}, so data that was trained on comes "
        f"again, from: {sources}. {way} zephon.seed."
    )


def _metadata(path: Path) -> Metadata:
    """What DCP wrote about the checkpoint; ``StateError`` if it cannot be read."""
    if not (path / ".metadata").is_file() and (path / HF_INDEX).is_file():
        raise model_only(path)
    try:
        metadata = dcp.FileSystemReader(str(path)).read_metadata()
        if not all(isinstance(key, str) for key in metadata.state_dict_metadata):
            raise TypeError("its keys are not all text")
        return metadata
    except (Exception, CheckpointException) as error:  # DCP's own is no Exception
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: BaseException) -> StateError:
    return StateError(f"the checkpoint at {str(path)!r} cannot be read: {_reason(error)}. {OLDER_STEP}")


def _load(state: dict[str, Any], path: Path) -> None:
    """Fill ``state`` from the checkpoint at ``path``, in this process alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        dcp.load(state, checkpoint_id=str(path), no_dist=True)


def _reason(error: BaseException) -> str:
    """What went wrong, without the traceback of each rank that DCP puts into its message."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    return f"{type(error).__name__}: {error}".splitlines()[0][:500]
