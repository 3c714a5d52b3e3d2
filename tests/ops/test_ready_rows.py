"""Rows that were packed before: handed out as they are, and refused where they are of another length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.scenarios import global_batches, rank_steps, small_pipeline, texts_of, write_jsonl
from torchtitan_zephon import ConfigError, Pipeline, RecordError

SEQ_LEN = 16


def rows_of(length: int, count: int = 60) -> list[list[int]]:
    """Rows of ids of which each is another, with special tokens in the midst of them."""
    return [[(n * 31 + k * 7) % 380 for k in range(length)] for n in range(count)]


def write(path: Path, rows: list[Any], kind: pa.DataType | None = None) -> Path:
    pq.write_table(pa.table({"text": pa.array(rows, kind or pa.list_(pa.uint16()))}), path, row_group_size=17)
    return path


def over(path: Path, **options: Any) -> Pipeline:
    return small_pipeline({"s": path}, algorithm="rows", seq_len=SEQ_LEN, repeat=False, **options)


def taken(pipeline: Pipeline) -> list[Any]:
    return [batch for step in rank_steps(pipeline.for_rank(0, 1), 10**6) for batch in step]


@pytest.mark.parametrize("label_shift", ["document", "sequence"])
@pytest.mark.parametrize("fixed", [False, True])
def test_rows_with_one_token_more_are_inputs_and_labels_as_they_are(
    tmp_path: Path, label_shift: str, fixed: bool
) -> None:
    rows = rows_of(SEQ_LEN + 1)
    kind = pa.list_(pa.int32(), SEQ_LEN + 1) if fixed else None
    batches = taken(over(write(tmp_path / "a.parquet", rows, kind), label_shift=label_shift, lanes=1))
    found = {(*b.input[r], b.labels[r, -1]) for b in batches for r in range(len(b.input))}
    assert found >= {*map(tuple, rows)}
    for b in batches:
        whole = [s.filled == SEQ_LEN for s in b.sequences]
        assert (b.input[whole, 1:] == b.labels[whole, :-1]).all()
        assert (b.positions[whole] == np.arange(SEQ_LEN)).all()


def test_the_last_token_of_a_row_of_seq_len_is_a_label_only(tmp_path: Path) -> None:
    rows = rows_of(SEQ_LEN)
    pipeline = over(write(tmp_path / "a.parquet", rows))
    batches = taken(pipeline)
    found = {(b.input[r, 0], *b.labels[r, :-1]) for b in batches for r in range(len(b.input)) if b.sequences[r].filled}
    assert found == {*map(tuple, rows)}
    assert all((b.labels[:, -1] == -100).all() for b in batches)
    stream = pipeline.for_rank(0, 1)
    rank_steps(stream, 10**6)
    balance = stream.balance
    assert (balance.read.tokens, balance.tokens_out, balance.last_tokens) == (60 * 16, 60 * 15, 60)
    assert balance.tokens_held == balance.unused_tokens == 0


def test_a_row_of_another_length_is_a_bad_record_with_its_place(tmp_path: Path) -> None:
    rows = [*rows_of(SEQ_LEN + 1, 20), [1, 2, 3], *rows_of(SEQ_LEN, 20)]
    path = write(tmp_path / "a.parquet", rows)
    with pytest.raises(RecordError, match="row 20: field 'text' holds 3 ids, and a ready-made row has 16 or 17"):
        taken(over(path))
    stream = over(path).options(on_bad_record="skip").for_rank(0, 1)
    rank_steps(stream, 10**6)
    assert stream.balance.read.refused["ids"].number == 1 and stream.balance.read.documents == 40


def test_text_cannot_be_rows(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts_of(20))
    with pytest.raises(ConfigError, match=r"pack = 'rows' takes rows of token ids .* sources of text: 's'"):
        taken(over(path))


def test_rows_are_the_same_on_any_ranks_and_through_stops(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", rows_of(SEQ_LEN + 1, 300))
    pipeline = small_pipeline({"s": path}, algorithm="rows", seq_len=SEQ_LEN)
    expected, end = global_batches(pipeline, 1, 12)
    state, found = None, []
    for step in range(12):
        batches, state = global_batches(pipeline, (4, 1, 2)[step % 3], 1, state)
        found += batches
    assert (found, state) == (expected, end)
