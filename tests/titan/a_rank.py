"""One rank of tests/titan/test_forks.py: ``python -m tests.titan.a_rank OUT [FAILS]``.

Writes OUT/<rank>.json with what it was given. All ranks meet in a process group; if rank FAILS is named, that one then
exits with 3 and the others wait for it in vain.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from pathlib import Path

START = sorted(name for name in sys.modules if name.startswith("torchtitan_zephon"))
THREADS = threading.active_count()

# ruff: noqa: E402
import torch
import torch.distributed as dist


def main() -> None:
    out, fails = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None
    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank() + 1])
    dist.all_reduce(total)
    rank, path = dist.get_rank(), out / f"{dist.get_rank()}.json"
    seen = {
        "environment": dict(os.environ), "arguments": sys.argv, "folder": str(Path.cwd()), "path": sys.path,
        "module": __spec__.name if __spec__ else None, "total": int(total), "session": os.getsid(0) == os.getpid(),
        "hash": hash("a word"), "ours": START, "threads": THREADS, "device": torch._utils._get_available_device_type(),
    }  # fmt: skip
    path.write_text(json.dumps(seen))
    atexit.register((out / f"{rank}.ended").touch)
    sys.stdout.write(f"rank {rank} speaks\n")
    sys.stderr.write(f"rank {rank} complains\n")
    sys.stdout.flush()
    if fails is not None:
        dist.barrier()
        if rank == fails:
            sys.exit(3)
        time.sleep(600)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
