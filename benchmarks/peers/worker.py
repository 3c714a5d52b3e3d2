"""One measurement of one loader, in a fresh process of that loader's environment.

What flows in: a ``Job`` as JSON in the first argument. What flows out: one JSON object on the last line of stdout,
`{"error": ...}` with the loader's own words if it refuses; `begin` and `end` on lines of their own mark the measured
window. `load_NAME.py` says how a loader is driven: its `Loader` is built from a job and, to resume, the states of all
former ranks in rank order; it iterates over int arrays [rows, tokens] and has `state()`, bytes that would go into a
checkpoint, and `close()`. Its optional `prepare(job)` converts the corpus to the loader's own format, once, not timed.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import itertools
import json
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What to run: ``task`` is the name of a function in ``TASKS``, ``loader`` the middle of a `load_*.py`."""

    task: str
    loader: str
    corpus: Path
    tokenizer: Path
    prepared: Path
    """Folder for the corpus in the loader's own format and for what ranks share."""
    workers: int
    remote: str = ""
    """URL below which each source is a folder, of loaders that read one; else they read ``corpus``."""
    rows: int
    """Sequences a batch."""
    tokens: int
    """Tokens a sequence."""
    seconds: float = 0.0
    cycle: int = 1
    """Batches of the warm-up; the measured window is a multiple of it."""
    backend: str = "hf"
    rank: int = 0
    world: int = 1
    states: tuple[str, ...] = ()
    """Files with the states of the former ranks."""
    save: str = ""
    """File that the state is written to."""
    save_after: int = 0
    steps: int = 0
    step_batches: int = 1
    """Batches that this rank adds to a global batch."""

    @classmethod
    def parse(cls, text: str) -> Job:
        fields = json.loads(text)
        return cls(**fields | {k: Path(fields[k]) for k in ("corpus", "tokenizer", "prepared")})

    def sources(self) -> list[Path]:
        """The folders of JSONL, one a source."""
        return sorted(p for p in self.corpus.iterdir() if p.is_dir())


def prepare(job: Job, module: Any) -> dict[str, Any]:
    """Convert the corpus if need be; the version of the tokenizer that the loader drives."""
    if hasattr(module, "prepare"):
        module.prepare(job)
    return {"tokenizers": importlib.metadata.version("tokenizers")}


def measure(job: Job, module: Any) -> dict[str, Any]:
    """Run for ``seconds`` or a little longer, from the end of one cycle to the end of another.

    The state is saved half a cycle later: at the end of one there may be nothing to replay, which would flatter.
    """
    started = time.perf_counter()
    loader = module.Loader(job, [])
    batches = iter(loader)
    next(batches)
    first_s = time.perf_counter() - started
    for _ in range(job.cycle - 1):
        next(batches)
    print("\nbegin", flush=True)
    tokens, done, began = 0, 0, time.perf_counter()
    while done % job.cycle or time.perf_counter() - began < job.seconds:
        tokens += next(batches).size
        done += 1
    wall_s = time.perf_counter() - began
    print("\nend", flush=True)
    for _ in range(job.cycle // 2):
        next(batches)
    state = loader.state()
    Path(job.save).write_bytes(state)
    loader.close()
    return {"tokens": tokens, "wall_s": wall_s, "first_batch_s": first_s, "state_bytes": len(state)}


def restore(job: Job, module: Any) -> dict[str, Any]:
    """Seconds from building the loader with a state to its first batch."""
    states = [Path(s).read_bytes() for s in job.states]
    started = time.perf_counter()
    loader = module.Loader(job, states)
    next(iter(loader))
    seconds = time.perf_counter() - started
    loader.close()
    return {"restore_s": seconds}


def digest(job: Job, module: Any) -> dict[str, Any]:
    """SHA-256 of each row of this rank's share of ``steps`` global batches; saves the state after ``save_after``."""
    loader = module.Loader(job, [Path(s).read_bytes() for s in job.states])
    batches, steps = iter(loader), []
    for step in range(1, job.steps + 1):
        rows = itertools.chain.from_iterable(next(batches) for _ in range(job.step_batches))
        steps.append([hashlib.sha256(row.astype(np.int64).tobytes()).hexdigest() for row in rows])
        if step == job.save_after:
            Path(job.save).write_bytes(loader.state())
    loader.close()
    return {"steps": steps}


TASKS = {"prepare": prepare, "measure": measure, "restore": restore, "digest": digest}


def main() -> None:
    job = Job.parse(sys.argv[1])
    try:
        result = TASKS[job.task](job, importlib.import_module(f"load_{job.loader}"))
    except Exception as error:
        words = str(error) or traceback.extract_tb(error.__traceback__)[-1].line
        result = {"error": f"{type(error).__name__}: {words}"}
    print("\n" + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
