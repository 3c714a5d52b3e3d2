"""Every format through a pipeline: the same documents whatever they are written as, in an order that neither ranks nor
stops change."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import tokenizers

from tests.read.test_arrow import column_of, write as write_arrow
from tests.read.test_ids import write_ids
from tests.read.test_mds import write_mds
from tests.read.test_megatron import write_megatron
from tests.read.test_tokens import write_raw
from tests.scenarios import global_batches, texts_of, tokenizer_folder, write_jsonl, write_parquet
from torchtitan_zephon import Dataset, Pipeline, StaticMixtureWorkSource

EOS = 1
TEXTS = [*texts_of(140, longest=25), "one long document: " + "and on and on " * 700, *texts_of(60, first=500)]
STEPS = 5


@functools.cache
def encoded() -> list[list[int]]:
    """The ids of ``TEXTS``, each with the id that ends a document."""
    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_folder() / "tokenizer.json"))
    return [[*e.ids, EOS] for e in tokenizer.encode_batch_fast(TEXTS)]


class Written(NamedTuple):
    """Where a source is, and what has to be said of it."""

    path: Path
    settings: dict[str, Any] = {}


def _halves(write: Callable[[Path, Sequence[Any]], Any], items: Sequence[Any], folder: Path, suffix: str) -> None:
    for n, part in enumerate((items[:90], items[90:])):
        write(folder / f"part {n}{suffix}", part)


def _jsonl(folder: Path) -> Written:
    _halves(write_jsonl, TEXTS, folder, ".jsonl")
    return Written(folder)


def _parquet(folder: Path) -> Written:
    _halves(write_parquet, TEXTS, folder, ".parquet")
    return Written(folder)


def _lines(folder: Path) -> Written:
    _halves(lambda path, texts: path.write_text("\n".join(texts), "utf-8"), TEXTS, folder, ".txt")
    return Written(folder, {"format": "text"})


def _files(folder: Path) -> Written:
    for n, text in enumerate(TEXTS):
        (folder / f"{n:03}.txt").write_text(text, "utf-8")
    return Written(folder, {"format": "text", "record": "file"})


def _arrow(kind: pa.DataType, suffix: str = ".arrow", **options: Any) -> Callable[[Path], Written]:
    def write(folder: Path) -> Written:
        def part(path: Path, texts: Sequence[str]) -> None:
            table = pa.table(
                {"id": range(len(texts)), "text": column_of(list(texts), kind), "more": ["x"] * len(texts)}
            )
            write_arrow(path, table, rows=17, **options)

        _halves(part, TEXTS, folder, suffix)
        return Written(folder)

    return write


def _mds(folder: Path) -> Written:
    return Written(write_mds(folder, [{"text": text.encode()} for text in TEXTS], {"text": "str"}))


def _mds_ids(folder: Path) -> Written:
    samples = [{"text": np.array(ids, "<u2").tobytes()} for ids in encoded()]
    return Written(write_mds(folder, samples, {"text": "bytes"}), {"dtype": "uint16"})


def _megatron(folder: Path) -> Written:
    _halves(lambda path, ids: write_megatron(path, [[d] for d in ids], "uint16"), encoded(), folder, ".bin")
    return Written(folder, {"format": "megatron"})


def _tokens(folder: Path) -> Written:
    _halves(lambda path, ids: write_raw(path, list(ids), "uint32"), encoded(), folder, ".bin")
    return Written(folder, {"format": "tokens", "dtype": "uint32", "document_end": EOS})


def _npy(folder: Path) -> Written:
    _halves(lambda path, ids: np.save(path, np.array([i for d in ids for i in d], np.int64)), encoded(), folder, ".npy")
    return Written(folder, {"document_end": EOS})


def _parquet_ids(folder: Path) -> Written:
    write_ids(folder / "a.parquet", encoded())
    table = pa.parquet.read_table(folder / "a.parquet").rename_columns(["id", "text"])
    pa.parquet.write_table(table, folder / "a.parquet", row_group_size=40)
    return Written(folder)


WRITERS: dict[str, Callable[[Path], Written]] = {
    "jsonl": _jsonl,
    "parquet": _parquet,
    "parquet of ids": _parquet_ids,
    "text lines": _lines,
    "text files": _files,
    "arrow stream": _arrow(pa.string(), stream=True),
    "arrow file of views": _arrow(pa.string_view()),
    "arrow file of a dictionary": _arrow(pa.dictionary(pa.int32(), pa.string())),
    "feather, packed": _arrow(pa.large_string(), suffix=".feather", compression="lz4"),
    "mds": _mds,
    "mds of ids": _mds_ids,
    "megatron": _megatron,
    "raw tokens": _tokens,
    "npy": _npy,
}


def pipeline_over(written: Written, lanes: int = 4, **source: Any) -> Pipeline:
    """A pipeline over one source, whose segments end within a few steps."""
    data = Dataset.from_path("s", str(written.path), **written.settings)
    made = StaticMixtureWorkSource(datasets=[data], mixture={"s": 1.0}, chunk_bytes=4096, **source)
    return (
        Pipeline(made)
        .tokenize(tokenizer_id=str(tokenizer_folder()))
        .pack_flat(max_length=32)
        .shuffle(buffer_size=5)
        .batch(microbatch_size=2)
        .options(lanes=lanes, global_batch_size=16, flush_every_sequences=10)
    )


@pytest.fixture(params=WRITERS)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Written:
    folder = tmp_path / "source"
    folder.mkdir()
    return WRITERS[request.param](folder)


def test_every_document_is_read_once_and_is_the_same_in_every_format(written: Written) -> None:
    program = pipeline_over(written).stream.program
    table, found = program.tables[0], list[list[int]]()
    for run in range(table.num_runs):
        k, last = 0, False
        while not last:
            chunk, last = table.chunk(0, run, k)
            documents = program.work(chunk).documents
            found += (
                [part.tolist() for part in np.split(documents.ids, documents.offsets[1:-1])] if len(documents) else []
            )
            k += 1
    assert sorted(found) == sorted([0, *ids] for ids in encoded())


def test_global_batches_do_not_depend_on_ranks_and_survive_a_stop_at_every_step(written: Written) -> None:
    pipeline = pipeline_over(written)
    straight, _ = global_batches(pipeline, 1, STEPS)
    assert len(set(straight)) == STEPS
    for stop in range(1, STEPS):
        before, after = [(2, 4), (4, 1), (1, 2)][stop % 3]
        first, state = global_batches(pipeline, before, stop)
        rest, _ = global_batches(pipeline, after, STEPS - stop, state)
        assert first + rest == straight


def test_a_pass_reads_every_record_once(written: Written) -> None:
    stream = pipeline_over(written, lanes=2, repeat=False).stream
    list(stream)
    read = stream.balance.read
    assert (read.records, read.documents, read.num_refused) == (len(TEXTS), len(TEXTS), 0)
    assert stream.balance.tokens_held == 0


def test_a_users_function_sees_whole_records(written: Written) -> None:
    pipeline = pipeline_over(written, lanes=1, repeat=False).filter(
        lambda record: len(record["text"]) > 9, identity="f"
    )
    stream = pipeline.stream
    list(stream)
    read = stream.balance.read
    assert read.documents + read.filtered == len(TEXTS) and read.documents > 50
