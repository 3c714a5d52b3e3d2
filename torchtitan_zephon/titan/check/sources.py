"""What a job reads, opened and measured: shards, chunks and tokens of every source.

What flows in: a recipe of a parsed job. What flows out: its compiled program, the same as the trainer's to the last
field of its identity, and a line of numbers for each source.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...config import Recipe
from ...errors import Problems, TokenizerError
from ...estimate import Estimate
from ...ops.tokenize import Tokenize, TokenizerSpec, check_vocabulary
from ...ops.tokenizer_files import load_tokenizer, unusable
from ...plan.chunking import cut
from ...program import Program, check_seq_len, compile_program, opened
from ...read.files import Manifest
from ...read.records import Source
from ..generations import Generation
from ..job import Job
from .degrees import Degree
from .stated import stated


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFacts:
    """One source as opened. ``num_bytes``: of text, as planned; ``lane_chunks``: chunks a lane and epoch."""

    name: str
    share: float
    manifest: Manifest
    num_bytes: int
    chunks: int
    lane_chunks: float
    estimate: Estimate

    @property
    def tokens(self) -> int:
        """Tokens of one epoch, estimated from the measured sample."""
        return self.num_bytes * self.estimate.tokens_per_mib >> 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One recipe compiled, with what it gives on every degree. What could not be had is None or left out.

    ``misfits``: degree to the number of the problem with it.
    """

    recipe: Recipe
    seq_len: int | None = None
    tokenize: Tokenize | None = None
    program: Program | None = None
    sources: tuple[SourceFacts, ...] = ()
    degrees: tuple[Degree, ...] = ()
    misfits: dict[int, int] = dataclasses.field(default_factory=dict)


def reading(job: Job, generation: Generation, recipe: Recipe, vocab_size: int | None, problems: Problems) -> Reading:
    """Open and measure the sources of ``recipe``; what is wrong with any of them, or the tokenizer, is a problem."""
    found = Reading(recipe=recipe)
    if not recipe.sources:  # told when the job was parsed
        return found
    with problems:
        seq_len = seq_len_of(job, generation, training=recipe is job.recipe)
        check_seq_len(seq_len)
        found = dataclasses.replace(found, seq_len=seq_len)
    tokenizer = None
    with problems:
        tokenizer = tokenizer_of(job, recipe)
    if tokenizer is None or found.seq_len is None:
        for name, source in recipe.sources.items():
            with problems:
                read_a_chunk(opened(name, source), recipe)
        return found
    compiled = functools.partial(
        compile_program, seq_len=found.seq_len, tokenizer=tokenizer, backend=job.settings.tokenizer_backend
    )
    found = measured_by(compiled, found, problems)
    if vocab_size is not None and found.tokenize is not None:
        with problems:
            check_vocabulary(found.tokenize, vocab_size)
    return found


def read_a_chunk(source: Source, recipe: Recipe) -> None:
    """What can be found out about ``source`` without a tokenizer: whether its first chunk can be read."""
    chunk, _ = cut(0, source.reader.pieces(), recipe.chunk_bytes, recipe.lanes).chunk(0, 0, 0)
    if source.holds_ids:
        source.ids(chunk, ())
    else:
        source.texts(chunk, ())


def measured_by(compiled: Callable[[Recipe], Program], found: Reading, problems: Problems) -> Reading:
    """``found`` with its program and the numbers of its sources; where one cannot be read, those of the others."""
    recipe, whole = found.recipe, Problems()
    with whole:
        program = compiled(recipe)
        facts = facts_of(program, recipe)
        return dataclasses.replace(found, tokenize=program.tokenize, program=program, sources=facts)
    before = len(problems.texts)
    for name, source in sorted(recipe.sources.items()):  # each alone, so that none hides behind another
        with problems:
            program = compiled(dataclasses.replace(recipe, sources={name: source}))
            found = dataclasses.replace(found, tokenize=program.tokenize)
            found = dataclasses.replace(found, sources=(*found.sources, *facts_of(program, recipe)))
    if len(problems.texts) == before:
        problems.note(whole.texts[0])
    return found


def facts_of(program: Program, recipe: Recipe) -> tuple[SourceFacts, ...]:
    """Measure the sources of ``program``, which are all or some of those of ``recipe``."""
    total = sum(source.weight for source in recipe.sources.values())
    return tuple(
        SourceFacts(
            name=source.name,
            share=recipe.sources[source.name].weight / total,
            manifest=source.reader.manifest,
            num_bytes=int(table.pieces.sizes.sum()),
            chunks=table.num_chunks,
            lane_chunks=table.num_chunks / recipe.lanes,
            estimate=measured,
        )
        for source, table, measured in zip(program.sources, program.tables, program.measure(), strict=True)
    )


def seq_len_of(job: Job, generation: Generation, *, training: bool) -> int:
    """Tokens of a sequence, in training or validation."""
    seq_len: int = stated(job, "training", "seq_len")
    own = generation.validation_sizes and not training
    return stated(job, "validation", "seq_len", seq_len) if own else seq_len


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
