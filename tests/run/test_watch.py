"""A source whose tokens are so far from the estimate that its share suffers is pointed out once, while it streams."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.scenarios import rank_steps, small_pipeline, texts_of, write_jsonl
from torchtitan_zephon import RankStream, RunSettings
from torchtitan_zephon.plan.segments import LEAST_PART
from torchtitan_zephon.program import compile_program
from torchtitan_zephon.state import decode_stream, encode_stream


@pytest.fixture
def strange(tmp_path: Path) -> dict[str, Path]:
    """The sample is cut after 8,192 characters of a text, and the rest of each of "strange" is of another kind."""
    begins = "the of and to in " * 490
    long = [begins + "".join(chr(0x4E00 + (n * 7 + k * k) % 5000) for k in range(9000)) for n in range(40)]
    plain = write_jsonl(tmp_path / "plain.jsonl", texts_of(2000))
    return {"strange": write_jsonl(tmp_path / "strange.jsonl", long), "plain": plain}


def stream_of(paths: dict[str, Path], rank: int, shares: Literal["measured", "estimated"]) -> RankStream:
    stream = small_pipeline(paths, lanes=2, global_batch_size=2, local_batch_size=1).for_rank(rank, 2)
    program = stream.program
    recipe = replace(program.recipe, shares=shares)
    return RankStream(compile_program(recipe, program.seq_len, program.tokenize.spec), stream.layout, RunSettings())


def said_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "times what was estimated" in record.message]


def test_a_source_that_strays_from_its_estimate_is_said_once_by_the_first_rank(
    strange: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for rank in range(2):
        stream = stream_of(strange, rank, "estimated")
        rank_steps(stream, 4100)
        stream.close()
    [said] = said_of(caplog)
    assert "source 'strange': its tokens so far" in said
    assert "so its share is off by as much" in said


def test_a_source_whose_real_tokens_keep_its_share_is_not_mentioned(
    strange: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    stream = stream_of(strange, 0, "measured")
    rank_steps(stream, 4100)
    assert stream.figures is not None
    real, estimated = stream.figures.source_tokens, stream.figures.estimated_tokens
    assert real[1] > 1.2 * estimated[1]
    stream.close()
    assert said_of(caplog) == []


def misjudged(stream: RankStream, name: str, times: int) -> dict[str, Any]:
    """The start of ``stream`` with an estimate that promises ``times`` as many tokens of a source."""
    rates = {n: e.tokens_per_mib for n, e in zip(stream.program.names, stream.program.measure(), strict=True)}
    state = stream.state_dict()
    begin = replace(decode_stream(state["stream"]), tokens_per_mib={**rates, name: times * rates[name]})
    return {**state, "stream": encode_stream(begin)}


@pytest.mark.parametrize(("times", "mentioned"), [(LEAST_PART - 1, 0), (LEAST_PART + 1, 1)])
def test_a_source_that_gives_too_little_to_be_read_fast_enough_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, times: int, mentioned: int
) -> None:
    paths = {name: write_jsonl(tmp_path / f"{name}.jsonl", texts_of(1000)) for name in ("little", "plain")}
    stream = stream_of(paths, 0, "measured")
    stream.load_state_dict(misjudged(stream, "little", times))
    rank_steps(stream, 2050)
    stream.close()
    said = said_of(caplog)
    assert len(said) == mentioned
    assert all("source 'little'" in text and f"at most {LEAST_PART} times as fast as planned" in text for text in said)


def test_what_is_as_estimated_is_not_mentioned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts_of(3000))
    stream = small_pipeline({"a": path}).for_rank(0, 1)
    rank_steps(stream, 600)
    stream.close()
    assert caplog.records == []
