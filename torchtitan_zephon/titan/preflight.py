"""Everything that can be known to be wrong before a model is built, found before it is built.

What flows in: TorchTitan's finished ``Trainer.Config`` and the world size. What flows out:
nothing, or a ``ZephonError``. Every rank looks for itself, at the same things, so all stop with
the same message: layout, sources, a sample of their records, the tokenizer against the model's
vocabulary, and the checkpoint that is about to be loaded, opened without a process group.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from torchtitan.components.checkpointer import BaseCheckpointManager
from torchtitan.distributed import ParallelDims
from torchtitan.trainer import Trainer

from ..config import RunSettings
from ..errors import ConfigError, StateError, TokenizerError
from ..ops.tokenize import check_vocabulary
from ..plan.layout import Layout
from ..program import Program
from ..run.stream import RankStream
from .checkpoint import complete_steps, latest_step, read_loader_state
from .loader import ZephonDataLoader, compiled, effective_recipe, layout_for, tokenizer_spec


def preflight(config: Trainer.Config, world_size: int) -> None:
    """Raise ``ZephonError`` if the job cannot run as it is written."""
    loader = config.dataloader
    if not isinstance(loader, ZephonDataLoader.Config) or loader.recipe is None:
        raise ConfigError(
            "the job's data loader is not torchtitan_zephon's; use -m torchtitan_zephon.train with a [zephon] table."
        )
    dims = ParallelDims.from_config(config.parallelism, world_size)
    local = config.parallelism.pipeline_parallel_microbatch_size if dims.pp > 1 else config.training.local_batch_size
    degree = dims.dp_replicate * dims.dp_shard
    layout = layout_for(loader, degree, 0, local)
    if (share := layout.global_batch_size // layout.dp_degree) % config.training.local_batch_size:
        raise ConfigError(
            f"training.local_batch_size = {config.training.local_batch_size} does not divide a rank's share of the "
            f"global batch, {share} sequences."
        )
    program = _program(config, loader)
    checkpoint = checkpoint_to_load(config)
    if checkpoint is None:
        program.measure()  # tokenises a sample: a wrong field or a broken file shows here
    else:
        check_checkpoint(program, layout, checkpoint)
    if config.validator.enable and isinstance(config.validator.dataloader, ZephonDataLoader.Config):
        validation = dataclasses.replace(config.validator.dataloader, infinite=config.validator.steps != -1)
        layout_for(validation, degree, 0, local)
        _program(config, validation).measure()


def _program(config: Trainer.Config, loader: ZephonDataLoader.Config) -> Program:
    assert config.model_spec is not None
    try:
        tokenizer = config.tokenizer.build(tokenizer_path=config.hf_assets_path)
    except Exception as error:
        raise TokenizerError(
            f"the tokenizer in model.hf_assets_path = {config.hf_assets_path!r} cannot be loaded: {error}. The path "
            f"is relative to the working folder, {str(Path.cwd())!r}; it must hold tokenizer.json."
        ) from None
    recipe = effective_recipe(loader)
    program = compiled(recipe, config.training.seq_len, tokenizer_spec(tokenizer, recipe))
    vocab_size = getattr(config.model_spec.model, "vocab_size", None)
    if vocab_size is not None:
        check_vocabulary(program.tokenize, vocab_size)
    return program


def checkpoint_to_load(config: Trainer.Config) -> Path | None:
    """The checkpoint folder from which TorchTitan is going to load the loader's state, if any."""
    checkpoint: BaseCheckpointManager.Config = config.checkpoint
    if not checkpoint.enable or "dataloader" in checkpoint.exclude_from_loading:
        return None
    folder = Path(config.dump_folder) / checkpoint.folder
    step = latest_step(folder) if checkpoint.load_step == -1 else checkpoint.load_step
    if step > 0:
        path = folder / f"step-{step}"
        if not (path / ".metadata").is_file():
            raise StateError(
                f"there is no complete checkpoint at {str(path)!r} (checkpoint.load_step = {checkpoint.load_step}); "
                f"complete there: {complete_steps(folder) or 'none'}."
            )
        return Path(path)
    if step == -1 and checkpoint.initial_load_path and not checkpoint.initial_load_model_only:
        initial: str = checkpoint.initial_load_path
        return Path(initial)
    return None


def check_checkpoint(program: Program, layout: Layout, path: Path) -> None:
    """Raise ``StateError`` unless every lane of ``program`` can go on from the checkpoint at ``path``."""
    state = read_loader_state(path)
    RankStream(
        program,
        Layout(
            lanes=layout.lanes, global_batch_size=layout.global_batch_size, local_batch_size=layout.local_batch_size
        ),
        RunSettings(),
    ).load_state_dict(state)
