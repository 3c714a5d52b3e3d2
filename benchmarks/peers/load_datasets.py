"""Hugging Face `datasets`, streaming: sources interleaved equally, tokenised, packed and shuffled by user code.

The rows of a batch are tokenised at once with the same tokenizer as everywhere; `datasets` itself reads and parses.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator

import fsspec
import numpy as np
from datasets import interleave_datasets, load_dataset
from tokenizers import Tokenizer
from worker import Job

DOCUMENTS = 64
BUFFER = 128


class Loader:
    def __init__(self, job: Job, states: list[bytes]) -> None:
        self.job = job
        self.tokenizer = Tokenizer.from_file(str(job.tokenizer / "tokenizer.json"))
        settings = json.loads((job.tokenizer / "tokenizer_config.json").read_text("utf-8"))
        self.bos, self.eos = (self.tokenizer.token_to_id(settings[name]) for name in ("bos_token", "eos_token"))
        options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
        bucket = fsspec.filesystem("s3", **options)
        kind = "parquet" if job.remote.endswith("parquet") else "json"
        streams = [
            load_dataset(
                kind,
                data_files=[f"s3://{name}" for name in sorted(bucket.find(f"{job.remote}/{source.name}"))],
                split="train",
                streaming=True,
                storage_options=options,
            ).select_columns(["text"])
            for source in job.sources()
        ]
        self.data = interleave_datasets(streams, probabilities=[1 / len(streams)] * len(streams), seed=1)

    def __iter__(self) -> Iterator[np.ndarray]:
        draw, buffer, batch = random.Random(1), [], []
        for sequence in self.packed():
            if len(buffer) < BUFFER:
                buffer.append(sequence)
                continue
            at = draw.randrange(BUFFER)
            batch.append(buffer[at])
            buffer[at] = sequence
            if len(batch) == self.job.rows:
                yield np.stack(batch)
                batch = []

    def packed(self) -> Iterator[np.ndarray]:
        rest = np.empty(0, np.int32)
        while True:
            for rows in self.data.iter(batch_size=DOCUMENTS):
                encodings = self.tokenizer.encode_batch_fast(rows["text"], add_special_tokens=False)
                parts = [np.array([self.bos, *e.ids, self.eos], np.int32) for e in encodings]
                tokens = np.concatenate([rest, *parts])
                full = len(tokens) // self.job.tokens * self.job.tokens
                yield from tokens[:full].reshape(-1, self.job.tokens)
                rest = tokens[full:]

    def state(self) -> bytes:
        return json.dumps(self.data.state_dict()).encode()

    def close(self) -> None:
        del self.data
