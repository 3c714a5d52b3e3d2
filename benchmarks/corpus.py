"""The corpora that the benchmarks read: a folder with one folder of JSONL, or of Parquet, for each source."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from torchtitan_zephon import Dataset, StaticMixtureWorkSource


def source_of(corpus: Path, chunk_bytes: int = 256 * 1024) -> StaticMixtureWorkSource:
    """All sources of ``corpus`` at equal weights."""
    folders = folders_of(corpus)
    return StaticMixtureWorkSource(
        datasets=[Dataset.from_path(f.name, str(f)) for f in folders],
        mixture={f.name: 1.0 for f in folders},
        seed=1,
        chunk_bytes=chunk_bytes,
    )


def folders_of(corpus: Path) -> list[Path]:
    """One a source."""
    return sorted(p for p in corpus.iterdir() if p.is_dir())


def texts_of(corpus: Path, characters: float) -> list[str]:
    """Texts of every source in turn, of ``characters`` in all."""
    texts: list[str] = []
    for folder in folders_of(corpus):
        size = 0
        lines = (line for file in sorted(folder.rglob("*.jsonl")) for line in open(file, encoding="utf-8"))
        for line in lines:
            texts.append(json.loads(line)["text"])
            size += len(texts[-1])
            if size > characters / len(folders_of(corpus)):
                break
    return texts


def write_new_words(folder: Path, megabytes: float) -> Path:
    """Two sources of random lower-case words, hardly one of which is ever met twice; lengths of documents as drawn."""
    rng = np.random.default_rng(1)
    for name in ("one", "two"):
        (folder / name).mkdir(parents=True)
        with open(folder / name / "0.jsonl", "w", encoding="ascii") as f:
            size = 0
            while size < megabytes * 5e5:
                letters = rng.integers(97, 123, int(rng.lognormal(7, 1)) + 10, dtype=np.uint8)
                letters[rng.random(len(letters)) < 0.14] = 32
                size += f.write(json.dumps({"text": letters.tobytes().decode()}) + "\n")
    return folder


def write_ids(corpus: Path, tokenizer: Path, folder: Path, characters: float) -> Path:
    """The texts of ``corpus`` as one source of token ids, with EOS behind each."""
    encoder = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    texts = texts_of(corpus, characters)
    ids = [e.ids for i in range(0, len(texts), 500) for e in encoder.encode_batch(texts[i : i + 500])]
    (folder / "ids").mkdir(parents=True)
    table = pa.table({"text": pa.array(ids, pa.list_(pa.int32()))})
    pq.write_table(table, folder / "ids" / "0.parquet", row_group_size=1000, use_dictionary=False, compression="none")
    return folder
