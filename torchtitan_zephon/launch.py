"""Which process of the job this is, as its launcher says in environment variables.

What flows in: the environment that torchrun, or another launcher, has made. What flows out: nothing if TorchTitan can
start with it; else one sentence that says what is wrong and how to start.
"""

from __future__ import annotations

from collections.abc import Mapping

from .errors import ConfigError

NEEDED = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torch.distributed and TorchTitan read; torchrun sets all of them."""

WAY_OUT = (
    "Start it with torchrun, which sets them. For one process: torchrun --standalone --nproc-per-node 1 "
    "-m torchtitan_zephon.train --job.config_file ..."
)
SLURM_WAY_OUT = (
    "Let srun start one torchrun on each node (docs/torchtitan.md has the script), or set them in each task: "
    "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS, and MASTER_ADDR and MASTER_PORT to the "
    "first node's name and a free port."
)


def check_launch(environ: Mapping[str, str]) -> None:
    """Raise ``ConfigError`` unless ``environ`` says which of how many processes this is."""
    of_slurm = "SLURM_PROCID" in environ
    way_out = SLURM_WAY_OUT if of_slurm else WAY_OUT
    missing = [name for name in NEEDED if name not in environ]
    if missing == list(NEEDED) or (missing and of_slurm and "RANK" in missing):
        by = f"started by srun (SLURM_PROCID = {environ['SLURM_PROCID']})" if of_slurm else "not started by torchrun"
        error = ConfigError(
            f"{by}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set, so this process does not know "
            f"which rank of the job it is. {way_out}"
        )
        error.of_all_ranks = True  # no launcher sets them for some of its processes
        raise error
    if missing:
        stated = ", ".join(f"{name} = {environ[name]!r}" for name in NEEDED if name in environ)
        raise ConfigError(f"{', '.join(missing)} not set, though {stated}. {way_out}")
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        if _number(environ[name]) is None:
            raise ConfigError(
                f"{name} = {environ[name]!r} is no whole number, so this process does not know its place. {way_out}"
            )
    size, rank, local = (int(environ[name]) for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"))
    on_node = _number(environ.get("LOCAL_WORLD_SIZE", "")) or size
    if rank >= size or local >= on_node or on_node > size:
        raise ConfigError(
            f"WORLD_SIZE = {size}, RANK = {rank}, LOCAL_RANK = {local}, LOCAL_WORLD_SIZE = {on_node} contradict each "
            f"other: a rank is below the number of processes, a local rank below that of its node. {way_out}"
        )


def local_rank(environ: Mapping[str, str]) -> int:
    """This process's place on its node, by SLURM's variable if there is no other; 0 if nothing says so."""
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        if (found := _number(environ.get(name, ""))) is not None:
            return found
    return 0


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None
