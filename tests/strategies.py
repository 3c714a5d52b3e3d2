"""The Hypothesis strategies of all tests: files' sizes, weights, layouts, documents, and ways to cut them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from torchtitan_zephon.balance import Read
from torchtitan_zephon.plan.chunking import ChunkTable, Pieces, cut
from torchtitan_zephon.records import Documents

keys = st.integers(0, 2**64 - 1)
"""A key of the generator."""

chunk_targets = st.sampled_from([1, 7, 4096, 5000, 65_536])
"""Target chunk sizes in bytes; those under 4 KiB cannot be configured, but the rule is the same."""


@st.composite
def jsonl_pieces(draw: st.DrawFn, most_bytes: int = 200_000) -> Pieces:
    """Sizes of a JSONL source's files; some are empty, not all."""
    sizes = np.array(draw(st.lists(st.integers(0, most_bytes), min_size=1, max_size=6).filter(any)), np.int64)
    return Pieces(sizes=sizes, units=sizes, runs_of_one=True)


@st.composite
def parquet_pieces(draw: st.DrawFn, most_bytes: int = 2_000_000) -> Pieces:
    """Text bytes and rows of a Parquet source's row groups; each has rows."""
    groups = draw(st.lists(st.tuples(st.integers(1, most_bytes), st.integers(1, 5000)), min_size=1, max_size=6))
    columns = np.array(groups, np.int64)
    return Pieces(sizes=columns[:, 0], units=columns[:, 1], runs_of_one=False)


@st.composite
def chunk_tables(draw: st.DrawFn, source: int = 0, lanes: int = 4) -> ChunkTable:
    """A source that is cut into few chunks, so that whole epochs can be listed."""
    pieces = draw(st.one_of(jsonl_pieces(60_000), parquet_pieces(400_000)))
    return cut(source, pieces, draw(st.sampled_from([4096, 20_000])), lanes)


weights = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=6).map(
    lambda values: {f"s{i}": value for i, value in enumerate(values)}
)
"""Weights of up to six sources, by name."""


class LayoutValues(NamedTuple):
    """Lanes, dp degree, global batch and local batch that may or may not fit together."""

    lanes: int
    dp_degree: int
    global_batch_size: int
    local_batch_size: int


layout_values = st.builds(LayoutValues, st.integers(1, 64), st.integers(1, 16), st.integers(1, 256), st.integers(1, 12))


class Document(NamedTuple):
    """A tokenised document and where it came from: source, shard, record, part."""

    ids: list[int]
    origin: tuple[int, int, int, int]


@st.composite
def documents(draw: st.DrawFn, seq_len: int, most: int = 14) -> list[Document]:
    """Documents of 0, 1, 2 tokens, of about ``seq_len``, and of several times that; all tokens differ."""
    near = st.integers(max(0, seq_len - 2), seq_len + 3)
    length = st.one_of(st.integers(0, 3), near, st.integers(0, 4 * seq_len + 2))
    found, token = [], 1000
    for i, n in enumerate(draw(st.lists(length, max_size=most))):
        found.append(Document(list(range(token, token + n)), (i % 3, i // 5, 10 * i, 0)))
        token += n
    return found


@st.composite
def cuts(draw: st.DrawFn, items: list[Document]) -> list[list[Document]]:
    """``items`` cut into chunks at random places, empty chunks included."""
    at = sorted(draw(st.lists(st.integers(0, len(items)), max_size=6)))
    edges = [0, *at, len(items)]
    return [items[a:b] for a, b in itertools.pairwise(edges)]


def tokens_of(items: list[Document]) -> Documents:
    """``items`` in columns, with the counts that the tokenizer would give."""
    lengths = [len(d.ids) for d in items]
    read = Read(records=len(items), documents=len(items), tokens=sum(lengths))
    return Documents(
        {},
        {"ids": np.array([i for d in items for i in d.ids], np.int32)},
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.array([d.origin for d in items], np.int64).reshape(-1, 4),
        read,
    )


def texts_at(origin: list[tuple[int, int, int, int]], texts: Sequence[str]) -> Documents:
    """Documents of text, a place of ``origin`` each."""
    places = np.array(origin, np.int64).reshape(-1, 4)
    read = Read(records=len(texts), documents=len(texts))
    return Documents({"text": list(texts)}, {}, np.zeros(len(texts) + 1, np.int64), places, read)
