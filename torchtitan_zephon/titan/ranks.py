"""The trainer's process group, as far as the loader uses it: at the start, when no rank has trained yet.

What flows in: the default process group that TorchTitan has made. What flows out: the ``Exchange`` over it.
"""

from __future__ import annotations

import torch.distributed

from ..run.agree import Exchange, alone
from ..torch_exchange import torch_exchange


def exchange_of_job() -> Exchange:
    """Over all ranks of the job; ``alone`` for a single process and under TorchTitan's fake backend."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return alone
    return alone if torch.distributed.get_backend() == "fake" else torch_exchange
