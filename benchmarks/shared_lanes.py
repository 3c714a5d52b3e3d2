"""What losing one rank of eight costs the loader: 16 lanes and a global batch of 112, on 8 ranks and on 7.

What flows in: a folder of JSONL sources and a tokenizer. What flows out: for each number of ranks, CPU seconds of every
rank's loader over the same steps, one rank after the other in this process; the sum and the slowest rank, and their
ratios to 8 ranks. Seven ranks feed 8/7 of the sequences each; beyond that is the price of sharing lanes.

    python benchmarks/shared_lanes.py CORPUS/jsonl CORPUS/tokenizer
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from corpus import source_of

from torchtitan_zephon import Pipeline

LANES, BATCH, STEPS, ROUNDS = 16, 112, 30, 3


def build(corpus: Path, tokenizer: Path) -> Pipeline:
    return (
        Pipeline(source_of(corpus))
        .tokenize(tokenizer_id=str(tokenizer), parallelism=1)
        .pack_flat(max_length=512)
        .shuffle(buffer_size=128)
        .batch(microbatch_size=1)
        .options(lanes=LANES, global_batch_size=BATCH, shared_lanes=True)
    )


def cpu_seconds(pipeline: Pipeline, degree: int) -> list[float]:
    """Of each rank, for steps 1 to ``STEPS``."""
    seconds = []
    for rank in range(degree):
        stream = pipeline.for_rank(rank, degree)
        started = time.process_time()
        for batch in stream:
            if batch.step > STEPS:
                break
        seconds.append(time.process_time() - started)
        stream.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    options = parser.parse_args()
    pipeline = build(options.corpus, options.tokenizer)
    next(iter(pipeline.for_rank(0, 1)))  # the token estimate is measured once a process
    print("round  ranks  lanes a rank  CPU s, sum  CPU s, slowest rank")
    rounds: list[dict[int, list[float]]] = []
    for number in range(ROUNDS):
        rounds.append({degree: cpu_seconds(pipeline, degree) for degree in (8, 7)})
        for degree, seconds in rounds[-1].items():
            lanes = [len(pipeline.for_rank(rank, degree).layout.own_lanes) for rank in range(degree)]
            print(f"{number:5d} {degree:6d} {min(lanes):7d} to {max(lanes)} {sum(seconds):11.2f} {max(seconds):20.2f}")
    for name, of in (("sum", sum), ("slowest rank", max)):
        ratios = sorted(of(r[7]) / of(r[8]) for r in rounds)
        print(f"7 ranks / 8 ranks, {name}: {ratios[len(ratios) // 2]:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
