"""The whole product against its bounds: the bare tokenizer, a straight-line script, and a bare gather of ready tokens.

What flows in: a folder of JSONL sources and a tokenizer. What flows out: CPU seconds per million tokens and wall
tokens a second of each, medians of interleaved rounds with their spread, every measurement in a process of its own,
and the ratios that the product is held to. The pipeline has everything on: lanes, mixture, shuffle buffer of 1,024,
digests, ledger. Its first batch and a warm-up are not counted, as they are not for the others.

- bare: `encode_batch_fast` in batches of 200 texts and conversion to numpy, texts in memory.
- straight: read blocks, orjson, fastokens, EOS, labels, positions, cut to rows, SHA-256; no lanes, queues or state.
- gather: rows of a flat memory-mapped array of ids in random order as int64 inputs, labels and positions.

    python benchmarks/ceiling.py CORPUS/jsonl CORPUS/tokenizer [--new-words]
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import orjson
from corpus import folders_of, source_of, texts_of, write_ids, write_new_words
from tokenizers import Tokenizer

from torchtitan_zephon import Pipeline

SEQ_LEN, BATCH, CHARACTERS_A_TOKEN = 2048, 8, 4.3
ROWS = {
    "bare, 1 thread": ("bare", "", 1),
    "pipeline hf, 1 worker": ("pipeline", "hf", 1),
    "bare, 2 threads": ("bare", "", 2),
    "pipeline hf, 2 workers": ("pipeline", "hf", 2),
    "straight": ("straight", "", 1),
    "pipeline fastokens, 1 worker": ("pipeline", "fastokens", 1),
    "pipeline fastokens, 2 workers": ("pipeline", "fastokens", 2),
    "gather of ids": ("gather", "", 1),
    "pipeline of ids, 1 worker": ("ids", "hf", 1),
}
RATIOS = [
    ("CPU", "pipeline hf, 1 worker", "bare, 1 thread"),
    ("wall", "pipeline hf, 2 workers", "bare, 2 threads"),
    ("CPU", "pipeline fastokens, 1 worker", "bare, 1 thread"),
    ("CPU", "pipeline fastokens, 1 worker", "straight"),
    ("wall", "pipeline fastokens, 1 worker", "pipeline fastokens, 2 workers"),
    ("CPU", "pipeline of ids, 1 worker", "gather of ids"),
]

Work = Iterator[int]
"""Gives, whenever asked, how many tokens it has done."""


def bare(options: argparse.Namespace) -> Work:
    tokenizer = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json"))
    texts = itertools.cycle(texts_of(options.corpus, CHARACTERS_A_TOKEN * options.tokens))

    def encode(part: list[str]) -> int:
        ids = (e.ids for e in tokenizer.encode_batch_fast(part, add_special_tokens=False))
        return len(np.fromiter(itertools.chain.from_iterable(ids), np.int32))

    done = 0
    with ThreadPoolExecutor(options.workers) as pool:
        while True:
            parts = [list(itertools.islice(texts, 200)) for _ in range(options.workers)]
            done += sum(pool.map(encode, parts))
            yield done


def straight(options: argparse.Namespace) -> Work:
    from fastokens._native import Tokenizer as Fast

    tokenizer = Fast.from_file(str(options.tokenizer / "tokenizer.json"))
    files = [sorted(f.rglob("*.jsonl")) for f in folders_of(options.corpus)]
    rest, done = np.zeros(0, np.int32), 0
    for file in itertools.cycle(itertools.chain.from_iterable(zip(*files, strict=False))):
        with open(file, "rb") as f:
            while lines := f.readlines(2**20):
                texts = [orjson.loads(line)["text"] for line in lines]
                flat, offsets = tokenizer.encode_batch_flat(texts)
                ids, ends = np.frombuffer(flat, np.int32), np.frombuffer(offsets, np.int64)[1:]
                ids = np.concatenate([rest, np.insert(ids, ends, 1)])
                rows = (len(ids) - 1) // SEQ_LEN
                size = rows * SEQ_LEN
                inputs, labels, rest = ids[:size], ids[1 : size + 1], ids[size:]
                begins = np.concatenate([[0], np.flatnonzero(inputs == 1) + 1])
                positions = np.arange(size) - np.repeat(begins, np.diff(begins, append=size))[:size]
                for r in range(0, size, SEQ_LEN):
                    h = hashlib.sha256(inputs[r : r + SEQ_LEN].data)
                    h.update(labels[r : r + SEQ_LEN].data)
                for r in range(0, size, SEQ_LEN * BATCH):
                    _ = [column[r : r + SEQ_LEN * BATCH].astype(np.int64) for column in (inputs, labels, positions)]
                done += size
                yield done


def gather(options: argparse.Namespace) -> Work:
    ids = np.memmap(options.corpus / "flat.bin", np.int32)
    rows = np.lib.stride_tricks.sliding_window_view(ids, SEQ_LEN + 1)[::SEQ_LEN]
    positions = np.tile(np.arange(SEQ_LEN), (BATCH, 1))
    done = 0
    while True:
        for order in np.array_split(np.random.default_rng(done).permutation(len(rows)), len(rows) // BATCH):
            part = rows[order].astype(np.int64)
            _ = part[:, :-1].copy(), part[:, 1:].copy(), positions.copy()
            done += len(order) * SEQ_LEN
            yield done


def pipeline(options: argparse.Namespace) -> Work:
    with tempfile.TemporaryDirectory() as folder:
        stream = (
            Pipeline(source_of(options.corpus))
            .tokenize(tokenizer_id=str(options.tokenizer), parallelism=options.workers)
            .pack_flat(max_length=SEQ_LEN)
            .shuffle(buffer_size=1024)
            .batch(microbatch_size=BATCH)
            .options(lanes=8, global_batch_size=64, ledger=folder, tokenizer_backend=options.backend)
            .stream
        )
        for _ in stream:
            yield stream.balance.read.tokens


def one(options: argparse.Namespace) -> list[float]:
    """[CPU seconds, wall seconds] per million tokens, behind a warm-up of a quarter of the tokens."""
    work = {"bare": bare, "straight": straight, "gather": gather, "pipeline": pipeline, "ids": pipeline}[options.one]
    counts = work(options)
    warm = next(n for n in counts if n >= options.tokens / 4)
    cpu, wall = time.process_time(), time.perf_counter()
    done = next(n for n in counts if n >= warm + options.tokens) - warm
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    counts.close()
    return [cpu / done * 1e6, wall / done * 1e6]


def measure(options: argparse.Namespace, ids: Path, what: str, backend: str, workers: int) -> list[float]:
    corpus = ids if what in ("ids", "gather") else options.corpus
    # The bare Hugging Face tokenizer is 20 times slower than the rest; a quarter of the tokens says as much.
    tokens = options.tokens / 4 if what == "bare" or (what, backend) == ("pipeline", "hf") else options.tokens
    command = [
        sys.executable,
        __file__,
        str(corpus),
        str(options.tokenizer),
        "--one",
        what,
        "--backend",
        backend or "hf",
    ]
    command += ["--workers", str(workers), "--tokens", str(int(tokens))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: list[float] = json.loads(done.stdout)
    return figures


def main() -> int:
    options = _options()
    if options.one:
        print(json.dumps(one(options)))
        return 0
    with tempfile.TemporaryDirectory() as name:
        if options.new_words:
            options.corpus = write_new_words(Path(name, "words"), options.tokens * 4e-6)
        ids = write_ids(options.corpus, options.tokenizer, Path(name, "tokens"), CHARACTERS_A_TOKEN * 8e6)
        _write_flat(ids)
        found: dict[str, list[list[float]]] = {row: [] for row in ROWS}
        for _ in range(options.rounds):
            for row, how in ROWS.items():
                found[row].append(measure(options, ids, *how))
    print(f"{'':30}  CPU s / M tokens (min, median, max)   tokens / s wall (median)")
    for row, rounds in found.items():
        cpu = [c for c, _ in rounds]
        wall = statistics.median(w for _, w in rounds)
        print(f"{row:30} {min(cpu):9.4f} {statistics.median(cpu):9.4f} {max(cpu):9.4f} {1e6 / wall:27,.0f}")
    for kind, a, b in RATIOS:
        ratios = sorted(x[kind == "wall"] / y[kind == "wall"] for x, y in zip(found[a], found[b], strict=True))
        print(f"{kind:4} of {a} / {b}: {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})")
    return 0


def _write_flat(ids: Path) -> None:
    import pyarrow.parquet as pq

    column = pq.read_table(ids / "ids")["text"].combine_chunks()
    column.flatten().to_numpy().astype(np.int32).tofile(ids / "flat.bin")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--tokens", type=float, default=20e6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new-words", action="store_true", help="a corpus of never-repeated words in place of CORPUS")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--backend", default="hf", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=1, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
