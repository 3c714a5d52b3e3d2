"""Resident memory of a rank's loader: its peak by the number of lanes, beside the formula, and its growth over time.

What flows in: a folder of JSONL sources and a tokenizer. What flows out: for each number of lanes, in a process of its
own, megabytes before the pipeline, at the peak, and what docs/performance.md's formula gives; with --minutes, the
resident memory of one run, a line a minute.

    python benchmarks/memory.py CORPUS/jsonl CORPUS/tokenizer [--minutes 30]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from corpus import source_of

from torchtitan_zephon import Pipeline, RankStream

SEQ_LEN, FLUSH, CHUNK, BATCH = 2048, 256, 256 * 1024, 8
ROW_BYTES = 3 * 4 * SEQ_LEN
"""Inputs, labels and positions of a packed sequence, int32."""


def stream_of(options: argparse.Namespace) -> RankStream:
    return (
        Pipeline(source_of(options.corpus))
        .tokenize(tokenizer_id=str(options.tokenizer), parallelism=2)
        .pack_flat(max_length=SEQ_LEN)
        .shuffle(buffer_size=128)
        .batch(microbatch_size=BATCH)
        .options(lanes=options.lanes, global_batch_size=BATCH * options.lanes, tokenizer_backend=options.backend)
        .stream
    )


def formula(lanes: int) -> float:
    """Megabytes: packed rows of a lane's segment and the chunk behind it, its part of a step, a chunk in work."""
    rows = (FLUSH + CHUNK // 4 // SEQ_LEN) * ROW_BYTES
    step = BATCH * 3 * 8 * SEQ_LEN
    chunk = 2 * CHUNK + 2 * CHUNK  # text twice, tokens (4 bytes each, 4 bytes of text each) twice
    return lanes * (rows + step + chunk) / 1e6


def resident() -> float:
    """Megabytes now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def peak() -> float:
    """Megabytes at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024 / 1e6


def one(options: argparse.Namespace) -> list[float]:
    """[before, peak] after three segments of every lane."""
    stream = stream_of(options)
    stream.program.measure()
    before = resident()
    for batch in stream:
        if batch.step > 3 * FLUSH // BATCH:
            break
    stream.close()
    return [before, peak()]


def watch(options: argparse.Namespace) -> None:
    """A line a minute; a batch is taken every ``--pause`` seconds."""
    started, lines, tokens = time.monotonic(), 0, 0
    for batch in stream_of(options):
        tokens += batch.input.size
        time.sleep(options.pause)
        if time.monotonic() - started >= 60 * lines:
            print(f"minute {lines:3d}: {resident():8.1f} MB, {tokens:,} tokens taken", flush=True)
            lines += 1
        if lines > options.minutes:
            return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--minutes", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.002)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options)))
    elif options.minutes:
        watch(options)
    else:
        print("lanes  backend     before MB   peak MB   peak - before   formula")
        for backend in ("fastokens", "hf"):
            for lanes in (1, 8, 64):
                command = [sys.executable, *sys.argv, "--one", "--lanes", str(lanes), "--backend", backend]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                before, most = json.loads(done.stdout)
                print(
                    f"{lanes:5d}  {backend:10} {before:10.0f} {most:9.0f} {most - before:15.0f} {formula(lanes):9.0f}"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
