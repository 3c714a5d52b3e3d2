"""The compiled pipeline: open sources, cut them into chunks, measure tokens per byte.

What flows in: a recipe, a tokenizer and user functions. What flows out: the program of any lane,
the work to do for any chunk (a pure function of the chunk), and the recipe as plain values for
the checkpoint. Compiling lists files and reads samples of them; it opens no thread.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence as Seq
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from .balance import Read
from .cache import cached, counts_of
from .config import Recipe
from .documents import read_documents
from .errors import ConfigError, SourceError
from .estimate import Counts, Estimate, estimate
from .identity import STREAM_FORMAT, identity_of_stream, shuffle_seed
from .lane.stages import LaneProgram
from .ops import fast
from .ops.fields import IdLimits
from .ops.functions import Function
from .ops.pack import Packing
from .ops.tokenize import Tokenize, TokenizerSpec, Wanted, tokenize
from .paths import StatedPath
from .plan import keyed
from .plan.chunking import Chunk, ChunkTable, cut
from .plan.cursor import Dealt, Endless, LaneRuns, Tape as TapeRuns, lane_offsets, order_keys
from .plan.deal import cut_pass, deal
from .plan.mixture import Mixture, integer_weights, lane_begin, lane_phases
from .plan.segments import LanePlan
from .plan.slices import SliceTable, TapePlace, cut_slices
from .read.files import shared_files
from .read.sequential import Cut
from .read.source import Opening, Source, open_source
from .read.stores.settings import LOCAL, StorageSettings
from .read.tape import Tape, Turn
from .records import Documents, Packet

SAMPLED_CHARACTERS = 8192
"""Of one text, when tokens per byte are measured; the rest of a longer one is taken to be like it."""
WEIGHED_BYTES = 2**30
"""A source up to this size is dealt, in a pass, by what its chunks really hold; a larger one by their planned sizes."""
logger = logging.getLogger(__name__)
_said: set[str] = set()


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A compiled pipeline. Sources are in order of their names, whatever order they were given in."""

    recipe: Recipe
    seq_len: int
    sources: tuple[Source, ...]
    tables: tuple[ChunkTable | SliceTable, ...]
    tokenize: Tokenize
    functions: tuple[Function, ...]
    storage: StorageSettings
    identity: dict[str, Any] = field(repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Source names, in the stream's order."""
        return tuple(s.name for s in self.sources)

    @property
    def packing(self) -> Packing:
        """How rows are made."""
        return self.recipe.packing(self.seq_len, self.tokenize.padding_id)

    def work(self, chunk: Chunk, turn: Turn | None = None) -> Packet:
        """The documents of ``chunk``: read, passed through ``STAGES``, tokenised. Any thread may run it.

        Pure, but that a chunk of a tape is read in its ``turn``.
        """
        if turn is None:
            return Packet.of(self._tokenized(self._documents(chunk)))
        chunk, cut, behind = turn.take(chunk)
        return Packet.of(self._tokenized(self._documents(chunk, cut)), behind)

    def _tokenized(self, documents: Documents) -> Documents:
        return self.tokenize.as_they_are(documents) if self.packing.ready else self.tokenize(documents)

    def _documents(self, chunk: Chunk, cut: Cut | None = None) -> Documents:
        limits = IdLimits(self.tokenize.largest_id(), self.packing.id_lengths)
        documents = read_documents(self.sources[chunk.source], chunk, self.functions, self.recipe, limits, cut)
        for stage in STAGES:
            documents = stage(self, chunk, documents)
        return documents

    def on(self, backend: Wanted) -> Program:
        """This program with another tokenizer back-end. Raises ``TokenizerError`` if that cannot be had."""
        return replace(self, tokenize=tokenize(self.tokenize.spec, backend))

    def measure(self) -> tuple[Estimate, ...]:
        """Tokens per byte, one a source, from places of ``estimate_bytes`` in all.

        Deterministic, so every rank finds the same. The texts are read every time; what the tokenizer makes of
        them is kept on this machine. A fast back-end is compared with the reference on all of them. Raises
        ``SourceError`` for a source whose sample has no usable document, ``TokenizerError`` where back-ends differ.
        """
        return tuple(
            estimate(s, source, self.recipe.estimate_bytes, functools.partial(self._count, s))
            for s, source in enumerate(self.sources)
        )

    def _count(self, s: int, chunks: list[Chunk]) -> Counts:
        """What is found in each of ``chunks``, which are of source number ``s``."""

        def count(documents: Documents) -> tuple[int, int]:
            return len(documents.ids), self.packing.usable(documents)

        whole, read = [self._documents(chunk) for chunk in chunks], Read()
        for documents in whole:
            read.add(documents.read)
        if self.sources[s].reader.contents == "ids":
            return Counts([count(self._tokenized(documents)) for documents in whole], "", read)

        def tokenized() -> list[tuple[int, int]]:
            for documents in samples:
                self.tokenize.check(documents.values["text"])
            return [count(self.tokenize(documents)) for documents in samples]

        samples = [documents.cut(SAMPLED_CHARACTERS) for documents in whole]
        digest = hashlib.sha256()
        for documents in samples:
            for text in documents.values["text"]:
                digest.update(b"%d:" % len(text) + text.encode("utf-8", "surrogatepass"))
            digest.update(b"|")
        how = [fast.versions(self.tokenize.backend), STREAM_FORMAT, self.recipe.label_shift]
        key = [self.tokenize.spec.identity, *how, digest.hexdigest()]
        sizes = [documents.num_characters for documents in samples]
        parts = [documents.num_characters / max(1, size) for documents, size in zip(whole, sizes, strict=True)]
        most = [size + len(documents) for size, documents in zip(sizes, samples, strict=True)]
        found = cached("estimate", key, tokenized, counts_of(most))
        counts = [(tokens * part, inputs * part) for (tokens, inputs), part in zip(found, parts, strict=True)]
        losses = self.tokenize.losses([text for documents in samples for text in documents.values["text"]])
        return Counts(counts, losses, read)

    def warn(self, estimates: Iterable[Estimate] = ()) -> None:
        """Log what is likely not meant, though it can be trained on; each sentence once in a process.

        ``estimates``: as ``measure`` gave them; without them only what is known unmeasured is said.
        """
        found = unended(self.recipe, self.tokenize)
        found += [text for name, e in zip(self.names, estimates, strict=False) for text in e.warnings(name)]
        for text in found:
            if text not in _said:
                _said.add(text)
                logger.warning("zephon: %s", text)

    def tapes(self, plan: LanePlan, places: Mapping[str, TapePlace]) -> dict[int, Tape]:
        """The tapes of a lane at ``places``, by number of the source; only sources read from the front have one."""
        tapes = {}
        for s, (source, table, runs) in enumerate(zip(self.sources, self.tables, plan.runs.runs, strict=True)):
            if isinstance(table, SliceTable) and isinstance(runs, TapeRuns):
                tapes[s] = Tape(source, table, runs.runs, places.get(source.name, TapePlace()))
        return tapes

    def lanes(self, numbers: Iterable[int], tokens_per_mib: Seq[int]) -> dict[int, LaneProgram]:
        """The programs of the lanes ``numbers``."""
        dealt = None if self.recipe.repeat else self._deal(tokens_per_mib)
        return {lane: self._lane(lane, tokens_per_mib, dealt) for lane in numbers}

    def _deal(self, tokens_per_mib: Seq[int]) -> list[np.ndarray]:
        """The lane of every run of one pass, int64 [runs] a source."""
        tokens = [
            np.maximum(1, _run_bytes(source, table) * rate >> 20)
            for source, table, rate in zip(self.sources, self.tables, tokens_per_mib, strict=True)
        ]
        return deal(tokens, self.recipe.lanes, lane_offsets(self.recipe.seed, self.names, self.recipe.lanes))

    def _runs(self, lane: int, dealt: list[np.ndarray] | None) -> tuple[Endless | Dealt | TapeRuns, ...]:
        """The runs of every source that are ``lane``'s."""
        r = self.recipe
        offsets, keys = lane_offsets(r.seed, self.names, r.lanes), order_keys(r.seed, self.names)
        if dealt is None:
            endless = [
                Endless((lane - offset) % r.lanes, r.lanes, table.num_runs, key if r.shuffle_chunks else None)
                for offset, table, key in zip(offsets, self.tables, keys, strict=True)
            ]
            return tuple(
                TapeRuns(runs) if isinstance(table, SliceTable) else runs
                for runs, table in zip(endless, self.tables, strict=True)
            )
        own = [np.flatnonzero(owners == lane) for owners in dealt]
        if r.shuffle_chunks:
            own = [
                runs[keyed.permutation(keyed.key(key, lane), len(runs))] for runs, key in zip(own, keys, strict=True)
            ]
        return tuple(map(Dealt, own))

    def _lane(self, lane: int, tokens_per_mib: Seq[int], dealt: list[np.ndarray] | None) -> LaneProgram:
        r = self.recipe
        weights = integer_weights({n: r.sources[n].weight for n in self.names})
        typical = [max(1, t.typical_chunk_bytes * m >> 20) for t, m in zip(self.tables, tokens_per_mib, strict=True)]
        runs = LaneRuns(lane, self.tables, self._runs(lane, dealt), lane_begin(r.seed, weights, lane, r.lanes))
        plan = LanePlan(
            runs=runs,
            mixture=Mixture(weights, lane_phases(r.seed, self.names, weights, typical, lane, r.lanes)),
            tokens_per_mib=tuple(tokens_per_mib),
            segment_tokens=r.flush_every_sequences * self.seq_len,
            measured=r.shares == "measured",
        )
        return LaneProgram(
            plan=plan,
            source_names=self.names,
            packing=self.packing,
            shuffle_buffer_sequences=r.shuffle_buffer_sequences,
            shuffle_seed=shuffle_seed(r),
            bad_records=r,
        )

    def explain(self) -> str:
        """The compiled plan in words and numbers."""
        r = self.recipe
        total = sum(s.weight for s in r.sources.values())
        lines = [
            f"stream format {STREAM_FORMAT}, {r.lanes} lanes, seed {r.seed}, {'repeating' if r.repeat else 'one pass'}"
        ]
        for source, table in zip(self.sources, self.tables, strict=True):
            manifest = source.reader.manifest
            kind = f"{manifest.format} shards{' of token ids' * (source.reader.contents == 'ids')}"
            num_bytes = sum(s.num_bytes for s in manifest.shards)
            lines.append(
                f"  source {source.name!r}: {r.sources[source.name].weight / total:.1%} of tokens; "
                f"{len(manifest.shards)} {kind}, {num_bytes:,} bytes; {table.num_chunks:,} chunks of "
                f"{table.typical_chunk_bytes:,} bytes, {table.num_chunks / r.lanes:.1f} a lane and epoch"
            )
            lines += [f"    {line}" for line in manifest.files_text().splitlines()]
        lines += [f"  {text}" for text in shared_files([(repr(s.name), s.reader.manifest) for s in self.sources])]
        lines += [f"  {f.kind} {f.identity}" for f in self.functions]
        lines += [
            f"  tokenize field {', '.join(sorted({str(s.text) for s in self.sources}))}: largest id "
            f"{self.tokenize.largest_id()}, special tokens in text {self.tokenize.spec.special_tokens_in_text}; by "
            f"{self.tokenize.backend_text}",
            f"  a document is read as  {self.tokenize.document}  ({self.tokenize.spec.roles})",
            f"  pack {r.pack} to {self.seq_len} tokens, labels within each {r.label_shift}; flush every "
            f"{r.flush_every_sequences} sequences a lane",
            f"  shuffle: chunks {r.shuffle_chunks}, records {r.shuffle_records}, buffer "
            f"{r.shuffle_buffer_sequences} sequences",
        ]
        return "\n".join(lines)


def permuted(program: Program, chunk: Chunk, documents: Documents) -> Documents:
    """The documents of a chunk in a keyed order, if the recipe wants that."""
    if not program.recipe.shuffle_records or len(documents) < 2:
        return documents
    name = program.sources[chunk.source].name
    key = keyed.key(program.recipe.seed, "records", name, chunk.epoch, chunk.number, chunk.start)
    return documents.take(keyed.permutation(key, len(documents)))


STAGES: tuple[Callable[[Program, Chunk, Documents], Documents], ...] = (permuted,)
"""What a chunk's documents pass between reading and tokenising, in this order. A stage is pure: any worker runs it."""


def check_seq_len(seq_len: int) -> None:
    """Raises ``ConfigError`` for a number of tokens that no sequence can have."""
    if type(seq_len) is not int or seq_len < 2:
        raise ConfigError(f"seq_len = {seq_len!r} must be 2 or more, a whole number.")


def compile_program(
    recipe: Recipe,
    seq_len: int,
    tokenizer: TokenizerSpec,
    functions: tuple[Function, ...] = (),
    backend: Wanted = "hf",
    opening: Opening = open_source,
    storage: StorageSettings = LOCAL,
) -> Program:
    """Open, by ``opening``, and cut every source. Raises ``ConfigError``, ``SourceError``, ``TokenizerError``."""
    check_seq_len(seq_len)
    if not recipe.sources:
        raise ConfigError(
            "the recipe names no source; add a table for each, such as\n"
            '    [zephon.sources.wiki]\n    path = "data/wiki"\n    weight = 1.0'
        )
    sources = tuple(opened(name, recipe, opening, storage) for name in sorted(recipe.sources))
    recipe.check_contents({source.name: source.reader.contents for source in sources})
    tables = tuple(_table(i, source, recipe) for i, source in enumerate(sources))
    identity = identity_of_stream(recipe, seq_len, sources, tokenizer, functions)
    made = tokenize(tokenizer, backend)
    for source in sources:
        source.refuse_narrow_ids(made.largest_id())
    return Program(
        recipe=recipe,
        seq_len=seq_len,
        sources=sources,
        tables=tables,
        tokenize=made,
        functions=functions,
        storage=storage,
        identity=identity,
    )


def _table(s: int, source: Source, recipe: Recipe) -> ChunkTable | SliceTable:
    """How source number ``s`` is cut."""
    pieces = source.reader.pieces()
    if pieces.sequential:
        lengths = None if recipe.repeat else source.lengths()
        return cut_slices(s, pieces, recipe.chunk_bytes, recipe.lanes, lengths)
    return (cut if recipe.repeat else cut_pass)(s, pieces, recipe.chunk_bytes, recipe.lanes)


def opened(name: str, recipe: Recipe, opening: Opening = open_source, storage: StorageSettings = LOCAL) -> Source:
    """The open source ``name``. Raises ``SourceError``; where its path leads nowhere, with how that was stated."""
    path = recipe.sources[name].path
    try:
        return opening(name, recipe.sources[name], recipe.max_record_bytes, storage)
    except SourceError as error:
        if not isinstance(path, StatedPath) or not path.hint or Path(path).exists():
            raise
        raise SourceError(f"{error} {path.hint}") from None


def _run_bytes(source: Source, table: ChunkTable | SliceTable) -> np.ndarray:
    """Planned bytes of every run of one pass, int64 [runs]; as they are found to be, where the source is small."""
    if isinstance(table, SliceTable):
        return table.run_bytes()
    borders = [table.borders(piece) for piece in range(len(table.chunks))]
    if int(table.pieces.sizes.sum()) <= WEIGHED_BYTES:
        return np.concatenate([source.weigh(piece, b) for piece, b in enumerate(borders)])
    sizes, units = table.pieces.sizes, table.pieces.units
    return np.concatenate([np.diff(b) * sizes[p] // max(1, units[p]) for p, b in enumerate(borders)])


def unended(recipe: Recipe, tokenize: Tokenize) -> list[str]:
    """A warning if nothing ends a document, though the recipe wants it to."""
    if not recipe.add_eos or tokenize.around[1]:
        return []
    return [
        f"nothing ends a document ({tokenize.spec.roles}): one is read as  {tokenize.document}, so "
        "the model cannot learn where one ends. Name the token that does, as eos_token in the "
        "tokenizer_config.json beside tokenizer.json; or set add_eos = false if this is meant."
    ]
