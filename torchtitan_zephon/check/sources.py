"""What a job reads, opened and measured: shards, chunks and tokens of every source.

What flows in: a recipe of a parsed job. What flows out: its compiled program, the same as the trainer's to the last
field of its identity, and a line of numbers for each source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config import Recipe
from ..errors import TokenizerError
from ..ops.tokenize import TokenizerSpec, check_vocabulary
from ..ops.tokenizer_files import load_tokenizer, unusable
from ..program import Program, compile_program
from ..titan.job import Job
from .degrees import Degree
from .stated import stated


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFacts:
    """One source as opened. ``num_bytes``: of text, as planned; ``lane_chunks``: chunks a lane and epoch."""

    name: str
    share: float
    format: str
    shards: int
    num_bytes: int
    chunks: int
    lane_chunks: float
    tokens_per_mib: int

    @property
    def tokens(self) -> int:
        """Tokens of one epoch, estimated from the measured sample."""
        return self.num_bytes * self.tokens_per_mib >> 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One recipe compiled, with what it gives on every degree."""

    program: Program
    sources: tuple[SourceFacts, ...]
    degrees: tuple[Degree, ...]


def reading(job: Job, version: str, recipe: Recipe, degrees: Sequence[Degree], vocab_size: int | None) -> Reading:
    """Open and measure the sources of ``recipe``. Raises ``SourceError``, ``TokenizerError``, ``ConfigError``."""
    training = recipe is job.recipe
    seq_len = stated(job, "training", "seq_len")
    if not training and version == "0.2.2":
        seq_len = stated(job, "validation", "seq_len", seq_len)
    tokenizer = tokenizer_of(job, recipe)
    program = compile_program(recipe, seq_len, tokenizer, backend=job.settings.tokenizer_backend)
    if vocab_size is not None:
        check_vocabulary(program.tokenize, vocab_size)
    total = sum(source.weight for source in recipe.sources.values())
    facts = tuple(
        SourceFacts(
            name=source.name,
            share=recipe.sources[source.name].weight / total,
            format=source.reader.manifest.format,
            shards=len(source.reader.manifest.shards),
            num_bytes=int(table.pieces.sizes.sum()),
            chunks=table.num_chunks,
            lane_chunks=table.num_chunks / recipe.lanes,
            tokens_per_mib=measured,
        )
        for source, table, measured in zip(program.sources, program.tables, program.measure(), strict=True)
    )
    return Reading(program=program, sources=facts, degrees=tuple(degrees))


def assets_of(job: Job) -> str:
    """The folder of the tokenizer, under either of its names."""
    path: str = stated(job, "model", "tokenizer_path", "") or stated(job, "model", "hf_assets_path")
    return path


def tokenizer_of(job: Job, recipe: Recipe) -> TokenizerSpec:
    """The tokenizer as the loader reads it from the job's folder, to the last id, on any release of TorchTitan."""
    path = assets_of(job)
    if not Path(path).is_dir():
        raise TokenizerError(
            f"model.hf_assets_path = {path!r} is not a folder; it must be one with tokenizer.json. The path is "
            f"relative to the working folder, {str(Path.cwd())!r}."
        )
    if (why := unusable(path)) is not None:
        raise TokenizerError(f"model.hf_assets_path = {path!r}: {why}")
    return load_tokenizer(
        path,
        add_bos=recipe.add_bos,
        add_eos=recipe.add_eos,
        special_tokens_in_text=recipe.special_tokens_in_text,
    )
