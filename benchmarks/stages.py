"""Where the CPU of the pipeline goes, stage by stage, in one thread and without the stream around them.

What flows in: a folder of JSONL sources and a tokenizer. What flows out: CPU seconds per million tokens of each stage
of the product, run chunk by chunk on the first tokens of every source, after a first pass that warms caches.

    python benchmarks/stages.py CORPUS/jsonl CORPUS/tokenizer [--backend hf]
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from corpus import source_of

from torchtitan_zephon import Batch, Pipeline
from torchtitan_zephon.documents import read_documents
from torchtitan_zephon.lane.stages import sequence_hash
from torchtitan_zephon.ops import fast
from torchtitan_zephon.ops.pack import Pack
from torchtitan_zephon.ops.tokenize import _around
from torchtitan_zephon.records import Documents, Packet, Sequence

SEQ_LEN, BATCH = 2048, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--backend", choices=["hf", "fastokens"], default="fastokens")
    parser.add_argument("--tokens", type=float, default=10e6)
    options = parser.parse_args()
    pipeline = Pipeline(source_of(options.corpus)).tokenize(tokenizer_id=str(options.tokenizer))
    pipeline = pipeline.pack_flat(max_length=SEQ_LEN).batch(microbatch_size=BATCH)
    program = pipeline.options(lanes=1, tokenizer_backend=options.backend).stream.program
    one_pass(program, options.tokens)
    spent, tokens = one_pass(program, options.tokens)
    for stage, seconds in spent.items():
        print(f"{stage:38} {seconds / tokens * 1e6:8.4f}")
    print(f"{'all':38} {sum(spent.values()) / tokens * 1e6:8.4f}")


def one_pass(program: Any, most: float) -> tuple[Counter[str], int]:
    """CPU seconds of each stage, and tokens."""
    spent: Counter[str] = Counter()

    def timed(stage: str, call: Callable[..., Any], *args: Any) -> Any:
        started = time.process_time()
        value = call(*args)
        spent[stage] += time.process_time() - started
        return value

    packer, tokens, sequences, run = Pack(program.packing, Documents.empty()), 0, [], 0
    tokenize = program.tokenize
    while tokens < most:
        for s, source in enumerate(program.sources):
            table = program.tables[s]
            chunk, _ = table.chunk(0, run % table.num_runs, 0)
            records = timed("read and parse", source.read, chunk, frozenset({source.field}))
            documents = read_documents(source, chunk, ())
            order = np.random.default_rng(run).permutation(len(documents))
            documents = timed("permute records", documents.take, order)
            texts = documents.values["text"]
            if tokenize.backend == "hf":
                ids, offsets = timed("tokenise", tokenize._reference, texts)
            else:
                ids, offsets = timed("tokenise", tokenize._fast.unguarded, texts)
                picked = timed("choose documents to check", fast.rechecked, documents.origin)
                timed("tokenise those again (tokenizers)", tokenize.check, [texts[i] for i in picked])
            every = np.ones(len(texts), bool)
            around = (tokenize.spec.add_bos, every), (tokenize.spec.add_eos, every)
            ids, offsets = timed("BOS and EOS", _around, ids, offsets, *around)
            documents = Documents({}, {"ids": ids}, offsets, documents.origin)
            timed("digest of the chunk", Packet.of, documents)
            rows = timed("pack: inputs, labels, positions", packer.add, documents)
            new = [Sequence(rows, r) for r in range(len(rows))]
            timed("SHA-256 of sequences", lambda new: [sequence_hash(x) for x in new], new)
            sequences = (sequences + new)[-512:]
            picked = np.random.default_rng(run).integers(len(sequences), size=len(new))
            for i in range(0, len(picked) - BATCH + 1, BATCH):
                timed("batch", Batch.of, [sequences[k] for k in picked[i : i + BATCH]], 0)
            tokens += len(ids)
            del records
        run += 1
    return spent, tokens


if __name__ == "__main__":
    main()
