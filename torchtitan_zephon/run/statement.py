"""What one rank is going to read, as text that can be compared with what the other ranks are going to read.

What flows in: a program, a layout, and the place where the stream begins. What flows out: a ``Statement``, tables of
short texts by name. Left out on purpose: source folders (only content matters), workers, prefetch and runner (speed).
numpy is no part of it: the stream takes only integer arithmetic and stable sorting from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from ..plan.chunking import ChunkTable
from ..plan.layout import Layout
from ..plan.slices import SliceTable
from ..program import Program
from ..read.formats import formats as known_formats
from ..state import Snapshot, StreamState

Table = dict[str, str]
"""Name -> value, as an error shows them."""

LONGEST = 160
"""Characters of a value that travel; of a longer one the beginning and a hash."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """What a rank is going to read.

    ``tables``: what must be the same on all ranks, a table for each of ``agree.KINDS``. ``lanes``: what must be the
    same on ranks of the same dp rank. ``dp_rank``: None as long as the mesh is not known.
    """

    tables: dict[str, Table] = field(default_factory=dict)
    lanes: Table = field(default_factory=dict)
    dp_rank: int | None = None
    dp_degree: int = 1

    def table(self, kind: str) -> Table:
        """The table of ``kind``; empty if nothing is known of it."""
        return self.lanes if kind == "lanes" else self.tables.get(kind, {})


def statement(program: Program, layout: Layout, at: Snapshot | None = None) -> Statement:
    """What the rank of ``layout`` is going to read; ``at``: where it begins, with the measured estimate."""
    place = {} if at is None else {"estimate": _estimate(program.names, at.stream), "place": _place(at.stream)}
    return Statement(
        tables={**_read(program, "" if at is None else at.stream.tokenizer_backend, layout), **place},
        lanes={} if at is None else {f"lane {s.lane}": f"{s.sequences} sequences, digest {s.digest}" for s in at.lanes},
        dp_rank=layout.dp_rank,
        dp_degree=layout.dp_degree,
    )


def before_the_mesh(readings: Mapping[str, tuple[Program, Layout, tuple[int, ...] | None]], **found: str) -> Statement:
    """What is known before ranks have a place in the mesh.

    ``readings``: by a prefix for the names, a program, the layout of any of its ranks, and the estimate where it was
    measured. ``found``: what else must be the same on all ranks.
    """
    tables: dict[str, Table] = {}
    for prefix, (program, layout, measured) in readings.items():
        own = _read(program, "", layout)
        if measured is not None:
            own["estimate"] = _tokens_per_mib(program.names, measured)
        for kind, table in own.items():
            tables.setdefault(kind, {}).update({prefix + name: value for name, value in table.items()})
    return Statement(tables={**tables, "place": dict(found)})


def _read(program: Program, backend: str, layout: Layout) -> dict[str, Table]:
    """All but the place. ``backend``: of the checkpoint; '' for the program's own."""
    backend = backend or program.tokenize.backend
    recipe = {k: v for k, v in program.identity.items() if k != "sources"}
    sources = {
        name: {k: v for k, v in own.items() if k != "shards"} for name, own in program.identity["sources"].items()
    }
    return {
        "versions": _versions((s.reader.manifest.format for s in program.sources), backend),
        "recipe": dict(_flat({**recipe, "sources": sources})),
        "shards": {
            f"sources.{source.name}.shards": pieces_text(table)
            for source, table in zip(program.sources, program.tables, strict=True)
        },
        "layout": {name: str(getattr(layout, name)) for name in ("global_batch_size", "dp_degree", "local_batch_size")},
    }


def pieces_text(table: ChunkTable | SliceTable) -> str:
    """What the files of a source consist of. All ranks have one list of them, and each finds their row groups."""
    pieces = table.pieces
    digest = hashlib.blake2b(pieces.sizes.tobytes() + pieces.units.tobytes(), digest_size=8).hexdigest()
    return f"{len(pieces.sizes)} pieces, digest {digest}"


def _versions(formats: Iterable[str], backend: str) -> Table:
    """What is installed of the packages that make tokens of this job's files."""
    packages = {"torchtitan_zephon", "tokenizers", *(known_formats()[name].package for name in formats)}
    if backend != "hf":
        packages.add(backend)
    return {"tokenizer_backend": backend, **{f"version of {name}": _version(name) for name in sorted(packages)}}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _estimate(names: tuple[str, ...], stream: StreamState) -> Table:
    assert stream.tokens_per_mib is not None
    return _tokens_per_mib(names, tuple(stream.tokens_per_mib[name] for name in names))


def _tokens_per_mib(names: tuple[str, ...], measured: tuple[int, ...]) -> Table:
    return {f"tokens per MiB of source {name!r}": str(n) for name, n in zip(names, measured, strict=True)}


def _place(stream: StreamState) -> Table:
    return {name: str(getattr(stream, name)) for name in ("step", "first_step", "lane_sequences")}


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, clipped(json.dumps(value))


def clipped(text: str) -> str:
    """``text``, or the beginning and a hash of one that is too long to send."""
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST - 40]}... (sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]})"
