"""Grain: ArrayRecord, mixed, tokenised one by one, its own packing (concat, then split), window shuffle, processes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import grain
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from tokenizers import Tokenizer
from worker import Job


def prepare(job: Job) -> None:
    for source in job.sources():
        writer = ArrayRecordWriter(str(job.prepared / f"{source.name}.array_record"), "group_size:1")
        for file in sorted(source.glob("*.jsonl")):
            with file.open("rb") as lines:
                for line in lines:
                    writer.write(json.loads(line)["text"].encode())
        writer.close()


class Tokenize(grain.transforms.Map):
    """Bytes of text -> {"ids": int32 with bos and eos}; the tokenizer is loaded in each worker process."""

    def __init__(self, job: Job) -> None:
        self.file = str(job.tokenizer / "tokenizer.json")
        settings = json.loads((job.tokenizer / "tokenizer_config.json").read_text("utf-8"))
        self.names = settings["bos_token"], settings["eos_token"]
        self.tokenizer: Tokenizer | None = None

    def map(self, text: bytes) -> dict[str, np.ndarray]:
        if self.tokenizer is None:
            self.tokenizer = Tokenizer.from_file(self.file)
            self.bos, self.eos = map(self.tokenizer.token_to_id, self.names)
        ids = self.tokenizer.encode_batch_fast([text.decode()], add_special_tokens=False)[0].ids
        return {"ids": np.array([self.bos, *ids, self.eos], np.int32)}

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"tokenizer": None}


class Loader:
    def __init__(self, job: Job, states: list[bytes]) -> None:
        sources = [
            grain.MapDataset.source(grain.sources.ArrayRecordDataSource(str(job.prepared / f"{s.name}.array_record")))
            for s in job.sources()
        ]
        documents = grain.MapDataset.mix([s.seed(1).repeat() for s in sources]).map(Tokenize(job))
        packed = grain.experimental.ConcatThenSplitIterDataset(
            documents[job.rank :: job.world].to_iter_dataset(grain.ReadOptions(num_threads=1)),
            length_struct={"ids": job.tokens},
        )
        shuffled = grain.experimental.WindowShuffleIterDataset(packed, window_size=128, seed=1)
        batches = shuffled.batch(job.rows).mp_prefetch(grain.MultiprocessingOptions(num_workers=job.workers))
        self.batches = iter(batches)
        if states:
            self.batches.set_state(json.loads(states[job.rank % len(states)]))

    def __iter__(self) -> Iterator[np.ndarray]:
        for batch in self.batches:
            yield batch["ids"]

    def state(self) -> bytes:
        return json.dumps(self.batches.get_state()).encode()

    def close(self) -> None:
        self.batches.close()
