"""How well the shares of sources are kept, with shares that are measured and with those of the estimate alone.

What flows in: nothing; the corpora are made here. What flows out: for each corpus the largest error of a source's share
of the delivered tokens, at several times, beside what was asked for: 1 % plus the largest chunk's tokens over the
tokens delivered. Tokens are bytes or words, by a tokenizer made here, so that their number a byte is known.

    python benchmarks/shares.py
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tokenizers

from torchtitan_zephon import Dataset, Pipeline, StaticMixtureWorkSource
from torchtitan_zephon.run.stream import RankStream

SEQ_LEN, LANES, FLUSH = 256, 8, 256
CHUNK_BYTES = 32 * 1024
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_tokenizer(folder / "tokenizer")
        for corpus, (weights, write) in CORPORA.items():
            (folder / corpus).mkdir()
            write(folder / corpus)
            for shares in ("estimated", "measured"):
                print(f"{corpus}, shares {shares}")
                measure(folder / corpus, folder / "tokenizer", weights, shares)


def measure(folder: Path, tokenizer: Path, weights: dict[str, float], shares: str) -> None:
    stream = stream_of(folder, tokenizer, weights, shares)
    program = stream.program
    checks = [LANES * FLUSH * n for n in (1, 2, 4, 8, 16)]  # sequences, in segments of the planned length
    done = 0
    for batch in stream:
        done += len(batch.sequences)
        if checks and done >= checks[0]:
            checks.pop(0)
            delivered = np.array(stream.figures.delivered_tokens)
            part = delivered / delivered.sum()
            errors = {n: part[s] - weights[n] / sum(weights.values()) for s, n in enumerate(program.names)}
            print(
                f"  {done * SEQ_LEN / 1e6:6.2f} M tokens, {done // LANES // FLUSH:3d} segments a lane: "
                + ", ".join(f"{n} {e:+.4f}" for n, e in errors.items())
            )
        if not checks:
            break
    stream.close()


def stream_of(folder: Path, tokenizer: Path, weights: dict[str, float], shares: str) -> RankStream:
    source = StaticMixtureWorkSource(
        datasets=[Dataset.from_path(name, str(folder / name)) for name in weights],
        mixture=weights,
        seed=7,
        chunk_bytes=CHUNK_BYTES,
    )
    pipeline = Pipeline(source).tokenize(tokenizer_id=str(tokenizer)).pack_flat(max_length=SEQ_LEN)
    pipeline = pipeline.shuffle(buffer_size=64, seed=1).batch(microbatch_size=LANES)
    return pipeline.options(lanes=LANES, global_batch_size=LANES, flush_every_sequences=FLUSH, shares=shares).stream


def save_tokenizer(folder: Path) -> None:
    """Words of eight letters are a token, and other letters are one each."""
    folder.mkdir()
    vocabulary = {word: i for i, word in enumerate([*LETTERS, " ", "<eos>"])}
    merges = []
    for a in "abcd":
        parts = [a]
        while len(parts[-1]) < 8:
            last = parts[-1]
            parts.append(last + last)
            merges.append((last, last))
            vocabulary.setdefault(parts[-1], len(vocabulary))
    model = tokenizers.models.BPE(vocabulary, merges)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<eos>"}')


def text(rng: np.random.Generator, words: int, rich: float) -> str:
    """Words of eight letters: a token each, or with probability ``rich`` a token a letter."""
    short = ["aaaaaaaa", "bbbbbbbb", "cccccccc", "dddddddd"]
    letters = np.array(list(LETTERS[4:]))
    return " ".join(
        "".join(rng.choice(letters, 8)) if r < rich else short[k]
        for r, k in zip(rng.random(words), rng.integers(4, size=words), strict=True)
    )


def write(file: Path, num_bytes: int, rich: Callable[[float], float], seed: int, words: int = 40) -> None:
    rng = np.random.default_rng(seed)
    with open(file, "w") as f:
        while f.tell() < num_bytes:
            n = 1 + int(rng.exponential(words))
            f.write(json.dumps({"text": text(rng, n, rich(f.tell() / num_bytes))}) + "\n")


def doubling(folder: Path, name: str = "web", mb: float = 4) -> None:
    """Eight files whose tokens per byte double from the first to the last."""
    (folder / name).mkdir()
    for i in range(8):
        write(folder / name / f"part-{i}.jsonl", int(mb * 1e6 / 8), lambda at, i=i: 0.1 + 0.15 * (i + at) / 8, i)


def flat(folder: Path, name: str, mb: float, rich: float, words: int = 40) -> None:
    (folder / name).mkdir()
    write(folder / name / "part.jsonl", int(mb * 1e6), lambda _: rich, 99, words)


def two(folder: Path) -> None:
    doubling(folder)
    flat(folder, "books", 3, 0.15)


def three(folder: Path) -> None:
    """One of a large record, one small and one of ordinary documents."""
    flat(folder, "books", 4, 0.15, words=2000)
    flat(folder, "code", 0.3, 0.6, words=20)
    doubling(folder, "web", 3)


def giant(folder: Path) -> None:
    flat(folder, "web", 4, 0.15)
    flat(folder, "books", 0.4, 0.15)
    with open(folder / "books" / "part.jsonl", "a") as f:
        f.write(json.dumps({"text": text(np.random.default_rng(5), 400_000, 0.1)}) + "\n")


CORPORA = {
    "tokens per byte double": ({"web": 0.5, "books": 0.5}, two),
    "three sources": ({"books": 0.5, "code": 0.3, "web": 0.2}, three),
    "one giant record": ({"web": 0.8, "books": 0.2}, giant),
}

if __name__ == "__main__":
    main()
