"""A source whose tokens are not what the estimate said is pointed out once, while the stream runs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.scenarios import rank_steps, small_pipeline, texts_of, write_jsonl


def test_a_source_that_strays_from_its_estimate_is_said_once_by_the_first_rank(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # The sample is cut after 8,192 characters of a text, and the rest of each is of another kind.
    begins = "the of and to in " * 490
    long = [begins + "".join(chr(0x4E00 + (n * 7 + k * k) % 5000) for k in range(9000)) for n in range(40)]
    paths = {"strange": write_jsonl(tmp_path / "strange.jsonl", long), "plain": tmp_path / "plain.jsonl"}
    write_jsonl(paths["plain"], texts_of(2000))
    caplog.set_level(logging.WARNING)
    for rank in range(2):
        stream = small_pipeline(paths, lanes=2, global_batch_size=2, local_batch_size=1).for_rank(rank, 2)
        rank_steps(stream, 4100)
        stream.close()
    said = [record.message for record in caplog.records if "times what was estimated" in record.message]
    assert len(said) == 1
    assert "source 'strange': its tokens so far" in said[0]


def test_what_is_as_estimated_is_not_mentioned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts_of(3000))
    stream = small_pipeline({"a": path}).for_rank(0, 1)
    rank_steps(stream, 600)
    stream.close()
    assert caplog.records == []
