"""What the loader costs the trainer's process: a local batch's hand-over, and the slowdown of a training loop.

What flows in: a folder of JSONL sources and a tokenizer. What flows out: milliseconds to take a local batch of 8 x
2048 that is ready, with either runner; and the time of a training loop that never lets go of the interpreter (about
0.1 s of plain Python a step, one local batch a step):

    none      without a loader
    apart     while an unrelated process reads the same stream at the same pace: what the machine shares (cores, caches)
    thread    taking its batches from a loader in threads
    process   taking them from a loader in a process

Rounds are interleaved, each begins once its loader is warm, and the figures are medians. Other work on the machine
disturbs wall time, so the table also gives it less what the loop's thread waited for a core (the kernel's `schedstat`).

    python benchmarks/handover.py CORPUS/jsonl CORPUS/tokenizer
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from corpus import source_of

from torchtitan_zephon import Pipeline, RankStream

STEP_S = 0.1
WARM_STEPS = 4
Runner = Literal["thread", "process"]


def build(options: argparse.Namespace, runner: Runner) -> RankStream:
    return (
        Pipeline(source_of(options.corpus))
        .tokenize(tokenizer_id=str(options.tokenizer), parallelism=options.workers)
        .pack_flat(max_length=2048)
        .shuffle(buffer_size=128)
        .batch(microbatch_size=8)
        .options(lanes=8, global_batch_size=8, runner=runner)
        .for_rank(0, 1)
    )


def work(count: int) -> int:
    """Plain Python, which holds the interpreter but for its switch interval."""
    x = 1
    for i in range(count):
        x = (x * 1103515245 + i) & 0x7FFFFFFF
    return x


def calibrated() -> int:
    """Iterations of ``work`` that take ``STEP_S`` when nothing disturbs them."""
    best = min(_seconds(work, 200_000) for _ in range(20))
    return round(200_000 * STEP_S / best)


def _seconds(call: Any, *arguments: Any) -> float:
    begin = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begin


def loop(batches: Iterator[Any], steps: int, count: int) -> tuple[float, float]:
    """Seconds a step: wall, and wall less the time this thread was ready to run and had no core."""
    wall, queued = time.perf_counter(), core_wait()
    for _ in range(steps):
        next(batches)
        work(count)
    wall = time.perf_counter() - wall
    return wall / steps, (wall - (core_wait() - queued)) / steps


def core_wait() -> float:
    """Seconds this thread was ready to run and had no core."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def handover(options: argparse.Namespace, runner: Runner) -> list[float]:
    """Milliseconds of each of many hand-overs of a batch that is ready."""
    stream = build(options, runner)
    batches, taken = iter(stream), []
    for step in range(options.handovers + WARM_STEPS):
        time.sleep(0.05)  # the loader's time to get ahead; the thread runner packs on the taker's
        seconds = _seconds(next, batches)
        if step >= WARM_STEPS:
            taken.append(1000 * seconds)
    stream.close()
    return sorted(taken)


@contextmanager
def apart(options: argparse.Namespace) -> Iterator[None]:
    """Another process reads on, a local batch every ``STEP_S``."""
    command = [sys.executable, __file__, str(options.corpus), str(options.tokenizer), "--workers", str(options.workers)]
    with subprocess.Popen([*command, "--apart"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.kill()


def read_on(options: argparse.Namespace) -> None:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # as the loader's process is
    begin = time.perf_counter()
    for step, _ in enumerate(build(options, "thread")):
        if step == WARM_STEPS:
            begin = time.perf_counter()
            print("warm", flush=True)
        time.sleep(max(0.0, begin + (step - WARM_STEPS) * STEP_S - time.perf_counter()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--handovers", type=int, default=200)
    parser.add_argument("--apart", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.apart:
        return read_on(options)
    runners: tuple[Runner, ...] = ("thread", "process")
    print("runner    ms a hand-over: median, 95 %, 99 %, most")
    for runner in runners:
        taken = handover(options, runner)
        marks = [taken[int(q * (len(taken) - 1))] for q in (0.5, 0.95, 0.99, 1)]
        print(f"{runner:8}", *(f"{ms:7.3f}" for ms in marks))
    count = calibrated()
    rounds: dict[str, list[tuple[float, float]]] = {"none": [], "apart": [], "thread": [], "process": []}
    for _ in range(options.rounds):
        rounds["none"].append(loop(itertools.repeat(None), options.steps, count))
        with apart(options):
            rounds["apart"].append(loop(itertools.repeat(None), options.steps, count))
        for runner in runners:
            stream = build(options, runner)
            batches = iter(stream)
            loop(batches, WARM_STEPS, count)
            rounds[runner].append(loop(batches, options.steps, count))
            stream.close()
    print(
        "loader    wall ms a step (least, median)   less waits for a core   ratio to none, to apart: wall; less waits"
    )
    middle = {
        name: [statistics.median(column) for column in zip(*values, strict=True)] for name, values in rounds.items()
    }
    for name, values in rounds.items():
        wall, less = middle[name]
        ratios = [middle[name][k] / middle[to][k] for k in (0, 1) for to in ("none", "apart")]
        print(
            f"{name:8} {1000 * min(w for w, _ in values):10.1f} {1000 * wall:8.1f} {1000 * less:22.1f}"
            f" {ratios[0]:19.3f} {ratios[1]:6.3f}; {ratios[2]:6.3f} {ratios[3]:6.3f}"
        )


if __name__ == "__main__":
    main()
