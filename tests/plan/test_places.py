"""Where a source is sampled: evenly over its bytes, whatever its pieces."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from tests.strategies import jsonl_pieces, parquet_pieces
from torchtitan_zephon.plan.chunking import Pieces
from torchtitan_zephon.plan.places import DECODED_BYTES, FEWEST_PLACES, PLACE_BYTES, places


@given(st.one_of(jsonl_pieces(), parquet_pieces()), st.integers(1, 2**21))
def test_places_rise_lie_in_their_pieces_and_are_even_over_the_bytes(pieces: Pieces, estimate_bytes: int) -> None:
    found = list(places(pieces, estimate_bytes))
    assert len(found) == max(FEWEST_PLACES, estimate_bytes // PLACE_BYTES)
    assert found == sorted(found)
    assert all(0 <= unit < pieces.units[piece] for piece, unit in found)
    before = np.concatenate([[0], np.cumsum(pieces.sizes)])
    offsets = [before[p] + pieces.sizes[p] * u / pieces.units[p] for p, u in found]
    step = before[-1] / len(found)
    for k, (offset, (piece, _)) in enumerate(zip(offsets, found, strict=True)):
        unit_bytes = pieces.sizes[piece] / pieces.units[piece]
        assert -1 <= (k + 0.5) * step - offset <= unit_bytes + 1


def test_in_a_huge_row_group_places_stay_where_decoding_is_cheap() -> None:
    huge = Pieces(np.array([8 * DECODED_BYTES]), np.array([8000]), False)
    units = [unit for _, unit in places(huge, 2**19)]
    assert max(units) < 1000
    assert units == sorted(set(units))
