"""What the tests share: small corpora, a small tokenizer, a small pipeline, and hashes of its order.

Everything here is made from integers, so it is the same on every machine. ``global_batches`` is
the measure of the promise: run a pipeline on any number of ranks and compare what it returns.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torchtitan_zephon import Batch, Dataset, Pipeline, RankStream, StaticMixtureWorkSource

BOS, EOS = "<|begin|>", "<|end|>"
"""The special tokens of the small tokenizer; ids 0 and 1."""
SEQ_LEN = 32

_VOCABULARY = (
    "the of and to in a is that for it was on are as with be at by this from had not but what all were when we there "
    "can an your which said if do will each about how up out them then she many some so these would other into has "
    "more her two like him see time could no make than first been its who now people my made over did down only way "
    "find use may water long little very after words called just where most know naïve Grüße 東京 🚀"
)
_WORDS = _VOCABULARY.split()


def text_of(n: int, words: int = 12) -> str:
    """The text of document ``n``: ``words`` words, the number first so that no two are alike."""
    return f"{n}: " + " ".join(_WORDS[(n * 7919 + k * k * 31 + k * 17) % len(_WORDS)] for k in range(words))


def texts_of(count: int, first: int = 0, longest: int = 40) -> list[str]:
    """``count`` documents of 1 to ``longest`` words, numbered from ``first``."""
    return [text_of(n, 1 + (n * 2654435761 >> 7) % longest) for n in range(first, first + count)]


def write_jsonl(path: Path, texts: Iterable[str], field: str = "text") -> Path:
    """Write ``texts`` as a JSONL file, one record a line with an ``id``; returns ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"id": i, field: text}, ensure_ascii=False) + "\n" for i, text in enumerate(texts))
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
    return path


def write_parquet(path: Path, texts: Sequence[str], field: str = "text", row_group_rows: int = 64) -> Path:
    """Write ``texts`` as a Parquet file with an ``id`` column; returns ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"id": list(range(len(texts))), field: pa.array(texts, pa.string())})
    pq.write_table(table, path, row_group_size=row_group_rows)
    return path


def corpus(folder: Path, records: int = 400) -> dict[str, Path]:
    """Three small sources in ``folder``: JSONL in three files, Parquet, and JSONL with few records."""
    for part in range(3):
        share = texts_of(records // 3, first=part * records)
        write_jsonl(folder / "alpha" / f"part-{part}.jsonl", share)
    write_parquet(folder / "beta" / "rows.parquet", texts_of(records, first=100_000))
    write_jsonl(folder / "gamma.jsonl", texts_of(max(4, records // 20), first=200_000))
    return {"alpha": folder / "alpha", "beta": folder / "beta", "gamma": folder / "gamma.jsonl"}


@functools.cache
def tokenizer_folder() -> Path:
    """A byte-level BPE tokenizer of 384 entries with BOS and EOS; trained once a process."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts_of(300), trainer)
    folder = Path(tempfile.mkdtemp(prefix="zephon-tokenizer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.dumps({"bos_token": BOS, "eos_token": EOS})
    (folder / "tokenizer_config.json").write_text(config, "utf-8")
    return folder


def small_pipeline(
    sources: Mapping[str, Path | str],
    *,
    weights: Mapping[str, float] | None = None,
    lanes: int = 4,
    global_batch_size: int = 8,
    local_batch_size: int = 2,
    seq_len: int = SEQ_LEN,
    algorithm: Any = "wrap",
    label_shift: Any = "document",
    buffer_size: int = 8,
    flush_every_sequences: int = 12,
    workers: int = 2,
    seed: int = 7,
    repeat: bool = True,
    tokenizer: Path | str | None = None,
    **source_settings: Any,
) -> Pipeline:
    """A pipeline over ``sources`` (name to path) with buffers so small that every test meets flushes."""
    source = StaticMixtureWorkSource(
        datasets=[Dataset.from_path(name, str(path)) for name, path in sources.items()],
        mixture=dict.fromkeys(sources, 1.0) if weights is None else weights,
        seed=seed,
        repeat=repeat,
        **{"chunk_bytes": 4096, **source_settings},
    )
    return (
        Pipeline(source)
        .tokenize(tokenizer_id=str(tokenizer or tokenizer_folder()), parallelism=workers)
        .pack_flat(max_length=seq_len, algorithm=algorithm, label_shift=label_shift)
        .shuffle(buffer_size=buffer_size)
        .batch(microbatch_size=local_batch_size)
        .options(lanes=lanes, global_batch_size=global_batch_size, flush_every_sequences=flush_every_sequences)
    )


def row_bytes(batch: Batch, row: int) -> bytes:
    """Inputs, labels and positions of one sequence, as the trainer gets them."""
    return b"".join(column[row].tobytes() for column in (batch.input, batch.labels, batch.positions))


def rank_steps(stream: RankStream, steps: int) -> list[list[Batch]]:
    """The local batches of the next ``steps`` steps of one rank; fewer where a finite stream ends."""
    iterator = iter(stream)
    taken: list[list[Batch]] = []
    for _ in range(steps):
        batches = [batch for _, batch in zip(range(stream.layout.local_batches), iterator, strict=False)]
        if not batches:
            break
        taken.append(batches)
    return taken


def global_batches(
    pipeline: Pipeline,
    dp_degree: int,
    steps: int,
    state: Mapping[str, Any] | None = None,
    *,
    local_batch_size: int | None = None,
) -> tuple[list[str], dict[str, Any]]:
    """Run ``steps`` steps on ``dp_degree`` ranks, from the start or from ``state``.

    Returns the SHA-256 of every global batch in canonical order (fewer where a finite stream
    ends), and the loader state at the end, joined over the ranks as a checkpoint would.
    """
    hashes: list[Any] = []
    lanes: dict[str, bytes] = {}
    shared: set[bytes] = set()
    for rank in range(dp_degree):
        stream = pipeline.for_rank(rank, dp_degree, local_batch_size=local_batch_size)
        try:
            if state is not None:
                stream.load_state_dict(state)
            taken = rank_steps(stream, steps)
            saved = stream.state_dict()
        finally:
            stream.close()
        if rank == 0:
            hashes = [hashlib.sha256() for _ in taken]
        for h, batches in zip(hashes, taken, strict=True):  # every rank has the same number of steps
            for batch in batches:
                for row in range(len(batch.input)):
                    h.update(row_bytes(batch, row))
        for key in lanes.keys() & saved["lane"].keys():  # both save a lane that they share, alike
            assert lanes[key] == saved["lane"][key]
            assert stream.settings.shared_lanes
        lanes |= saved["lane"]
        shared.add(saved["stream"])
    assert len(shared) == 1, "ranks disagree on the shared state"
    return [h.hexdigest() for h in hashes], {"stream": shared.pop(), "lane": lanes}


def says(error: pytest.ExceptionInfo[BaseException], *parts: str) -> None:
    """Assert that the message of ``error`` has all ``parts``."""
    for part in parts:
        assert part in str(error.value), str(error.value)
