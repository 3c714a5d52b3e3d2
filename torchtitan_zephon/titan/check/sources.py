"""What a job reads, opened and measured: shards, chunks and tokens of every source.

What flows in: a recipe of a parsed job. What flows out: its compiled program, the same as the trainer's to the last
field of its identity, and a line of numbers for each source.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ...config import Recipe
from ...documents import read_documents
from ...errors import Problems, TokenizerError
from ...ops.tokenize import TokenizerSpec
from ...ops.tokenizer_files import load_tokenizer
from ...plan.chunking import cut
from ...program import check_seq_len, opened
from ..findings import ask
from ..generations import Generation
from ..job import Job
from ..reading import READING, Reading, facts_of, loaded
from .stated import stated


def read(job: Job, generation: Generation, recipe: Recipe, vocab_size: int | None, problems: Problems) -> Reading:
    """Open and measure the sources of ``recipe``; what is wrong with any of them, or the tokenizer, is a problem."""
    seq_len = None
    with problems:
        seq_len = checked_seq_len(job, generation, training=recipe is job.recipe)
    reading = Reading(
        recipe,
        load=lambda: tokenizer_of(job, recipe),
        settings=job.settings,
        seq_len=seq_len,
        vocab_size=vocab_size,
    )
    if not recipe.sources:  # told when the job was parsed
        return reading
    ask(READING, reading, problems)
    for name in sorted(recipe.sources.keys() - {source.name for source in reading.sources}):
        with problems:  # each alone, so that none hides behind another
            read_alone(reading, name)
    return reading


def read_alone(reading: Reading, name: str) -> None:
    """Measure one source; without a tokenizer or a length, find out whether its first chunk can be read."""
    recipe = reading.recipe
    if reading.can_compile:
        program = reading.compiled(dataclasses.replace(recipe, sources={name: recipe.sources[name]}))
        reading.sources += facts_of(program, recipe)
        return
    source = opened(name, recipe, storage=reading.settings)
    chunk, _ = cut(0, source.reader.pieces(), recipe.chunk_bytes, recipe.lanes).chunk(0, 0, 0)
    read_documents(source, chunk, (), recipe)


def checked_seq_len(job: Job, generation: Generation, *, training: bool) -> int:
    """Tokens of a sequence, in training or validation. Raises ``ConfigError``."""
    seq_len: int = stated(job, "training", "seq_len")
    if generation.validation_sizes and not training:
        seq_len = stated(job, "validation", "seq_len", seq_len)
    check_seq_len(seq_len)
    return seq_len


def assets_of(job: Job) -> str:
    """The folder of the tokenizer, under either of its names."""
    path: str = stated(job, "model", "tokenizer_path", "") or stated(job, "model", "hf_assets_path")
    return path


def tokenizer_of(job: Job, recipe: Recipe) -> TokenizerSpec:
    """The tokenizer as the loader reads it from the job's folder, to the last id, on any release of TorchTitan."""
    path = assets_of(job)

    def load() -> TokenizerSpec:
        if not Path(path).is_dir():
            raise TokenizerError(f"{path!r} is not a folder.")  # and not a name on the hub, which is no asset path
        return load_tokenizer(
            path,
            add_bos=recipe.add_bos,
            add_eos=recipe.add_eos,
            special_tokens_in_text=recipe.special_tokens_in_text,
        )

    return loaded(path, load)
