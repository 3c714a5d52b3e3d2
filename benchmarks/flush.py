"""What `flush_every_sequences` and `chunk_bytes` buy and cost: the tables that their defaults were chosen from.

What flows in: a folder of JSONL sources and a tokenizer. What flows out, for each flush interval: the seconds from
`load_state_dict` to the first batch in a fresh process, after imports, at the place in a segment where most is to be
read again (8 lanes, 2 workers, both tokenizer back-ends, `wrap`); the share of positions that `first_fit` pads; and how
well a lane is shuffled: how far a sequence moves, and how many of the 32 sequences around it are of its own chunk (by
the real buffer on numbers; 32 sequences a chunk). For each chunk size: how far single steps stray from the weights.

    python benchmarks/flush.py CORPUS/jsonl CORPUS/tokenizer
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from corpus import source_of

from torchtitan_zephon import Pipeline
from torchtitan_zephon.ops.shuffle import ShuffleBuffer

SEQ_LEN, LANES, LANE_SEQUENCES, CHUNK_SEQUENCES = 2048, 8, 8, 32


def pipeline_of(options: argparse.Namespace, pack: str = "wrap", lanes: int = LANES) -> Pipeline:
    return (
        Pipeline(source_of(options.corpus, chunk_bytes=options.chunk_bytes))
        .tokenize(tokenizer_id=str(options.tokenizer), parallelism=2)
        .pack_flat(max_length=SEQ_LEN, algorithm=pack)
        .shuffle(buffer_size=options.buffer)
        .batch(microbatch_size=LANE_SEQUENCES)
        .options(
            lanes=lanes,
            global_batch_size=lanes * LANE_SEQUENCES,
            flush_every_sequences=options.flush,
            tokenizer_backend=options.backend,
            allow_changes=["tokenizer_backend"],
        )
    )


def deepest(options: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """A state with the most sequences to read again, and how many."""
    stream = pipeline_of(options).stream
    best: tuple[dict[str, Any], int] = ({}, -1)
    for done, _ in enumerate(stream, 1):
        if done % stream.layout.local_batches == 0:
            state = stream.state_dict()
            replayed = sum(json.loads(lane)["delivered"] for lane in state["lane"].values())
            best = max(best, (state, replayed), key=lambda found: found[1])
            if stream.step * LANE_SEQUENCES > 2.5 * options.flush:
                break
    stream.close()
    return best


def restore(options: argparse.Namespace) -> float:
    """Seconds to the first batch, in this process."""
    text = json.loads(sys.stdin.read())
    state = {"stream": text["stream"].encode(), "lane": {k: v.encode() for k, v in text["lane"].items()}}
    started = time.perf_counter()
    pipeline = pipeline_of(options)
    pipeline.load_state_dict(state)
    next(iter(pipeline))
    return time.perf_counter() - started


def fresh(options: argparse.Namespace, state: dict[str, Any], backend: str) -> float:
    text = json.dumps({"stream": state["stream"].decode(), "lane": {k: v.decode() for k, v in state["lane"].items()}})
    command = [sys.executable, __file__, str(options.corpus), str(options.tokenizer), "--restore"]
    command += ["--flush", str(options.flush), "--buffer", str(options.buffer), "--backend", backend]
    return float(subprocess.run(command, input=text, text=True, stdout=subprocess.PIPE, check=True).stdout)


def padded(options: argparse.Namespace) -> float:
    """Share of positions that `first_fit` pads over three segments."""
    stream = pipeline_of(options, "first_fit").stream
    next(batch for batch in stream if batch.step * LANE_SEQUENCES > 3 * options.flush)
    balance = stream.balance
    stream.close()
    return balance.padded / (balance.padded + balance.tokens_out)


def shuffled(flush: int, size: int) -> tuple[float, float]:
    """Mean distance a sequence moves; how many of the 16 before it and the 16 behind it are of its chunk."""
    out: list[int] = []
    for segment in range(max(4, 4096 // flush)):
        buffer: ShuffleBuffer[int] = ShuffleBuffer(size, segment)
        for n in range(flush):
            out += buffer.push(segment * flush + n)
        out += buffer.flush()
    order = np.array(out)
    chunks = order // CHUNK_SEQUENCES
    near = [chunks[k:] == chunks[:-k] for k in range(1, 17)]
    return float(np.abs(order - np.arange(len(order))).mean()), 2 * sum(float(same.mean()) for same in near)


def spread(options: argparse.Namespace) -> float:
    """Standard deviation of a source's share of single steps of 256 sequences, over that of a fair draw."""
    stream = pipeline_of(options, lanes=32).stream
    shares: list[float] = []
    for _, batches in itertools.groupby(stream, key=lambda batch: batch.step):
        sequences = [s for batch in batches for s in batch.sequences]
        ends = [(s, [*s.pieces[1:, 0].tolist(), SEQ_LEN]) for s in sequences]
        tokens = sum(end - int(p[0]) for s, e in ends for p, end in zip(s.pieces, e, strict=True) if p[1] == 0)
        shares.append(tokens / len(sequences) / SEQ_LEN)
        if len(shares) == 80:
            break
    stream.close()
    return statistics.pstdev(shares) / (0.25 / len(sequences)) ** 0.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--flush", type=int, default=256, help=argparse.SUPPRESS)
    parser.add_argument("--buffer", type=int, default=128, help=argparse.SUPPRESS)
    parser.add_argument("--chunk-bytes", type=int, default=256 * 1024, help=argparse.SUPPRESS)
    parser.add_argument("--backend", default="fastokens", help=argparse.SUPPRESS)
    parser.add_argument("--restore", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.restore:
        print(restore(options))
        return 0
    print("flush  buffer  replayed  restore s: fastokens   hf   first_fit pads   moves by   near of its chunk")
    for flush in (64, 128, 256, 512, 1024):
        options.flush, options.buffer = flush, max(16, flush // 2)
        state, replayed = deepest(options)
        quick, slow = (statistics.median(fresh(options, state, b) for _ in range(3)) for b in ("fastokens", "hf"))
        moved, near = shuffled(flush, options.buffer)
        print(
            f"{flush:5d} {options.buffer:7d} {replayed:9,d} {quick:21.2f} {slow:6.2f} {padded(options):14.1%} "
            f"{moved:10.1f} {near:15.1f}",
            flush=True,
        )
    print("chunk KiB   share of single steps strays, in fair draws of sequences")
    options.flush, options.buffer = 256, 128
    for kib in (64, 128, 256, 512, 1024):
        options.chunk_bytes = kib * 1024
        print(f"{kib:9d} {spread(options):10.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
