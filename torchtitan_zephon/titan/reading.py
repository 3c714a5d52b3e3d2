"""Can a loader read what its recipe names: its tokenizer, its sources, and a sample of their records?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from ..config import Recipe, RunSettings
from ..errors import TokenizerError
from ..estimate import Estimate
from ..ops.tokenize import Tokenize, TokenizerSpec, check_vocabulary, tokenize
from ..ops.tokenizer_files import unusable
from ..plan.chunking import ChunkTable
from ..plan.slices import SliceTable
from ..program import Program
from ..read.files import Manifest
from ..read.sequential import SequentialReader
from ..read.source import Opening, Source, open_source
from .feed import compiled
from .findings import Finding, always

T = TypeVar("T")


MOST_READERS = 8
"""With more lanes that unpack every file, unpacking outweighs all else."""


class UnpackedFacts(NamedTuple):
    """What reading files from the front costs: lanes that unpack each of them, and seconds of a lane's restore."""

    readers: int
    restore_seconds: float

    def text(self, name: str) -> str:
        """This in words, and the way out where it is much."""
        cost = (
            f"about {self.restore_seconds:.2g} s of unpacking for each lane"
            if self.restore_seconds > 0.01
            else "nothing"
        )
        text = (
            f"source {name!r} can only be read from the front of its files. Each file is unpacked by {self.readers} "
            f"lane{'s' * (self.readers > 1)} an epoch; going on inside one costs {cost}."
        )
        if self.readers > MOST_READERS:
            text += (
                " Better: as many files as lanes; or pack them so that members are passed over unread (bgzip; zstd in "
                "frames that state their size); or Parquet."
            )
        return text


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFacts:
    """One source as opened. ``num_bytes``: of text, as planned; ``lane_chunks``: chunks a lane and epoch.

    ``unpacked``: of one that is read from the front.
    """

    name: str
    share: float
    manifest: Manifest
    num_bytes: int
    chunks: int
    lane_chunks: float
    estimate: Estimate
    unpacked: UnpackedFacts | None = None

    @property
    def tokens(self) -> int:
        """Tokens of one epoch, estimated from the measured sample."""
        return self.num_bytes * self.estimate.tokens_per_mib >> 20


class Reading:
    """One recipe as a loader is going to read it, and what has been found of it so far."""

    def __init__(
        self,
        recipe: Recipe,
        *,
        load: Callable[[], TokenizerSpec],
        settings: RunSettings,
        seq_len: int | None,
        vocab_size: int | None,
        sampled: bool = True,
        opening: Opening = open_source,
    ) -> None:
        """``load`` reads the tokenizer. ``seq_len`` and ``vocab_size`` (of the model) are None where not known.

        ``sampled``: whether a sample of the records is measured, as where a stream begins. ``opening``: of sources.
        """
        self.recipe, self.load, self.settings = recipe, load, settings
        self.seq_len, self.vocab_size, self.sampled, self.opening = seq_len, vocab_size, sampled, opening
        self.tokenize: Tokenize | None = None
        self.program: Program | None = None
        self.sources: tuple[SourceFacts, ...] = ()

    @property
    def can_compile(self) -> bool:
        """Whether all is known that a program needs."""
        return self.tokenize is not None and self.seq_len is not None

    def compiled(self, recipe: Recipe) -> Program:
        """The program of ``recipe``, which is this one or a part of it."""
        assert self.tokenize is not None and self.seq_len is not None
        return compiled(recipe, self.seq_len, self.tokenize.spec, self.settings, self.opening)


def _load_tokenizer(reading: Reading) -> None:
    reading.tokenize = tokenize(reading.load(), reading.settings.tokenizer_backend)


def _check_vocabulary(reading: Reading) -> None:
    assert reading.tokenize is not None and reading.vocab_size is not None
    check_vocabulary(reading.tokenize, reading.vocab_size)


def _open_sources(reading: Reading) -> None:
    reading.program = reading.compiled(reading.recipe)


def _measure(reading: Reading) -> None:
    assert reading.program is not None
    reading.sources = facts_of(reading.program, reading.recipe)


READING = (
    Finding("the tokenizer cannot be loaded", always, _load_tokenizer),
    Finding(
        "the model has too few ids", lambda r: r.tokenize is not None and r.vocab_size is not None, _check_vocabulary
    ),
    Finding("a source cannot be opened", lambda r: r.can_compile, _open_sources),
    Finding("a record cannot be read", lambda r: r.program is not None and r.sampled, _measure),
)


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
            unpacked=_unpacked(source, table),
        )
        for source, table, measured in zip(program.sources, program.tables, program.measure(), strict=True)
    )


def _unpacked(source: Source, table: ChunkTable | SliceTable) -> UnpackedFacts | None:
    reader = source.reader
    if not isinstance(reader, SequentialReader) or not isinstance(table, SliceTable):
        return None
    return UnpackedFacts(table.readers, reader.restore_seconds())


def loaded(path: str, load: Callable[[], T]) -> T:
    """What ``load`` makes of the folder ``path``; where it fails, ``TokenizerError`` with the way out."""
    try:
        return load()
    except Exception as error:
        if not Path(path).is_dir():
            raise TokenizerError(
                f"model.hf_assets_path = {path!r} is not a folder; it must be one with tokenizer.json. The path is "
                f"relative to the working folder, {str(Path.cwd())!r}."
            ) from None
        if (why := unusable(path)) is not None:
            raise TokenizerError(f"model.hf_assets_path = {path!r}: {why}") from None
        if isinstance(error, TokenizerError):
            raise
        raise TokenizerError(f"model.hf_assets_path = {path!r}: its tokenizer cannot be loaded: {error}.") from None
