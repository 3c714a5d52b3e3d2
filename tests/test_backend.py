"""Which tokenizer back-end a stream is read with: named in its state, kept by a resume, changed by name only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios import global_batches, small_pipeline
from torchtitan_zephon import Pipeline, StateError
from torchtitan_zephon.ops import fast
from torchtitan_zephon.ops.tokenize import tokenize
from torchtitan_zephon.state import StreamState, decode_stream, encode_stream


@pytest.fixture
def pipeline(sources: dict[str, Path]) -> Pipeline:
    return small_pipeline(sources)


def test_both_back_ends_give_the_same_batches_and_each_is_named_in_the_state(pipeline: Pipeline) -> None:
    found = {b: global_batches(pipeline.options(tokenizer_backend=b), 2, 6) for b in ("hf", "fastokens")}
    assert found["hf"][0] == found["fastokens"][0]
    assert found["hf"][1]["lane"] == found["fastokens"][1]["lane"]
    for backend, (_, state) in found.items():
        assert json.loads(state["stream"])["tokenizer_backend"] == backend


@pytest.mark.parametrize("before", ["hf", "fastokens"])
def test_a_resume_keeps_the_back_end_of_the_checkpoint(pipeline: Pipeline, before: Any) -> None:
    hashes, _ = global_batches(pipeline, 1, 6)
    _, state = global_batches(pipeline.options(tokenizer_backend=before), 2, 3)
    for wanted in ("auto", before):
        resumed, after = global_batches(pipeline.options(tokenizer_backend=wanted), 1, 3, state)
        assert resumed == hashes[3:]
        assert json.loads(after["stream"])["tokenizer_backend"] == before


def test_a_resume_with_another_back_end_is_refused_unless_it_is_allowed(pipeline: Pipeline) -> None:
    hashes, _ = global_batches(pipeline, 1, 6)
    _, state = global_batches(pipeline.options(tokenizer_backend="fastokens"), 2, 3)
    other = pipeline.options(tokenizer_backend="hf")
    with pytest.raises(StateError, match=r"made with tokenizer_backend = 'fastokens', this job has 'hf'.*\"auto\""):
        other.load_state_dict(state)
    resumed, after = global_batches(other.options(allow_changes=["tokenizer_backend"]), 1, 3, state)
    assert resumed == hashes[3:]
    assert json.loads(after["stream"])["tokenizer_backend"] == "hf"


def test_a_resume_without_the_extra_is_refused_with_both_ways_out(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes, _ = global_batches(pipeline, 1, 6)
    _, state = global_batches(pipeline.options(tokenizer_backend="fastokens"), 2, 3)
    tokenize.cache_clear()
    monkeypatch.setattr(fast, "installed", lambda: None)
    fresh = pipeline.options(workers=1)
    with pytest.raises(StateError, match=r"pip install 'torchtitan_zephon\[fast\]'.*allow_changes = \[\"tokenizer_b"):
        fresh.load_state_dict(state)
    resumed, _ = global_batches(fresh.options(allow_changes=["tokenizer_backend"]), 1, 3, state)
    assert resumed == hashes[3:]
    tokenize.cache_clear()


def test_a_back_end_that_no_version_here_has_is_refused(pipeline: Pipeline) -> None:
    _, state = global_batches(pipeline, 1, 2)
    stream = decode_stream(state["stream"])
    values = {name: getattr(stream, name) for name in StreamState.__slots__}
    other = encode_stream(StreamState(**{**values, "tokenizer_backend": "quicktok"}))
    with pytest.raises(StateError, match="tokenizer_backend = 'quicktok', which this version does not have"):
        pipeline.load_state_dict({**state, "stream": other})


def test_the_plan_says_which_back_end_reads(pipeline: Pipeline) -> None:
    assert "by tokenizers " in pipeline.options(tokenizer_backend="hf").explain()
    assert "by fastokens " in pipeline.options(tokenizer_backend="fastokens").explain()
