"""Where a source is sampled: many small places, spread evenly over its bytes.

What flows in: the sizes of a source's pieces. What flows out: places in them, the same whatever the
number of lanes. A place stands for the record that holds it, so a document is met in proportion to its size.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .chunking import Pieces

PLACE_BYTES = 4096
"""Of ``estimate_bytes``, for each place."""
FEWEST_PLACES = 8
DECODED_BYTES = 128 * 2**20
"""A place in a Parquet row group costs decoding it up to there: places are moved to the front to stay under this."""


SEQUENTIAL_PLACES = 16


def places(pieces: Pieces, estimate_bytes: int) -> Iterator[tuple[int, int]]:
    """Piece and unit (byte of a JSONL file, row of a row group) of every place, in ascending order.

    Of files that are read from the front, ``SEQUENTIAL_PLACES`` at the beginnings of as many, or fewer.
    """
    if pieces.sequential:
        yield from _beginnings(pieces, estimate_bytes // SEQUENTIAL_PLACES)
        return
    count = max(FEWEST_PLACES, estimate_bytes // PLACE_BYTES)
    ends = np.cumsum(pieces.sizes)
    total = int(ends[-1])
    offsets = [(2 * k + 1) * total // (2 * count) for k in range(count)]
    found = np.searchsorted(ends, offsets, side="right")
    decoded = 0 if pieces.runs_of_one else int(pieces.sizes[np.unique(found)].sum())
    for offset, piece in zip(offsets, found.tolist(), strict=True):
        size, units = int(pieces.sizes[piece]), int(pieces.units[piece])
        within = offset - (int(ends[piece]) - size)
        if decoded > DECODED_BYTES:
            within = within * DECODED_BYTES // decoded
        yield piece, min(units - 1, within * units // size)


def _beginnings(pieces: Pieces, place_bytes: int) -> Iterator[tuple[int, int]]:
    full = np.flatnonzero(pieces.sizes)
    few = min(SEQUENTIAL_PLACES, len(full))
    for piece in full[(2 * np.arange(few) + 1) * len(full) // (2 * few)].tolist():
        for k in range(SEQUENTIAL_PLACES // few):
            yield piece, k * place_bytes
