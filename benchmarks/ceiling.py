"""Tokens per CPU second of the whole pipeline against the bare tokenizer, in one run.

What flows in: a folder of JSONL shards (two or more subfolders are sources) and a tokenizer. What
flows out: CPU seconds per million tokens for (a) `encode_batch_fast` + numpy over the texts the
pipeline read, already parsed, on one thread; (b) the pipeline: read, parse, tokenise, wrap pack,
shuffle, batch, digest, ledger. Rounds are interleaved; the ratio is of medians.

    python benchmarks/ceiling.py CORPUS/jsonl CORPUS/tokenizer --tokens 4000000 --rounds 3
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
from tokenizers import Tokenizer

from torchtitan_zephon import Dataset, Pipeline, StaticMixtureWorkSource
from torchtitan_zephon.read.sources import open_source

BATCH_DOCUMENTS = 64


def main() -> int:
    options = _options()
    folders = sorted(p for p in options.corpus.iterdir() if p.is_dir()) or [options.corpus]
    texts = _texts(folders, options.tokens)
    tokenizer = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json"))
    rounds: dict[str, list[tuple[float, float]]] = {"bare": [], "pipeline": []}
    for _ in range(options.rounds):
        rounds["bare"].append(_timed(lambda: _bare(tokenizer, texts)))
        rounds["pipeline"].append(_timed(lambda: _pipeline(folders, options)))
    print(f"{'':10} CPU s / M tokens (min, median, max)   tokens / s wall (median)")
    for name, values in rounds.items():
        cpu = [c for c, _ in values]
        wall = statistics.median(w for _, w in values)
        print(f"{name:10} {min(cpu):8.3f} {statistics.median(cpu):8.3f} {max(cpu):8.3f} {1e6 / wall:27,.0f}")
    bare, ours = (statistics.median(c for c, _ in rounds[k]) for k in ("bare", "pipeline"))
    print(
        f"pipeline CPU / bare CPU: {ours / bare:.3f}   (tokens per CPU second: {bare / ours:.3f} of the bare tokenizer)"
    )
    return 0


def _timed(run) -> tuple[float, float]:
    """(CPU seconds, wall seconds) per million tokens."""
    cpu, wall = time.process_time(), time.perf_counter()
    tokens = run()
    return (time.process_time() - cpu) / tokens * 1e6, (time.perf_counter() - wall) / tokens * 1e6


def _texts(folders: list[Path], tokens: int) -> list[str]:
    """About ``tokens`` tokens of text, shared equally between the sources."""
    texts: list[str] = []
    for folder in folders:
        source = open_source(folder.name, str(folder), "text")
        from torchtitan_zephon.plan.chunking import cut

        table, size = cut(0, source.reader.pieces(), 2**18, 1), 0
        for run in range(table.num_runs):
            chunk_texts = source.texts(table.chunk(0, run, 0)[0], ()).texts
            texts += chunk_texts
            size += sum(map(len, chunk_texts))
            if size > 4.1 * tokens / len(folders):
                break
    return texts


def _bare(tokenizer: Tokenizer, texts: list[str]) -> int:
    total = 0
    for i in range(0, len(texts), BATCH_DOCUMENTS):
        encodings = tokenizer.encode_batch_fast(texts[i : i + BATCH_DOCUMENTS], add_special_tokens=False)
        total += len(np.fromiter(itertools.chain.from_iterable(e.ids for e in encodings), np.int32))
    return total


def _pipeline(folders: list[Path], options: argparse.Namespace) -> int:
    source = StaticMixtureWorkSource(
        datasets=[Dataset.from_path(f.name, str(f)) for f in folders], mixture={f.name: 1.0 for f in folders}, seed=1
    )
    with tempfile.TemporaryDirectory() as folder:
        pipeline = (
            Pipeline(source)
            .tokenize(tokenizer_id=str(options.tokenizer), parallelism=options.workers)
            .pack_flat(max_length=2048)
            .shuffle(buffer_size=options.buffer)
            .batch(microbatch_size=8)
            .options(lanes=options.lanes, global_batch_size=8 * options.lanes, ledger=folder)
        )
        tokens = 0
        for batch in pipeline:
            tokens += batch.input.size
            if tokens >= options.tokens:
                break
        # Tokens read ahead cost CPU too and are not in the batches yet: count what was tokenised.
        balance = pipeline.stream.balance
        pipeline.close()
        return balance.tokens_in


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--tokens", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--buffer", type=int, default=1024)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
