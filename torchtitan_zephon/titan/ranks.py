"""The trainer's process group, as far as the loader uses it.

What flows in: the default process group that TorchTitan has made. What flows out: the ``Exchange`` over it, for the
start of a stream; and a ``Board`` in its key-value store, for the metrics. A note costs the rank that posts it one
message to the store (0.02 ms at most), and the rank that logs reads all notes in one answer (0.5 ms for 128 ranks).
"""

from __future__ import annotations

import torch.distributed
from torch.distributed.distributed_c10d import _get_default_store

from ..plan.layout import Layout
from ..run.agree import Exchange, alone
from ..torch_exchange import torch_exchange


def exchange_of_job() -> Exchange:
    """Over all ranks of the job; ``alone`` for a single process and under TorchTitan's fake backend."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return alone
    return alone if torch.distributed.get_backend() == "fake" else torch_exchange


class StoreBoard:
    """A ``Board`` in the store of the process group. Mesh peers of a dp rank have the same note; each writes it.

    A note is there, empty, from the beginning, so that no rank waits for one.
    """

    def __init__(self, layout: Layout) -> None:
        self._store = torch.distributed.PrefixStore("torchtitan_zephon", _get_default_store())
        self._keys = [f"dp_rank_{rank}" for rank in range(layout.dp_degree)]
        self._own = self._keys[layout.dp_rank]
        self.post(b"")

    def post(self, note: bytes) -> None:
        """Replace the last one; does not wait for a reader."""
        self._store.set(self._own, note)

    def notes(self) -> list[bytes]:
        """The last one of each dp rank."""
        found: list[bytes] = self._store.multi_get(self._keys)
        return found
