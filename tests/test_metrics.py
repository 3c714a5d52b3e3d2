"""The loader's figures: what they say of a stream that is read, resumed and read on."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from tests.scenarios import corpus, rank_steps, small_pipeline
from torchtitan_zephon import RankStream
from torchtitan_zephon.metrics import NAMES, PREFIX, Board, Gauges


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
    for kind, tokens in (("packed_share", stream.figures.source_tokens), ("share", stream.figures.delivered_tokens)):
        counted = dict(zip(weights, tokens, strict=True))
        assert first[f"zephon/{kind}/beta"] == counted["beta"] / sum(counted.values())
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


# ---- what was delivered


def delivered(stream: RankStream) -> tuple[int, ...]:
    assert stream.figures is not None
    return stream.figures.delivered_tokens


def test_delivered_tokens_are_those_of_the_sequences_handed_out(sources: dict[str, Path]) -> None:
    stream = small_pipeline(sources, flush_every_sequences=1000).for_rank(0, 1)  # all in the first segment
    counted = [0] * len(sources)
    for step in rank_steps(stream, 6):
        for sequence in (sequence for batch in step for sequence in batch.sequences):
            ends = [*sequence.pieces[1:, 0].tolist(), sequence.filled]
            for (begin, source, *_), end in zip(sequence.pieces.tolist(), ends, strict=True):
                counted[source] += end - begin
    assert delivered(stream) == tuple(counted)
    assert stream.balance.tokens_out == sum(counted)
    assert stream.figures is not None
    assert all(p > d for p, d in zip(stream.figures.source_tokens, counted, strict=True)), "packing runs ahead"
    stream.close()


@pytest.mark.parametrize("options", [{}, {"algorithm": "first_fit"}, {"label_shift": "sequence"}], ids=str)
def test_delivered_tokens_depend_on_the_place_alone(sources: dict[str, Path], options: dict[str, str]) -> None:
    """At each step the same straight through, after a restore, and with other workers."""
    straight = small_pipeline(sources, workers=4, **options).for_rank(0, 1)  # type: ignore[arg-type]
    for step in range(1, 13):
        rank_steps(straight, 1)
        if step % 3 == 0:
            resumed = small_pipeline(sources, workers=1, **options).for_rank(0, 1)  # type: ignore[arg-type]
            resumed.load_state_dict(straight.state_dict())
            rank_steps(resumed, 1)
            expected = small_pipeline(sources, **options).for_rank(0, 1)  # type: ignore[arg-type]
            rank_steps(expected, step + 1)
            assert delivered(resumed) == delivered(expected)
            for stream in (resumed, expected):
                stream.close()
    straight.close()


def test_all_that_a_finite_stream_packs_is_delivered_in_the_end(sources: dict[str, Path]) -> None:
    stream = small_pipeline(sources, repeat=False, label_shift="sequence").for_rank(0, 1)
    for _ in stream:
        pass
    assert stream.figures is not None
    packed, handed_out = map(sum, (stream.figures.source_tokens, stream.figures.delivered_tokens))
    assert packed == stream.balance.read.tokens
    assert packed * 0.95 < handed_out <= packed, "but for the last tokens, one a row, of the last segment"
    stream.close()


def test_a_pass_is_counted_as_one(sources: dict[str, Path]) -> None:
    stream = small_pipeline(sources, repeat=False).for_rank(0, 1)
    gauges = Gauges(stream)
    for number, _ in enumerate(gauges.timed(stream), 1):
        if number == 100:
            part, read = gauges.read(), stream.figures
    figures = gauges.read()
    for s, name in enumerate(sources):
        assert figures[f"zephon/epoch/{name}"] == pytest.approx(1, abs=0.06), "but for last tokens"
        assert read is not None
        assert stream.figures is not None
        of_all = read.delivered_tokens[s] / stream.figures.source_tokens[s]
        assert part[f"zephon/epoch/{name}"] == pytest.approx(of_all, rel=0.2)
    stream.close()


class Wall:
    """A ``Board`` for ranks in one process; ``posts``: how often each was written on."""

    def __init__(self, ranks: int) -> None:
        self.notes_by_rank, self.posts = [b""] * ranks, [0] * ranks

    def of(self, rank: int) -> Board:
        wall = self

        class Mine:
            def post(self, note: bytes) -> None:
                wall.notes_by_rank[rank] = note
                wall.posts[rank] += 1

            def notes(self) -> list[bytes]:
                return wall.notes_by_rank

        return Mine()


def read_on_all_ranks(sources: dict[str, Path], ranks: int, steps: int, **options: object) -> list[dict[str, float]]:
    wall = Wall(ranks)
    streams = [small_pipeline(sources).options(**options).for_rank(r, ranks, local_batch_size=1) for r in range(ranks)]  # type: ignore[arg-type]
    gauges = [Gauges(stream) for stream in streams]
    for rank, own in enumerate(gauges):
        own.share(wall.of(rank), lambda step: step == 1 or step % 2 == 0)
    for own, stream in zip(gauges, streams, strict=True):
        for _ in itertools.islice(own.timed(stream), steps * stream.layout.local_batches):
            pass
    assert wall.posts == [1 + steps // 2] * ranks, "once for each step that is logged"
    found = [own.read() for own in gauges]
    for stream in streams:
        stream.close()
    return found


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_rank_logs_the_shares_of_all_ranks_as_one_rank_would(sources: dict[str, Path], ranks: int) -> None:
    steps = 40
    alone = small_pipeline(sources).for_rank(0, 1)
    gauges = Gauges(alone)
    for _ in itertools.islice(gauges.timed(alone), steps * alone.layout.local_batches):
        pass
    expected = gauges.read()
    alone.close()
    for found in read_on_all_ranks(sources, ranks, steps):
        for name in sources:
            for kind in ("share", "share_error"):
                assert found[f"zephon/{kind}/{name}"] == expected[f"zephon/{kind}/{name}"]
            assert found[f"zephon/epoch/{name}"] == pytest.approx(expected[f"zephon/epoch/{name}"], rel=0.05)
    own = [found["zephon/packed_share/alpha"] for found in read_on_all_ranks(sources, ranks, steps)]
    assert len(set(own)) == ranks, "what is packed is each rank's own"


def test_passes_are_not_counted_twice_where_ranks_share_a_lane(sources: dict[str, Path]) -> None:
    [expected, *_] = read_on_all_ranks(sources, 4, 20)
    [found, *_] = read_on_all_ranks(sources, 8, 20, shared_lanes=True)
    for name in sources:
        assert found[f"zephon/epoch/{name}"] == pytest.approx(expected[f"zephon/epoch/{name}"], rel=0.1)


def test_a_rank_that_has_no_note_of_any_rank_logs_its_own(sources: dict[str, Path]) -> None:
    stream = small_pipeline(sources).for_rank(0, 2, local_batch_size=1)
    gauges = Gauges(stream)
    gauges.share(Wall(2).of(0), lambda step: False)
    next(gauges.timed(stream))
    assert sum(gauges.read()[f"zephon/share/{name}"] for name in sources) == pytest.approx(1)
    stream.close()


def test_a_rank_that_is_a_step_ahead_is_counted_at_the_step_that_is_logged(sources: dict[str, Path]) -> None:
    wall = Wall(2)
    streams = [small_pipeline(sources).for_rank(rank, 2) for rank in range(2)]
    gauges = [Gauges(stream) for stream in streams]
    batches = []
    for rank, gauge in enumerate(gauges):
        gauge.share(wall.of(rank), lambda step: True)
        batches.append(gauge.timed(streams[rank]))
    found = []
    for ahead in (0, 1):
        for batch in batches:
            for _ in range(20 * streams[0].layout.local_batches):
                next(batch)
        if ahead:
            for _ in range(streams[1].layout.local_batches):
                next(batches[1])
        found.append({k: v for k, v in gauges[0].read().items() if "/share/" in k})
    alone = small_pipeline(sources).for_rank(0, 1)
    expected = Gauges(alone)
    for _ in itertools.islice(expected.timed(alone), 40 * alone.layout.local_batches):
        pass
    assert found[1] == {k: v for k, v in expected.read().items() if "/share/" in k}
    for stream in (*streams, alone):
        stream.close()
