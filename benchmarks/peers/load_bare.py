"""The ceiling: `encode_batch_fast` and numpy over texts that are already in memory, on as many threads as workers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from worker import Job

BATCH_DOCUMENTS = 24  # about the tokens of a loader's batch, 8 x 2048
TEXT_CHARACTERS = 64_000_000


class Loader:
    def __init__(self, job: Job, _: list[bytes]) -> None:
        self.tokenizer = Tokenizer.from_file(str(job.tokenizer / "tokenizer.json"))
        texts = list(_texts(job))
        self.parts = [texts[i : i + BATCH_DOCUMENTS] for i in range(0, len(texts), BATCH_DOCUMENTS)]
        self.pool = ThreadPoolExecutor(job.workers)
        self.ahead = 2 * job.workers

    def __iter__(self) -> Iterator[np.ndarray]:
        parts = itertools.cycle(self.parts)
        waiting = [self.pool.submit(self.encode, part) for part in itertools.islice(parts, self.ahead)]
        for part in parts:
            waiting.append(self.pool.submit(self.encode, part))
            yield waiting.pop(0).result()

    def encode(self, texts: list[str]) -> np.ndarray:
        encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return np.fromiter(itertools.chain.from_iterable(e.ids for e in encodings), np.int32)[None]

    def state(self) -> bytes:
        return b""

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)


def _texts(job: Job) -> Iterator[str]:
    """The sources' documents in turns, so that each has given as many characters as the others."""
    sources = [_read(folder) for folder in job.sources()]
    sizes = [0] * len(sources)
    while sum(sizes) < TEXT_CHARACTERS:
        at = sizes.index(min(sizes))
        text = next(sources[at])
        sizes[at] += len(text)
        yield text


def _read(folder: Path) -> Iterator[str]:
    for file in itertools.cycle(sorted(folder.glob("*.jsonl"))):
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)["text"]
