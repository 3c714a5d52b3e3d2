"""How the processes of a ``torch.distributed`` job compare what they are going to read; imports torch.

    rank = pipeline.for_rank(dp_rank, dp_degree, exchange=torch_exchange)

Each call is one ``all_gather_object``, over the CPU where the group has a CPU backend (gloo), else through the
accelerator (NCCL), whose device must be set before. That pads to the longest, so what is longer than ``SHORT_BYTES``,
such as a list of files, is broadcast by itself. Nothing is exchanged between the first batch and the last.
"""

from __future__ import annotations

import torch.distributed as dist

from .errors import ConfigError

SHORT_BYTES = 64 * 1024


def torch_exchange(data: bytes, group: dist.ProcessGroup | None = None) -> list[bytes]:
    """``data`` of every process in ``group`` (by default all of them), in the order of ranks.

    For another group: ``functools.partial(torch_exchange, group=group)``. Raises ``ConfigError`` without a group.
    """
    if not dist.is_initialized():
        raise ConfigError(
            "torch_exchange was called before torch.distributed.init_process_group, so there is nobody to compare "
            "the data with. Call that first; a process that is alone needs no exchange."
        )
    said: list[bytes | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(said, data if len(data) <= SHORT_BYTES else None, group=group)
    return [_broadcast(data, rank, group) if short is None else short for rank, short in enumerate(said)]


def _broadcast(data: bytes, rank: int, group: dist.ProcessGroup | None) -> bytes:
    """What process ``rank`` of ``group`` has as its ``data``."""
    words = [data]
    dist.broadcast_object_list(words, src=rank if group is None else dist.get_global_rank(group, rank), group=group)
    return words[0]
