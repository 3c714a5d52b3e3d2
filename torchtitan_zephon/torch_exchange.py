"""How the processes of a ``torch.distributed`` job compare what they are going to read; imports torch.

    rank = pipeline.for_rank(dp_rank, dp_degree, exchange=torch_exchange)

Each call is one ``all_gather_object``, over the CPU where the group has a CPU backend (gloo), else through the
accelerator (NCCL), whose device must be set before. Nothing is exchanged between the first batch and the last.
"""

from __future__ import annotations

import torch.distributed

from .errors import ConfigError


def torch_exchange(data: bytes, group: torch.distributed.ProcessGroup | None = None) -> list[bytes]:
    """``data`` of every process in ``group`` (by default all of them), in the order of ranks.

    For another group: ``functools.partial(torch_exchange, group=group)``. Raises ``ConfigError`` without a group.
    """
    if not torch.distributed.is_initialized():
        raise ConfigError(
            "torch_exchange was called before torch.distributed.init_process_group, so there is nobody to compare "
            "the data with. Call that first; a process that is alone needs no exchange."
        )
    said: list[bytes] = [b""] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(said, data, group=group)
    return said
