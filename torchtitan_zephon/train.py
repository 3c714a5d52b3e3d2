"""The command: a TOML job file and overrides in, the installed stock TorchTitan trainer run.

    torchrun --nproc-per-node 4 -m torchtitan_zephon.train --job.config_file train_configs/X.toml

One line of work each: parse the job, go into CPU mode if there is no accelerator, hand the job to
the module of the installed TorchTitan. The rest of this file is what a user sees when that fails:
one paragraph, once a node, and exit code 2.
"""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Sequence

from . import titan
from .errors import ConfigError, ZephonError
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
    try:
        run(args)
    except ZephonError as error:
        report(error)
        sys.exit(2)


def run(args: Sequence[str]) -> None:
    """Train the job that ``args`` name in this process, one rank of a torchrun launch."""
    job = parse_job(args, titan.STOCK[titan.installed_version()])
    if "WORLD_SIZE" not in os.environ:
        raise ConfigError(
            "not started by torchrun (WORLD_SIZE is not set). For one process: torchrun --standalone "
            "--nproc-per-node 1 -m torchtitan_zephon.train --job.config_file ..."
        )
    from .titan import cpu

    on_cpu = cpu.wanted(job.device)
    if on_cpu:
        cpu.activate()
        job = cpu.adjusted(job, log_once)
    titan.generation().run(job, on_cpu=on_cpu)


def log_once(line: str) -> None:
    """Print ``line`` to stderr, on the first rank of each node."""
    if local_rank() == 0:
        print(f"torchtitan_zephon: {line}", file=sys.stderr, flush=True)


def report(error: ZephonError) -> None:
    """Print ``error`` as one paragraph on stderr.

    At start-up every rank meets the same error: the node's first rank speaks, and torchrun ends the
    others meanwhile; one that is still there after ``OTHERS_WAIT_S`` was alone with it, and speaks.
    During training the rank that fails speaks at once and says which it is.
    """
    rank = os.environ.get("RANK", "0")
    began = titan.training_began.is_set()
    if local_rank() != 0 and not began:
        time.sleep(OTHERS_WAIT_S)
    who = f"rank {rank}: " if began or local_rank() != 0 else ""
    # Not to break long words or at hyphens: a path or a name must survive copying, and so must an
    # indented line, which is one `field: before -> after` or a digest.
    lines = [
        line if line.startswith("    ") else textwrap.fill(line, 100, break_long_words=False, break_on_hyphens=False)
        for line in f"torchtitan_zephon: {who}{error}".splitlines()
    ]
    print("\n".join(lines), file=sys.stderr, flush=True)


def local_rank() -> int:
    """This process's place on its node; 0 if it is alone."""
    return int(os.environ.get("LOCAL_RANK", "0"))


if __name__ == "__main__":
    main()
