"""State size and restore time early and late in a run.

What flows in: a folder of JSONL sources and a tokenizer. What flows out: bytes of state a lane and
seconds from `load_state_dict` to the first batch, in a fresh process and after imports, at steps
around 10 and around 1,000. A restore replays the segment at hand, so its cost follows how far the
lanes are into it; the table gives the sequences replayed, and the ratio is of the means.

    python benchmarks/restore.py CORPUS/jsonl CORPUS/tokenizer
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from corpus import source_of

from torchtitan_zephon import Pipeline


def build(corpus: Path, tokenizer: Path) -> Pipeline:
    return (
        Pipeline(source_of(corpus))
        .tokenize(tokenizer_id=str(tokenizer), parallelism=2)
        .pack_flat(max_length=2048)
        .shuffle(buffer_size=128)
        .batch(microbatch_size=8)
        .options(lanes=8, global_batch_size=128)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--restore", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.restore:
        print(json.dumps(restore(options)))
        return 0
    groups = {"early": [6, 8, 10, 12, 14], "late": [996, 998, 1000, 1002, 1004]}
    states = states_at(build(options.corpus, options.tokenizer), sorted(itertools.chain(*groups.values())))
    means: dict[str, list[float]] = {}
    print("   step  bytes/lane (max)  of it carry  carry tokens  replayed sequences  restore s")
    for name, steps in groups.items():
        seconds, replayed = [], []
        for step in steps:
            state = states[step]
            lanes = [json.loads(v) for v in state["lane"].values()]
            largest = max(state["lane"].values(), key=len)
            carry = json.loads(largest)["start"]["carries"].get("pack", {"ids": ""})["ids"]
            took = fresh(options, state)
            seconds.append(took)
            replayed.append(sum(lane["delivered"] for lane in lanes))
            print(
                f"{step:7d} {len(largest):17,d} {len(carry):12,d} {len(base64.b64decode(carry)) // 3:13,d} "
                f"{replayed[-1]:19,d} {took:10.2f}"
            )
        means[name] = [statistics.mean(seconds), statistics.mean(replayed)]
    (early, early_replayed), (late, late_replayed) = means["early"], means["late"]
    print(
        f"restore, late / early: {late / early:.2f}   replayed, late / early: {late_replayed / early_replayed:.2f}   "
        f"per replayed sequence: {late / late_replayed / (early / early_replayed):.2f}"
    )
    return 0


def states_at(pipeline: Pipeline, steps: list[int]) -> dict[int, dict]:
    """The state at the end of each of ``steps``, in one run."""
    stream, states = pipeline.stream, {}
    for done, batch in enumerate(pipeline, 1):
        if done % stream.layout.local_batches == 0 and batch.step in steps:
            states[batch.step] = stream.state_dict()
            if batch.step == steps[-1]:
                break
    pipeline.close()
    return states


def fresh(options: argparse.Namespace, state: dict) -> float:
    """Seconds to the first batch in a new process."""
    file = Path(sys.argv[0]).resolve()
    text = json.dumps({"stream": state["stream"].decode(), "lane": {k: v.decode() for k, v in state["lane"].items()}})
    command = [sys.executable, str(file), str(options.corpus), str(options.tokenizer), "--restore", "/dev/stdin"]
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=True)
    return float(json.loads(done.stdout))


def restore(options: argparse.Namespace) -> float:
    text = json.loads(options.restore.read_text("utf-8"))
    state = {"stream": text["stream"].encode(), "lane": {k: v.encode() for k, v in text["lane"].items()}}
    started = time.perf_counter()
    pipeline = build(options.corpus, options.tokenizer)
    pipeline.load_state_dict(state)
    next(iter(pipeline))
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
