"""The compiled pipeline: open sources, cut them into chunks, measure tokens per byte.

What flows in: a recipe, a tokenizer and user functions. What flows out: the program of any lane,
the work to do for any chunk (a pure function of the chunk), and the recipe as plain values for
the checkpoint. Compiling lists files and reads samples of them; it opens no thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .cache import cached
from .config import Recipe
from .errors import ConfigError, SourceError
from .lane import LaneProgram, usable
from .ops import fast
from .ops.tokenize import Tokenize, TokenizerSpec, Wanted, tokenize
from .plan import keyed
from .plan.chunking import Chunk, ChunkTable, cut
from .plan.cursor import LanePlan, lane_offsets, order_keys
from .plan.mixture import Mixture, integer_weights, lane_phases
from .read.files import Manifest, shared_files
from .read.ids import ordered
from .read.records import Function, Source
from .read.sources import open_source
from .records import Texts, Tokens
from .state import recipe_hash

STREAM_FORMAT = 1
"""Version of the order itself: golden hashes change only together with it."""
LISTED_SHARDS = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A compiled pipeline. Sources are in order of their names, whatever order they were given in."""

    recipe: Recipe
    seq_len: int
    sources: tuple[Source, ...]
    tables: tuple[ChunkTable, ...]
    tokenize: Tokenize
    functions: tuple[Function, ...]
    identity: dict[str, Any] = field(repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Source names, in the stream's order."""
        return tuple(s.name for s in self.sources)

    def work(self, chunk: Chunk) -> Tokens:
        """The tokens of ``chunk``: read, map and filter, permute, tokenise. Pure; any thread may run it."""
        source = self.sources[chunk.source]
        if not source.holds_ids:
            return self.tokenize(chunk.source, self._texts(chunk))
        ids = source.ids(chunk, self.functions)
        if (order := self._order(chunk, len(ids.records))) is not None:
            ids = ordered(ids, order)
        return self.tokenize.given(chunk.source, ids)

    def _texts(self, chunk: Chunk) -> Texts:
        texts = self.sources[chunk.source].texts(chunk, self.functions)
        order = self._order(chunk, len(texts.texts))
        return texts if order is None else texts.ordered(order)

    def _order(self, chunk: Chunk, documents: int) -> np.ndarray | None:
        """The order of a chunk's documents, int64 [documents]; None for that of the file."""
        if not self.recipe.shuffle_records or documents < 2:
            return None
        name = self.sources[chunk.source].name
        return keyed.permutation(keyed.key(self.recipe.seed, "records", name, chunk.epoch, chunk.number), documents)

    def on(self, backend: Wanted) -> Program:
        """This program with another tokenizer back-end. Raises ``TokenizerError`` if that cannot be had."""
        return replace(self, tokenize=tokenize(self.tokenize.spec, backend))

    def measure(self) -> tuple[int, ...]:
        """Tokens a MiB of chunk, one a source, from evenly spaced chunks of ``estimate_bytes`` in all.

        Deterministic, so every rank finds the same. The texts are read every time; what the tokenizer makes of
        them is kept on this machine. A fast back-end is compared with the reference on all of them. Raises
        ``SourceError`` for a source whose sample has no usable document, ``TokenizerError`` where back-ends differ.
        """
        return tuple(self._measure(s) for s in range(len(self.sources)))

    def _measure(self, s: int) -> int:
        table = self.tables[s]
        count = min(table.num_runs, max(1, self.recipe.estimate_bytes // table.chunk_bytes))
        chunks = [table.chunk(0, k * table.num_runs // count, 0)[0] for k in range(count)]
        tokens, inputs = self._count(s, chunks)
        num_bytes = sum(chunk.num_bytes for chunk in chunks)
        if not inputs:
            raise SourceError(
                f"source {self.names[s]!r}: no usable document in a sample of {count} chunks "
                f"({num_bytes:,} bytes): every text is empty or filtered out, or a single token."
            )
        return max(1, (tokens << 20) // num_bytes)

    def _count(self, s: int, chunks: list[Chunk]) -> tuple[int, int]:
        """Tokens in ``chunks``, and tokens that can be an input."""

        def count(found: list[Tokens]) -> tuple[int, int]:
            return sum(len(t.ids) for t in found), sum(usable(t, self.recipe.label_shift) for t in found)

        def tokenized() -> tuple[int, int]:
            for sample in samples:
                self.tokenize.check(sample.texts)
            return count([self.tokenize(s, sample) for sample in samples])

        if self.sources[s].holds_ids:
            return count([self.work(chunk) for chunk in chunks])
        samples = [self._texts(chunk) for chunk in chunks]
        digest = hashlib.sha256()
        for text in (text for sample in samples for text in sample.texts):
            digest.update(b"%d:" % len(text) + text.encode("utf-8", "surrogatepass"))
        how = [fast.versions(self.tokenize.backend), STREAM_FORMAT, self.recipe.label_shift]
        key = [self.tokenize.spec.identity, *how, digest.hexdigest()]
        tokens, inputs = cached("estimate", key, tokenized)
        return tokens, inputs

    def lane(self, lane: int, tokens_per_mib: Seq[int]) -> LaneProgram:
        """The program of one lane."""
        r = self.recipe
        typical = [max(1, t.typical_chunk_bytes * m >> 20) for t, m in zip(self.tables, tokens_per_mib, strict=True)]
        plan = LanePlan(
            lane=lane,
            lanes=r.lanes,
            tables=self.tables,
            offsets=lane_offsets(r.seed, self.names, r.lanes),
            order_keys=order_keys(r.seed, self.names) if r.shuffle_chunks else None,
            tokens_per_mib=tuple(tokens_per_mib),
            mixture=Mixture(
                integer_weights({n: r.sources[n].weight for n in self.names}),
                lane_phases(r.seed, self.names, typical, lane, r.lanes),
            ),
            repeat=r.repeat,
        )
        return LaneProgram(
            plan=plan,
            source_names=self.names,
            shuffle_seed=_shuffle_seed(r),
            seq_len=self.seq_len,
            pack=r.pack,
            label_shift=r.label_shift,
            padding_id=self.tokenize.padding_id,
            shuffle_buffer_sequences=r.shuffle_buffer_sequences,
            flush_every_sequences=r.flush_every_sequences,
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
            kind = f"{manifest.format} shards{' of token ids' * source.holds_ids}"
            num_bytes = sum(s.num_bytes for s in manifest.shards)
            lines.append(
                f"  source {source.name!r}: {r.sources[source.name].weight / total:.1%} of tokens; "
                f"{len(manifest.shards)} {kind}, {num_bytes:,} bytes; {table.num_chunks:,} chunks of "
                f"{table.typical_chunk_bytes:,} bytes, {table.num_chunks / r.lanes:.1f} a lane and epoch"
            )
            lines += [f"    {line}" for line in manifest.files_text().splitlines()]
        lines += [f"  {text}" for text in shared_files([(repr(s.name), s.reader.manifest) for s in self.sources])]
        lines += [f"  {f.kind} {f.identity}" for f in self.functions]
        spec = self.tokenize.spec
        lines += [
            f"  tokenize field {', '.join(sorted({repr(s.field) for s in self.sources}))}: largest id "
            f"{self.tokenize.largest_id()}, bos {spec.add_bos}, eos {spec.add_eos}, special tokens in text "
            f"{spec.special_tokens_in_text}; by {self.tokenize.backend_text}",
            f"  pack {r.pack} to {self.seq_len} tokens, labels within each {r.label_shift}; flush every "
            f"{r.flush_every_sequences} sequences a lane",
            f"  shuffle: chunks {r.shuffle_chunks}, records {r.shuffle_records}, buffer "
            f"{r.shuffle_buffer_sequences} sequences",
        ]
        return "\n".join(lines)


def compile_program(
    recipe: Recipe,
    seq_len: int,
    tokenizer: TokenizerSpec,
    functions: tuple[Function, ...] = (),
    backend: Wanted = "hf",
) -> Program:
    """Open and cut every source. Raises ``ConfigError``, ``SourceError``, ``TokenizerError``."""
    if type(seq_len) is not int or seq_len < 2:
        raise ConfigError(f"seq_len = {seq_len!r} must be 2 or more, a whole number.")
    if not recipe.sources:
        raise ConfigError(
            "the recipe names no source; add a table for each, such as\n"
            '    [zephon.sources.wiki]\n    path = "data/wiki"\n    weight = 1.0'
        )
    sources = tuple(open_source(n, recipe.sources[n].path, recipe.sources[n].field) for n in sorted(recipe.sources))
    tables = tuple(cut(i, s.reader.pieces(), recipe.chunk_bytes, recipe.lanes) for i, s in enumerate(sources))
    identity = _identity(recipe, seq_len, sources, tokenizer, functions)
    return Program(
        recipe=recipe,
        seq_len=seq_len,
        sources=sources,
        tables=tables,
        tokenize=tokenize(tokenizer, backend),
        functions=functions,
        identity=identity,
    )


def _identity(
    recipe: Recipe, seq_len: int, sources: tuple[Source, ...], tokenizer: TokenizerSpec, functions: tuple[Function, ...]
) -> dict[str, Any]:
    """The recipe as plain values. Absent on purpose: roots (content counts, not place), workers,
    prefetch, ledger (speed and reporting), dp degree and local batch (who reads, not what)."""
    weights = integer_weights({s.name: recipe.sources[s.name].weight for s in sources})
    plain = {
        name: getattr(recipe, name)
        for name in (
            "lanes",
            "seed",
            "pack",
            "label_shift",
            "estimate_bytes",
            "shuffle_chunks",
            "shuffle_records",
            "shuffle_buffer_sequences",
            "flush_every_sequences",
            "chunk_bytes",
            "repeat",
        )
    }
    return {
        "stream_format": STREAM_FORMAT,
        "seq_len": seq_len,
        **plain,
        "shuffle_seed": _shuffle_seed(recipe),
        "tokenizer": tokenizer.identity,
        "functions": [f"{f.kind} {f.identity}" for f in functions],
        "sources": {
            s.name: {
                "field": s.field,
                "format": s.reader.manifest.format,
                "weight": weight / 2**32,
                "shards": _shards(s.reader.manifest),
            }
            for s, weight in zip(sources, weights, strict=True)
        },
    }


def _shuffle_seed(recipe: Recipe) -> int:
    return recipe.seed if recipe.shuffle_seed is None else recipe.shuffle_seed


def _shards(manifest: Manifest) -> dict[str, Any]:
    """Name to size and sample; a count and a hash where there are too many to list."""
    listed = {s.name: f"{s.num_bytes} bytes, sample {s.sample}" for s in manifest.shards}
    if len(listed) <= LISTED_SHARDS:
        return listed
    return {"count": len(listed), "bytes": sum(s.num_bytes for s in manifest.shards), "sha256": recipe_hash(listed)}
