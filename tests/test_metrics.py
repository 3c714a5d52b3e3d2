"""The loader's figures: what they say of a stream that is read, resumed and read on."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from tests.scenarios import corpus, small_pipeline
from torchtitan_zephon.metrics import NAMES, PREFIX, Gauges


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Path]:
    return corpus(tmp_path, 240)


def test_the_figures_are_those_listed_one_of_a_kind_for_each_source(sources: dict[str, Path]) -> None:
    gauges = Gauges(stream := small_pipeline(sources).for_rank(0, 1))
    next(gauges.timed(stream))
    kinds = {name.replace("SOURCE", source) for name in NAMES for source in sources}
    assert gauges.read().keys() == {f"{PREFIX}/{name}" for name in kinds}
    stream.close()


def test_nothing_is_said_of_sources_before_the_first_batch(sources: dict[str, Path]) -> None:
    stream = small_pipeline(sources).for_rank(0, 1)
    assert not [name for name in Gauges(stream).read() if name.count("/") > 1]


def test_rates_are_since_the_last_reading_and_shares_since_the_first_step(sources: dict[str, Path]) -> None:
    weights = {"alpha": 2.0, "beta": 1.0, "gamma": 1.0}
    stream = small_pipeline(sources, weights=weights).for_rank(0, 1)
    gauges = Gauges(stream)
    batches = gauges.timed(stream)
    for _ in itertools.islice(batches, 400):
        pass
    time.sleep(0.01)
    first = gauges.read()
    assert first["zephon/data_wait_seconds"] > 0
    assert first["zephon/tokens_per_second"] > 0
    assert sum(first[f"zephon/share/{name}"] for name in weights) == pytest.approx(1)
    for name, weight in weights.items():
        assert first[f"zephon/share/{name}"] == pytest.approx(weight / 4, abs=0.06)
        assert first[f"zephon/share_error/{name}"] == pytest.approx(first[f"zephon/share/{name}"] - weight / 4)
    assert stream.figures is not None
    read = dict(zip(weights, stream.figures.source_tokens, strict=True))
    assert first["zephon/share/beta"] == read["beta"] / sum(read.values())
    assert first["zephon/epoch/gamma"] > first["zephon/epoch/alpha"] > 0, "the small source comes round more often"
    second = gauges.read()
    assert second["zephon/data_wait_seconds"] == second["zephon/tokens_per_second"] == 0
    assert second["zephon/share/alpha"] == first["zephon/share/alpha"]
    stream.close()


def test_a_restore_is_timed_and_shares_go_on_from_the_checkpoint(sources: dict[str, Path]) -> None:
    stream = small_pipeline(sources).for_rank(0, 1)
    before = Gauges(stream)
    for _ in itertools.islice(before.timed(stream), 4 * stream.layout.local_batches):
        pass
    state, shares = stream.state_dict(), before.read()
    assert shares["zephon/restore_seconds"] == 0
    stream.close()
    resumed = small_pipeline(sources).for_rank(0, 1)
    resumed.load_state_dict(state)
    after = Gauges(resumed)
    next(after.timed(resumed))
    figures = after.read()
    assert 0 < figures["zephon/restore_seconds"] <= figures["zephon/data_wait_seconds"]
    assert figures["zephon/epoch/gamma"] >= shares["zephon/epoch/gamma"] * 0.9
    resumed.close()
