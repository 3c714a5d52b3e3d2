"""The command: a TOML job file and overrides in, the installed stock TorchTitan trainer run.

    torchrun --nproc-per-node 4 -m torchtitan_zephon.train --job.config_file train_configs/X.toml

One line of work each: parse the job, go into CPU mode if there is no accelerator, hand the job to
the module of the installed TorchTitan. The rest of this file is what a user sees when that fails:
one paragraph, once a node, and exit code 2. torchrun adds a table of its own, which then holds the
same paragraph instead of a traceback.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from .errors import ZephonError
from .launch import check_launch, local_rank
from .titan import training_began
from .titan.generations import installed
from .titan.job import parse_job

USAGE = """\
Train with stock TorchTitan on data that is identical on any GPU count.

  torchrun --standalone --nproc-per-node N -m torchtitan_zephon.train \\
      --job.config_file train_configs/X.toml [--section.key value ...]

The job file has TorchTitan's sections ([model], [training], [parallelism], [checkpoint], ...) and a
[zephon] table: the data. Any key can be overridden: --training.steps 20, --training.seq_len=4096,
--checkpoint.enable, --checkpoint.no_enable, --zephon.lanes 8, --zephon.sources.news.weight 0.3.

  [training]
  global_batch_size = 256               # required: sequences a step, over all ranks

  [zephon]
  recipe = "../configs/mix.toml"        # a data recipe to start from, and/or the keys here:
  lanes = 32                            # the data-parallel degree must divide it; part of the stream
  seed = 0                              # likewise, as are pack, shuffle_*, flush_every_sequences, ...
  workers = 2                           # speed only, as is prefetch_bytes
  ledger = true                         # SHA-256 of every global batch in <job.dump_folder>/ledger
  device = "auto"                       # "cpu": CPU mode although there is an accelerator

  [zephon.sources.news]                 # JSONL or Parquet; paths are relative to the file they are in
  path = "../data/news/*.jsonl"
  weight = 0.5

  [zephon.validation.sources.held_out]  # read when [validation] enable = true
  path = "../data/held_out.jsonl"
"""

OTHERS_WAIT_S = 10.0
"""How long a rank that is not the node's first lets the first one speak before it speaks itself."""


def main(args: Sequence[str] | None = None) -> None:
    """Run the job that ``args`` (the command line) name. Exits with 2 on a ``ZephonError``."""
    args = sys.argv[1:] if args is None else args
    if "--help" in args or "-h" in args:
        print(USAGE, end="")
        return
    refused = threading.Event()
    atexit.register(end_process_if, refused)
    try:
        run(args)
    except ZephonError as error:
        report(error)
        refused.set()
        sys.exit(2)


def end_process_if(refused: threading.Event) -> None:
    """Exit with 2, here and now, if the job was refused. Registered first, it runs behind all other exit handlers.

    Else the destructor of gloo's process group would wait for the other ranks, and they for this one.
    """
    if refused.is_set():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(2)


def run(args: Sequence[str]) -> None:
    """Train the job that ``args`` name in this process, one rank of a torchrun launch."""
    generation = installed()
    job = parse_job(args, generation.stock_recipe)
    check_launch(os.environ)
    from .titan import cpu

    on_cpu = cpu.wanted(job.device)
    if on_cpu:
        cpu.activate()
        job = cpu.adjusted(job, generation.cpu_defaults, log_once)
    generation.load().run(job, on_cpu=on_cpu)


def log_once(line: str) -> None:
    """Print ``line`` to stderr, on the first rank of each node."""
    if local_rank(os.environ) == 0:
        print(f"torchtitan_zephon: {line}", file=sys.stderr, flush=True)


def report(error: ZephonError) -> None:
    """Print ``error`` as one paragraph on stderr.

    At start-up every rank meets the same error: the node's first rank speaks, and torchrun ends the
    others meanwhile. One that is still there after ``OTHERS_WAIT_S`` was alone with it, and speaks,
    unless it knows that all have the same. During training the rank that fails speaks at once and
    says which it is.
    """
    first, at_once = local_rank(os.environ) == 0, training_began.is_set() and not error.of_all_ranks
    if not first and not at_once:
        write_error_file(None)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # the first rank's failure is the node's
        time.sleep(OTHERS_WAIT_S)
        if error.of_all_ranks:
            return
    who = f"rank {os.environ.get('RANK', '0')}: " if at_once or not first else ""
    # Not to break long words or at hyphens: a path or a name must survive copying, and so must an
    # indented line, which is one `field: before -> after` or a digest.
    text = "\n".join(
        line if line.startswith("    ") else textwrap.fill(line, 100, break_long_words=False, break_on_hyphens=False)
        for line in f"torchtitan_zephon: {who}{error}".splitlines()
    )
    write_error_file(text)
    print(text, file=sys.stderr, flush=True)


def write_error_file(text: str | None) -> None:
    """Let torchrun's table say ``text`` of this process, or nothing, where TorchTitan has put a traceback."""
    if not (path := os.environ.get("TORCHELASTIC_ERROR_FILE")):
        return
    file = Path(path)
    with contextlib.suppress(OSError):  # the table is torchrun's; the paragraph is printed all the same
        file.unlink(missing_ok=True)
        if text is not None:
            message = {"message": text, "extraInfo": {"timestamp": str(int(time.time()))}}
            file.write_text(json.dumps({"message": message}), "utf-8")


if __name__ == "__main__":
    main()
