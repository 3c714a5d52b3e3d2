"""One pass, dealt: each chunk to one lane, and no lane with much more than its part."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.strategies import jsonl_pieces, parquet_pieces
from torchtitan_zephon.plan.chunking import Pieces
from torchtitan_zephon.plan.deal import cut_pass, deal


def loads(tokens: list[np.ndarray], owners: list[np.ndarray], lanes: int) -> np.ndarray:
    """Tokens of every lane, int64 [lanes]."""
    held = np.zeros(lanes, np.int64)
    for t, owner in zip(tokens, owners, strict=True):
        np.add.at(held, owner, t)
    return held


def shapes() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {
        "equal": np.full(2048, 1000),
        "rising": np.arange(1, 2049),
        "falling": np.arange(2048, 0, -1),
        "log-normal": np.exp(rng.normal(6, 1, 2048)).astype(np.int64),
        "few large documents": np.where(np.arange(2048) % 20, 1, np.exp(rng.normal(10, 0.5, 2048)).astype(np.int64)),
        "not a multiple of the lanes": np.full(2041, 1000),
    }


@pytest.mark.parametrize("lanes", [1, 4, 16, 32])
@pytest.mark.parametrize("shape", shapes())
def test_no_lane_gets_over_two_per_cent_more_than_its_part(shape: str, lanes: int) -> None:
    tokens = [shapes()[shape], shapes()["equal"][:500]]
    held = loads(tokens, deal(tokens, lanes, [0, 3]), lanes)
    assert held.max() <= 1.02 * held.mean()


@given(st.lists(st.lists(st.integers(1, 10**6), min_size=1, max_size=80), min_size=1, max_size=3), st.integers(1, 9))
def test_no_lane_exceeds_its_part_by_more_than_a_chunk(sizes: list[list[int]], lanes: int) -> None:
    tokens = [np.array(s, np.int64) for s in sizes]
    owners = deal(tokens, lanes, [1] * len(tokens))
    assert all(len(o) == len(t) and o.min() >= 0 and o.max() < lanes for o, t in zip(owners, tokens, strict=True))
    held = loads(tokens, owners, lanes)
    assert held.max() - held.mean() <= max(map(max, sizes))


def test_what_drifts_along_a_source_drifts_alike_in_every_lane() -> None:
    planned = np.full(1024, 1000)
    real = np.linspace(500, 1500, 1024)  # tokens per byte rise threefold, which is not known
    (owner,) = deal([planned], 16, [0])
    held = np.bincount(owner, weights=real, minlength=16)
    assert held.max() < 1.005 * held.mean()


def test_sources_of_one_chunk_are_spread_over_the_lanes() -> None:
    owners = deal([np.array([100])] * 64, 8, list(range(64)))
    assert np.bincount(np.concatenate(owners), minlength=8).tolist() == [8] * 8


@given(st.one_of(jsonl_pieces(), parquet_pieces()), st.sampled_from([4096, 65_536]), st.integers(1, 40))
def test_a_pass_covers_every_unit_once_in_chunks_of_at_most_the_target(pieces: Pieces, target: int, lanes: int) -> None:
    table = cut_pass(3, pieces, target, lanes)
    found = [table.chunk(0, run, 0) for run in range(table.num_runs)]
    assert all(last and chunk.stop > chunk.start and chunk.source == 3 for chunk, last in found)
    for piece, units in enumerate(pieces.units.tolist()):
        borders = table.borders(piece)
        own = [chunk for chunk, _ in found if chunk.piece == piece]
        assert [c.start for c in own] == borders[:-1].tolist()
        assert [c.stop for c in own] == borders[1:].tolist()
        assert not len(own) or (own[0].start, own[-1].stop) == (0, units)
    if pieces.runs_of_one:
        assert all(chunk.num_bytes <= target for chunk, _ in found)


def test_a_row_group_that_is_the_whole_source_is_cut_into_eight_a_lane() -> None:
    one = Pieces(np.array([2**26]), np.array([10**6]), False)
    assert cut_pass(0, one, 2**18, 4).num_chunks == 256  # 64 MiB in chunks of at most 256 KiB
    small = Pieces(np.array([2**20]), np.array([10**6]), False)
    assert cut_pass(0, small, 2**18, 4).num_chunks == 32
    many = Pieces(np.full(1000, 2**20), np.full(1000, 5000), False)
    assert cut_pass(0, many, 2**30, 4).num_chunks == 1000
