"""Sources of token ids: the stream they give is that of the texts they were made from; what is no id is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers

from tests.scenarios import (
    BOS,
    EOS,
    global_batches,
    small_pipeline,
    texts_of,
    tokenizer_folder,
    write_jsonl,
    write_parquet,
)
from torchtitan_zephon import (
    Dataset,
    Pipeline,
    RecordError,
    SourceError,
    StaticMixtureWorkSource,
    TokenizerError,
)
from torchtitan_zephon.plan.chunking import Chunk
from torchtitan_zephon.read.settings import SourceConfig
from torchtitan_zephon.read.source import open_source
from torchtitan_zephon.records import Documents, Packet

TEXTS = texts_of(400)


def encoded(texts: list[str]) -> list[list[int]]:
    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_folder() / "tokenizer.json"))
    return [e.ids for e in tokenizer.encode_batch_fast(texts)]


def write_ids(path: Path, documents: Any, kind: pa.DataType | None = None, row_group_rows: int = 64) -> Path:
    column = pa.array(documents, kind or pa.list_(pa.int32()))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": range(len(column)), "input_ids": column}), path, row_group_size=row_group_rows)
    return path


def over(path: Path, field: str, **recipe: Any) -> Pipeline:
    """One pass in file order, so that text and ids differ in their chunks and not in their order."""
    source = StaticMixtureWorkSource(
        datasets=[Dataset.from_path("s", str(path))],
        mixture={"s": 1.0},
        shuffle_chunks=False,
        shuffle_records=False,
        repeat=False,
        chunk_bytes=4096,
    )
    return (
        Pipeline(source)
        .tokenize(tokenizer_id=str(tokenizer_folder()), field=field, **recipe)
        .pack_flat(max_length=32)
        .batch(microbatch_size=2)
    )


KINDS = [
    pa.list_(pa.int32()),
    pa.list_(pa.uint16()),
    pa.list_(pa.int64()),
    pa.large_list(pa.uint32()),
    pa.list_(pa.uint64()),
    pa.list_view(pa.int32()),
    pa.large_list_view(pa.int64()),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_ids_give_the_batches_of_the_texts_they_were_made_from(kind: pa.DataType, tmp_path: Path) -> None:
    text = over(write_parquet(tmp_path / "text.parquet", TEXTS), "text")
    ids = over(write_ids(tmp_path / "ids.parquet", encoded(TEXTS), kind), "input_ids")
    expected = [(b.input, b.labels, b.positions) for b in text]
    assert len(expected) > 50
    for batch, of_text in zip(ids, expected, strict=True):
        for a, b in zip((batch.input, batch.labels, batch.positions), of_text, strict=True):
            assert np.array_equal(a, b)
    assert ids.stream.balance == text.stream.balance


def test_rows_of_a_fixed_size_are_read_too(tmp_path: Path) -> None:
    rows = [[i, i + 1, i + 2, i + 3] for i in range(100)]
    path = write_ids(tmp_path / "a.parquet", rows, pa.list_(pa.int32(), 4), row_group_rows=30)
    batches = list(over(path, "input_ids", add_bos=False, add_eos=False))
    assert batches[0].input[0][:6].tolist() == [0, 1, 2, 1, 2, 3]


@pytest.mark.parametrize("own", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("asked", [(False, False), (True, False), (False, True), (True, True)])
def test_bos_and_eos_are_there_once_whether_the_ids_have_them_or_not(
    own: tuple[bool, bool], asked: tuple[bool, bool], tmp_path: Path
) -> None:
    documents = [[0] * own[0] + [100 + n, 101, 102] + [1] * own[1] for n in range(40)]
    documents[7] = [100, 101]
    path = write_ids(tmp_path / "a.parquet", documents)
    pipeline = over(path, "input_ids", add_bos=asked[0], add_eos=asked[1])
    tokens = pipeline.stream.program.work(pipeline.stream.program.tables[0].chunk(0, 0, 0)[0]).documents
    found = [tokens.ids[a:b].tolist() for a, b in zip(tokens.offsets, tokens.offsets[1:], strict=False)]
    for document, before in zip(found, documents, strict=False):
        assert document.count(0) == (asked[0] or before[0] == 0)
        assert document.count(1) == (asked[1] or before[-1] == 1)
        assert [i for i in document if i > 1] == [i for i in before if i > 1]


@pytest.mark.parametrize("dp_degree", [1, 2, 4])
def test_global_batches_of_ids_do_not_depend_on_the_ranks_and_survive_a_resume(dp_degree: int, tmp_path: Path) -> None:
    for name, first in (("a", 0), ("b", 5000)):
        write_ids(tmp_path / name / "0.parquet", encoded(texts_of(300, first)), row_group_rows=90)
    source = StaticMixtureWorkSource(
        datasets=[Dataset.from_path(n, str(tmp_path / n)) for n in "ab"], mixture={"a": 3.0, "b": 1.0}, chunk_bytes=4096
    )
    pipeline = (
        Pipeline(source)
        .tokenize(tokenizer_id=str(tokenizer_folder()), field="input_ids")
        .pack_flat(max_length=32)
        .shuffle(buffer_size=20)
        .batch(microbatch_size=2)
        .options(lanes=4, global_batch_size=32, flush_every_sequences=10)
    )
    straight, _ = global_batches(pipeline, 1, 12)
    first, state = global_batches(pipeline, dp_degree, 5)
    rest, _ = global_batches(pipeline, 4 // dp_degree, 7, state)
    assert first + rest == straight
    assert "parquet shards of token ids" in pipeline.explain()


def test_text_and_ids_mix(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", TEXTS, field="input_ids")
    write_ids(tmp_path / "b.parquet", encoded(texts_of(300, 9000)))
    pipeline = small_pipeline({"a": tmp_path / "a.jsonl", "b": tmp_path / "b.parquet"})
    pipeline = pipeline.tokenize(tokenizer_id=str(tokenizer_folder()), field="input_ids")
    seen = {int(s.pieces[0, 1]) for batch, _ in zip(pipeline, range(20), strict=False) for s in batch.sequences}
    assert seen == {0, 1}


def test_a_users_functions_see_the_record_and_may_change_its_ids(tmp_path: Path) -> None:
    path = write_ids(tmp_path / "a.parquet", [[100 + n % 50, 101, 102] for n in range(60)])
    pipeline = (
        over(path, "input_ids", add_bos=False, add_eos=False)
        .map(lambda r: {**r, "input_ids": [*r["input_ids"], 7]}, identity="append")
        .filter(lambda r: r["id"] % 3 != 0, identity="thirds")
    )
    stream = pipeline.stream
    batches = list(stream)
    assert (
        stream.balance.read.filtered == 20 and stream.balance.read.documents == 40 and stream.balance.read.records == 60
    )
    assert sum(int((b.labels == 7).sum()) for b in batches) == 40


@pytest.mark.parametrize(
    "made", [None, "text", "", b"ab", {1, 2}, {}, [1.5], [None], [1, [2]], [2**63 + 5], [2**70], [True], range(3)]
)
def test_a_function_that_returns_no_ids_is_refused_with_the_row(made: Any, tmp_path: Path) -> None:
    path = write_ids(tmp_path / "a.parquet", [[100, 101]] * 30)
    pipeline = over(path, "input_ids").map(lambda r: r if r["id"] < 5 else {"input_ids": made}, identity="m")
    with pytest.raises(
        RecordError, match=r"row 5: field 'input_ids' (must be a list of token ids|is null, or holds one)"
    ):
        list(pipeline)


@pytest.mark.parametrize(
    ("documents", "problem"),
    [
        ([[100]] * 5 + [None], r"row 5: field 'input_ids' is null, or holds one"),
        ([[100]] * 5 + [[1, None]], r"row 5: field 'input_ids' is null, or holds one"),
        ([[100], [], [7, -1], [100]], r"row 2: field 'input_ids' holds -1, which is no token id"),
        ([[100, 101], [-1, 7], [100]], r"row 1: field 'input_ids' holds -1, which is no token id"),
        ([[100, 101]] * 300 + [None] + [[100]] * 9, r"row 300: field 'input_ids' is null, or holds one"),
    ],
)
def test_what_is_no_id_is_refused_with_the_row(documents: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=problem):
        list(over(write_ids(tmp_path / "a.parquet", documents, row_group_rows=1000), "input_ids"))


@pytest.mark.parametrize(("kind", "large"), [(pa.int64(), 2**32 + 5), (pa.uint64(), 2**63 + 5), (pa.uint32(), 2**31)])
def test_an_id_of_more_bits_is_not_cut_to_a_small_one(kind: pa.DataType, large: int, tmp_path: Path) -> None:
    documents = [[100, 101]] * 300 + [[100, large, 7]]
    path = write_ids(tmp_path / "a.parquet", documents, pa.list_(kind), row_group_rows=1000)
    with pytest.raises(RecordError, match=rf"row 300: field 'input_ids' holds {large}, which is no token id"):
        list(over(path, "input_ids"))


def test_what_the_tokenizer_itself_puts_around_a_text_stands_around_ids_too(tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_folder() / "tokenizer.json"))
    ids = [e.ids for e in tokenizer.encode_batch_fast(TEXTS)]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text((tokenizer_folder() / "tokenizer_config.json").read_text())
    found = []
    for path, field in (
        (write_parquet(tmp_path / "a.parquet", TEXTS), "text"),
        (write_ids(tmp_path / "b.parquet", ids), "input_ids"),
    ):
        pipeline = over(path, field).tokenize(tokenizer_id=str(folder), field=field)
        found.append([batch.input for batch in pipeline])
    assert found[0][0][0, 0] == tokenizer.token_to_id(BOS)
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


def test_a_tokenizer_that_puts_several_tokens_around_a_text_is_refused_for_ids(tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_folder() / "tokenizer.json"))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{BOS} {EOS} $A", special_tokens=[(BOS, 0), (EOS, 1)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    path = write_ids(tmp_path / "a.parquet", [[100, 101]] * 9)
    pipeline = over(path, "input_ids").tokenize(tokenizer_id=str(tmp_path / "tokenizer.json"), field="input_ids")
    with pytest.raises(TokenizerError, match=r"puts \[0, 1\] before and \[\] behind a text"):
        list(pipeline)


def test_a_column_of_ids_is_cut_into_chunks_by_its_size(tmp_path: Path) -> None:
    path = write_ids(tmp_path / "a.parquet", [list(range(100, 300))] * 1300, row_group_rows=1300)
    pq.write_table(pq.read_table(path), path, row_group_size=1300, use_dictionary=False)
    table = over(path, "input_ids").stream.program.tables[0]
    assert 200 < table.num_chunks < 300  # 1.04 MB in 4 KiB


def test_the_digest_of_a_chunk_covers_where_documents_end() -> None:
    tokens, origin = {"ids": np.arange(6, dtype=np.int32)}, np.zeros((2, 4), np.int64)
    cut = [Packet.of(Documents({}, tokens, np.array([0, at, 6]), origin)).digest for at in (2, 3)]
    assert cut[0] != cut[1]


def test_ids_of_another_tokenizer_are_bad_records_with_their_place(tmp_path: Path) -> None:
    path = write_ids(tmp_path / "a.parquet", [[100, 383], [384, 5]])
    with pytest.raises(
        RecordError, match=r"row 1: field 'input_ids' holds 384, which is no token id: they are 0 to 383"
    ):
        list(over(path, "input_ids"))


def test_empty_lists_are_counted_and_give_nothing(tmp_path: Path) -> None:
    path = write_ids(tmp_path / "a.parquet", [[100, 101], [], [102, 103, 104], []])
    pipeline = over(path, "input_ids")
    list(pipeline)
    balance = pipeline.stream.balance
    assert (balance.read.records, balance.read.empty, balance.read.documents) == (4, 2, 2)


def test_a_source_is_text_or_ids(tmp_path: Path) -> None:
    write_parquet(tmp_path / "s" / "a.parquet", TEXTS[:5])
    write_ids(tmp_path / "s" / "b.parquet", [[1, 2]])
    pq.write_table(
        pq.read_table(tmp_path / "s" / "b.parquet").rename_columns(["id", "text"]), tmp_path / "s" / "b.parquet"
    )
    with pytest.raises(
        SourceError, match=r"b\.parquet': column 'text' holds list.* files before it text; .*one or the other"
    ):
        over(tmp_path / "s", "text").explain()


def test_ids_without_nulls_are_given_beside_the_rows_that_have_one(tmp_path: Path) -> None:
    path = write_ids(tmp_path / "a.parquet", [[1, 2], None, [3], [4, None], [], [5]])
    source = open_source("s", SourceConfig(path=str(path), field="input_ids"))
    documents, bad = source.read(Chunk(0, 0, 0, 0, 0, 6, 1), frozenset({"input_ids"}))
    assert documents.ids.tolist() == [1, 2, 3, 5]
    assert documents.offsets.tolist() == [0, 2, 3, 3, 4]
    assert documents.origin[:, 2].tolist() == [0, 2, 4, 5]
    assert [(record.kind, record.place) for record in bad] == [("ids", 1), ("ids", 3)]
