"""How long the start takes: the import, and from there to the first batch, without and with what a machine has kept.

What flows in: a folder of JSONL sources and a tokenizer. What flows out: medians of fresh processes, in seconds: the
import of the package, that of the pipeline with numpy and pyarrow, and from building the pipeline to its first batch
(listing, fingerprints, tokenizer, self-check, tokens per byte, packing) with an empty cache folder and a filled one.

    python benchmarks/start.py CORPUS/jsonl CORPUS/tokenizer
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = 7
SCRIPT = """
import sys, time
begin = time.perf_counter()
import torchtitan_zephon
package = time.perf_counter()
from torchtitan_zephon import Pipeline
imported = time.perf_counter()
sys.path.insert(0, {here!r})
from pathlib import Path
from corpus import source_of
ready = time.perf_counter()
pipeline = (
    Pipeline(source_of(Path({corpus!r}))).tokenize(tokenizer_id={tokenizer!r}).pack_flat(max_length=2048)
    .shuffle(buffer_size=128).batch(microbatch_size=8)
    .options(lanes=8, global_batch_size=64, tokenizer_backend={backend!r}, runner={runner!r})
)
next(iter(pipeline))
print([package - begin, imported - package, time.perf_counter() - ready])
pipeline.close()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    options = parser.parse_args()
    found: dict[str, list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        for number in range(ROUNDS):
            for backend, runner in (("fastokens", "thread"), ("hf", "thread"), ("fastokens", "process")):
                for kept in ("empty", "filled"):
                    script = SCRIPT.format(
                        here=str(Path(__file__).resolve().parent),
                        corpus=str(options.corpus),
                        tokenizer=str(options.tokenizer),
                        backend=backend,
                        runner=runner,
                    )
                    environment = {**os.environ, "XDG_CACHE_HOME": str(Path(name, f"{backend}-{runner}-{number}"))}
                    command = [sys.executable, "-c", script]
                    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                    found.setdefault(f"{backend}, {runner}, cache {kept}", []).append(json.loads(done.stdout))
    print(f"{'seconds':34} import   pipeline's import   first batch (min, median, max)")
    for row, runs in found.items():
        package, imported, first = zip(*runs, strict=True)
        print(
            f"{row:34} {statistics.median(package):6.3f} {statistics.median(imported):19.3f} "
            f"{min(first):12.2f} {statistics.median(first):7.2f} {max(first):7.2f}"
        )


if __name__ == "__main__":
    main()
