"""Planning at the size of a frontier run, without its data: 1,024 lanes, 1,000,000 shards, 15 T tokens.

What flows in: nothing but the sizes below (two sources at 0.7 and 0.3, log-normal shard sizes, 4.1 bytes a token). What
flows out: seconds and memory to cut the shards into chunks; the time to plan every chunk of one lane from the first to
the last token of the run, as a share of one core at the rate at which 4,096 GPUs would eat it; the bytes of a
checkpoint's state and the seconds in which a rank decodes all of it; and, with --files N, seconds, memory and calls to
open a real source of N small files, JSONL and Parquet.

    python benchmarks/scale.py [--files 100000]
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torchtitan_zephon.ops.carried import to_plain
from torchtitan_zephon.plan.chunking import Pieces, cut
from torchtitan_zephon.plan.cursor import Endless, LaneRuns, lane_offsets, order_keys
from torchtitan_zephon.plan.mixture import Mixture, integer_weights, lane_begin, lane_phases
from torchtitan_zephon.plan.segments import LanePlan, SourcePlace
from torchtitan_zephon.records import Documents
from torchtitan_zephon.state import LaneState, SegmentStart, decode_lane, encode_lane

LANES, SHARDS, TOKENS, BYTES_A_TOKEN, SEQ_LEN = 1024, 1_000_000, 15e12, 4.1, 8192
FLUSH_EVERY_SEQUENCES = 256
GPUS, TOKENS_A_SECOND_A_GPU = 4096, 10_000
WEIGHTS = {"code": 0.3, "web": 0.7}


def plan_of(lane: int) -> LanePlan:
    rng = np.random.default_rng(1)
    tables = []
    for s, share in enumerate(WEIGHTS.values()):
        drawn = rng.lognormal(0, 0.7, int(SHARDS * share))
        sizes = (drawn / drawn.sum() * TOKENS * BYTES_A_TOKEN * share).astype(np.int64)
        tables.append(cut(s, Pieces(sizes=sizes, units=sizes, runs_of_one=True), 256 * 1024, LANES))
    names, rate = list(WEIGHTS), int(2**20 / BYTES_A_TOKEN)
    typical = [t.typical_chunk_bytes * rate >> 20 for t in tables]
    columns = zip(tables, lane_offsets(1, names, LANES), order_keys(1, names), strict=True)
    weights = integer_weights(WEIGHTS)
    runs = tuple(Endless((lane - offset) % LANES, LANES, t.num_runs, key) for t, offset, key in columns)
    return LanePlan(
        runs=LaneRuns(lane, tuple(tables), runs, lane_begin(1, weights, lane, LANES)),
        mixture=Mixture(weights, lane_phases(1, names, weights, typical, lane, LANES)),
        tokens_per_mib=(rate, rate),
        segment_tokens=FLUSH_EVERY_SEQUENCES * SEQ_LEN,
        measured=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=0)
    options = parser.parse_args()
    tracemalloc.start()
    started = time.perf_counter()
    plan = plan_of(7)
    held, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    chunks = sum(t.num_chunks for t in plan.runs.tables)
    print(f"cut {SHARDS:,} shards into {chunks:,} chunks: {time.perf_counter() - started:.2f} s, ", end="")
    print(f"{held / 1e6:.0f} MB held, {most / 1e6:.0f} MB at the peak")

    sources, segments, planned, tokens = (SourcePlace(),) * len(plan.tokens_per_mib), 0, 0, 0
    started = time.process_time()
    while tokens < TOKENS / LANES:
        place, shares = plan.begin(sources)
        ends = ""
        while not ends:
            step = plan.next(place, shares)
            assert step is not None
            place, ends, planned = step.behind, step.ends, planned + 1
        sources, segments = plan.after(sources, place, place.scheduled), segments + 1
        tokens = sum(source.all_tokens for source in sources)
    seconds = time.process_time() - started
    lasts = TOKENS / (GPUS * TOKENS_A_SECOND_A_GPU)
    print(
        f"one lane, first to last token: {planned:,} chunks, {segments:,} segments in {seconds:.1f} s, "
        f"{seconds / planned * 1e6:.1f} us a chunk; "
    )
    print(f"    of the run's {lasts / 3600:.0f} hours at {GPUS:,} GPUs x {TOKENS_A_SECOND_A_GPU:,} tokens/s: ", end="")
    print(f"{seconds / lasts:.2e} of a core a lane; shares at the end: ", end="")
    print(", ".join(f"{n} {source.all_tokens / tokens:.4f}" for n, source in zip(WEIGHTS, sources, strict=True)))

    origin, names = np.array([[1, 999_999, 2**40, 0]]), list(WEIGHTS)
    carry = Documents({}, {"ids": np.arange(SEQ_LEN, dtype=np.int32)}, np.array([0, SEQ_LEN]), origin)
    places = dict(zip(names, sources, strict=True))
    start = SegmentStart(9_999, places, {"pack": to_plain(carry, names)}, "1" * 64)
    digests = dict.fromkeys(names, "0" * 16)
    states = [encode_lane(LaneState(n, start, 255, 10**7, "2" * 64, digests)) for n in range(LANES)]
    started = time.perf_counter()
    for n, state in enumerate(states):
        decode_lane(state, n, names)
    print(f"state: {len(states[0]):,} bytes a lane, of which the carry of {SEQ_LEN:,} tokens is most; ", end="")
    print(f"{sum(map(len, states)) / 1e6:.1f} MB for {LANES:,} lanes, decoded in {time.perf_counter() - started:.2f} s")

    for ending in ("jsonl", "parquet") if options.files else ():
        with tempfile.TemporaryDirectory() as name:
            write_files(Path(name), options.files, ending)
            child = subprocess.run([sys.executable, "-c", OPEN, name], capture_output=True, text=True, check=True)
            print(f"{options.files:,} {ending} files: {child.stdout}", end="")


OPEN = r"""
import collections, pathlib, re, sys, time
import orjson, pyarrow.parquet
from torchtitan_zephon.read.settings import SourceConfig
from torchtitan_zephon.read.source import open_source
from torchtitan_zephon.read.store import LocalStore

calls = collections.Counter()
for name in ("open", "open_for_arrow", "may_read"):
    def counted(self, *arguments, name=name, real=getattr(LocalStore, name)):
        calls[name] += 1
        return real(self, *arguments)
    setattr(LocalStore, name, counted)
def most_mb():
    return int(re.search("VmHWM:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[1]) / 1024
before = most_mb()
began = time.perf_counter()
pieces = open_source("s", SourceConfig(path=sys.argv[1])).reader.pieces()
seconds = time.perf_counter() - began
print(f"{len(pieces.sizes):,} pieces in {seconds:.1f} s and {most_mb() - before:.0f} MB; {dict(calls)}")
"""


def write_files(folder: Path, files: int, ending: str) -> None:
    """Small files of the same content, 1,000 a folder."""
    content = b'{"text":"x"}\n'
    if ending == "parquet":
        pq.write_table(
            pa.table({"text": [f"a text of some words, number {n}" for n in range(8)]}), sink := io.BytesIO()
        )
        content = sink.getvalue()
    for k in range(files):
        below = folder / f"{k // 1000:04d}"
        below.mkdir(exist_ok=True)
        (below / f"{k:07d}.{ending}").write_bytes(content)


if __name__ == "__main__":
    main()
