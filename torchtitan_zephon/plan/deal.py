"""One pass over finite sources, dealt to the lanes so that all end together.

What flows in: the planned tokens of every chunk. What flows out: the chunks of each lane. A lane that
ends early is padded until the longest is done, so padding is what this has to keep small.

Chunks are dealt in blocks: ``lanes`` neighbouring chunks, one to each lane, the heaviest chunk to the lane
that has least. The block with the heaviest chunk comes first, so that small ones level what large ones left
(longest processing time first: Graham, "Bounds on multiprocessing timing anomalies", 1969). Neighbours are
alike: texts whose tokens per byte, or lengths, or filtered share drift along a source drift alike in every
lane, though none of that is known here. Last, the fullest and the emptiest lane exchange single chunks until that
levels them no more, which matters where documents are large.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .chunking import ChunkTable, Pieces

CHUNKS_A_LANE = 64
"""Chunks that a pass is cut into, for every lane: one chunk too many is 1.6 % of it."""
PARTS_OF_A_PIECE = 8
"""A row group is decoded from its start for each chunk, so one that is much of the source gets 8 a lane and no more."""
SMALLEST_CHUNK_BYTES = 256
LEVEL = 128
"""A difference below 1 / 128 of a lane's part is level: bytes do not tell tokens any better."""
LEVELLED_CHUNKS = 65536
"""With more of them the lanes are level anyway."""


def pass_chunk_size(total_bytes: int, target_bytes: int, lanes: int) -> int:
    """At most ``target_bytes``, and small beside a lane's part of one pass."""
    return min(target_bytes, max(SMALLEST_CHUNK_BYTES, total_bytes // (CHUNKS_A_LANE * lanes)))


def cut_pass(source: int, pieces: Pieces, target_bytes: int, lanes: int) -> ChunkTable:
    """The chunks of one pass: every chunk is a run, at most ``target_bytes``, and small beside a lane's part."""
    total = max(1, int(pieces.sizes.sum()))
    chunk_bytes = pass_chunk_size(total, target_bytes, lanes)
    if pieces.runs_of_one:
        chunks = -(-pieces.sizes // chunk_bytes)
    else:
        most = lanes * np.maximum(1, -(-PARTS_OF_A_PIECE * pieces.sizes // total))
        chunks = np.maximum(np.minimum(-(-pieces.sizes // chunk_bytes), most), -(-pieces.sizes // target_bytes))
        chunks = np.minimum(np.maximum(chunks, 1), pieces.units)
    first_run = np.zeros(len(chunks) + 1, dtype=np.int64)
    np.cumsum(chunks, out=first_run[1:])
    return ChunkTable(source, chunk_bytes, 1, pieces, chunks.astype(np.int64), first_run)


def deal(tokens: Sequence[np.ndarray], lanes: int, offsets: Sequence[int]) -> list[np.ndarray]:
    """The lane of every chunk, int64 [chunks] a source; ``tokens``: planned, likewise.

    ``offsets``: the lane that is first among equals, one a source.
    """
    owners = [np.empty(len(t), np.int64) for t in tokens]
    blocks = [(s, begin) for s, t in enumerate(tokens) for begin in range(0, len(t), lanes)]
    blocks.sort(key=lambda b: (-int(tokens[b[0]][b[1] : b[1] + lanes].max()), b))
    held = np.zeros(lanes, np.int64)
    for turn, (s, begin) in enumerate(blocks):
        block = tokens[s][begin : begin + lanes]
        heaviest_first = np.argsort(-block, kind="stable")
        among_equals = (np.arange(lanes) - offsets[s]) % lanes * (-1) ** turn  # back and forth: no lane is always first
        least_first = np.lexsort((among_equals, held))[: len(block)]
        owners[s][begin + heaviest_first] = least_first
        held[least_first] += block[heaviest_first]
    if sum(map(len, tokens)) <= LEVELLED_CHUNKS:
        _level(np.concatenate(tokens), owner := np.concatenate(owners), held)
        owners = np.split(owner, np.cumsum([len(t) for t in tokens])[:-1])
    return owners


def _level(tokens: np.ndarray, owner: np.ndarray, held: np.ndarray) -> None:
    """Exchange chunks between the fullest and the emptiest lane, in place, while that lessens their difference."""
    for _ in range(8 * len(held)):
        full, empty = int(held.argmax()), int(held.argmin())
        gap = int(held[full] - held[empty])
        giving, taking = np.flatnonzero(owner == full), np.flatnonzero(owner == empty)
        taking = taking[np.argsort(tokens[taking], kind="stable")]
        back = np.concatenate([[0], tokens[taking]])  # in exchange for a chunk: nothing, or one of these
        at = np.searchsorted(back, tokens[giving] - gap // 2).clip(0, len(back) - 1)
        moved = tokens[giving] - back[at]
        best = int(np.abs(2 * moved - gap).argmin())
        if not 0 < moved[best] < gap or gap * LEVEL < held.mean():
            return
        owner[giving[best]] = empty
        if at[best]:
            owner[taking[at[best] - 1]] = full
        held[full] -= moved[best]
        held[empty] += moved[best]
