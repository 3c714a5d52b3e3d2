"""What the tests of files that are read from the front share: packings, members that begin anywhere, tapes."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import lzma
import random
from collections.abc import Callable
from pathlib import Path

from backports import zstd

from torchtitan_zephon import SourceConfig
from torchtitan_zephon.bad_records import BadRecord
from torchtitan_zephon.plan.cursor import Endless
from torchtitan_zephon.plan.slices import SliceTable, TapePlace, cut_slices
from torchtitan_zephon.read.sequential import SequentialReader
from torchtitan_zephon.read.source import Source, open_source
from torchtitan_zephon.read.tape import Tape
from torchtitan_zephon.records import RECORD, Record

Pack = Callable[[bytes], bytes]
PACKS: dict[str, Pack] = {".gz": gzip.compress, ".zst": zstd.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
START = TapePlace()


def in_members(data: bytes, pack: Pack, seed: int) -> bytes:
    """``data`` packed in several members, some of them empty, that begin and end anywhere."""
    rng = random.Random(seed)
    places = sorted(rng.choices(range(len(data) + 1), k=6))
    return b"".join(pack(data[a:b]) for a, b in zip([0, *places], [*places, len(data)], strict=True))


def table_of(source: Source, lanes: int, slice_bytes: int) -> SliceTable:
    """The slices of ``source``, of any size."""
    return dataclasses.replace(cut_slices(0, source.reader.pieces(), 4096, lanes, None), chunk_bytes=slice_bytes)


def tape_of(source: Source, lane: int, lanes: int, slice_bytes: int, place: TapePlace = START) -> Tape:
    """A lane's tape, its runs in the order of files."""
    assert isinstance(source.reader, SequentialReader)
    table = table_of(source, lanes, slice_bytes)
    return Tape(source, table, Endless(lane, lanes, table.num_runs, None), place)


def records_of(path: Path, slice_bytes: int, **settings: object) -> tuple[list[list[Record]], list[BadRecord]]:
    """The records of the one file at ``path``, slice by slice, and the bad ones of it."""
    source = open_source("s", SourceConfig(path=str(path)), **settings)  # type: ignore[arg-type]
    table, tape = table_of(source, 1, slice_bytes), tape_of(source, 0, 1, slice_bytes)
    found, all_bad = list[list[Record]](), list[BadRecord]()
    while (piece := tape.turn().take(table.chunk(0, 0, len(found))[0])).behind.runs == 0:
        documents, bad = source.read(piece.chunk, None, piece.cut)
        found.append(documents.values[RECORD])
        all_bad += bad
    return found, all_bad
