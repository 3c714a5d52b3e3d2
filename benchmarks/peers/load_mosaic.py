"""Mosaic Streaming: MDS, two weighted streams, tokenised in its worker processes, packed and shuffled by user code.

The packing stands around the loader, in the training process, as documents arrive; so the state is that of the
StreamingDataLoader and what the packer and the shuffle buffer hold at a checkpoint is lost.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import numpy as np
from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from tokenizers import Tokenizer
from worker import Job

DOCUMENTS = 64
BUFFER = 128


def prepare(job: Job) -> None:
    for source in job.sources():
        with MDSWriter(out=str(job.prepared / "mds" / source.name), columns={"text": "str"}) as writer:
            for file in sorted(source.glob("*.jsonl")):
                with file.open("rb") as lines:
                    for line in lines:
                        writer.write({"text": json.loads(line)["text"]})


class Tokenized(StreamingDataset):
    """Documents as int32 ids with bos and eos."""

    def __init__(self, job: Job) -> None:
        remote = [f"{job.remote}/{s.name}" if job.remote else None for s in job.sources()]
        streams = [
            Stream(remote=url, local=str(job.prepared / ("fetched" if url else "mds") / s.name), proportion=1.0)
            for url, s in zip(remote, job.sources(), strict=True)
        ]
        super().__init__(streams=streams, batch_size=DOCUMENTS)
        self.file = str(job.tokenizer / "tokenizer.json")
        settings = json.loads((job.tokenizer / "tokenizer_config.json").read_text("utf-8"))
        self.names = settings["bos_token"], settings["eos_token"]
        self.tokenizer: Tokenizer | None = None

    def __getitem__(self, at: int) -> np.ndarray:
        if self.tokenizer is None:  # in each worker process
            self.tokenizer = Tokenizer.from_file(self.file)
            self.bos, self.eos = map(self.tokenizer.token_to_id, self.names)
        text = super().__getitem__(at)["text"]
        ids = self.tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return np.array([self.bos, *ids, self.eos], np.int32)


class Loader:
    def __init__(self, job: Job, states: list[bytes]) -> None:
        if job.world == 1:
            clean_stale_shared_memory()
        self.job = job
        self.loader = StreamingDataLoader(
            Tokenized(job), batch_size=DOCUMENTS, num_workers=job.workers, collate_fn=_column, persistent_workers=True
        )
        if states:
            self.loader.load_state_dict(json.loads(states[0]))

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
        """Sequences of the documents of epoch after epoch, cut where they are full."""
        rest = np.empty(0, np.int32)
        while True:
            for batch in self.loader:
                tokens = np.concatenate([rest, *batch["ids"]])
                full = len(tokens) // self.job.tokens * self.job.tokens
                yield from tokens[:full].reshape(-1, self.job.tokens)
                rest = tokens[full:]

    def state(self) -> bytes:
        return json.dumps(self.loader.state_dict()).encode()

    def close(self) -> None:
        del self.loader


def _column(documents: list[np.ndarray]) -> dict[str, list[np.ndarray]]:
    """A dict, for the loader counts the documents of a batch by the length of its first value."""
    return {"ids": documents}
