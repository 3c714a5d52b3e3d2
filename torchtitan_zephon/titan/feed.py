"""What a loader reads and in what batches, the same in either generation of TorchTitan, without importing it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import Recipe, RunSettings
from ..errors import TokenizerError
from ..ops.tokenize import TokenizerSpec
from ..ops.tokenizer_files import FILES, Roles, make_spec, open_tokenizer, spec_of, unusable
from ..plan.layout import Layout
from ..program import Program, compile_program
from ..read.source import Opening, open_source
from .job import Job

if TYPE_CHECKING:
    from torchtitan.components.tokenizer import BaseTokenizer


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Feed:
    """A loader of one recipe.

    ``infinite`` is False for a validator that passes its set once. ``first_step``: steps the
    trainer has done before the stream begins.
    """

    recipe: Recipe
    settings: RunSettings
    global_batch_size: int
    infinite: bool = True
    first_step: int = 0

    @property
    def effective(self) -> Recipe:
        """The recipe as it is read: once only for a validator that passes its whole set."""
        return dataclasses.replace(self.recipe, repeat=self.recipe.repeat and self.infinite)

    def layout(self, dp_degree: int, dp_rank: int, local_batch_size: int) -> Layout:
        """A rank's layout; ``ConfigError`` if it does not divide. A validation pass takes as small a batch
        as lanes and ranks allow, so that it ends with little padding."""
        lanes = self.recipe.lanes
        size = self.global_batch_size if self.infinite else math.lcm(lanes, dp_degree * local_batch_size)
        return Layout(
            lanes=lanes,
            global_batch_size=size,
            dp_degree=dp_degree,
            dp_rank=dp_rank,
            local_batch_size=local_batch_size,
            shared_lanes=self.settings.shared_lanes,
        )

    def layouts(self, dp_degree: int, local_batch_sizes: Sequence[int]) -> list[Layout]:
        """The first rank's with each of ``local_batch_sizes``, all of which must divide its share."""
        return [self.layout(dp_degree, 0, size) for size in local_batch_sizes]

    def program(self, seq_len: int, tokenizer: BaseTokenizer, opening: Opening = open_source) -> Program:
        """The compiled program, as the trainer's ``tokenizer`` makes ids."""
        spec = tokenizer_spec(tokenizer, self.recipe)
        return compiled(self.effective, seq_len, spec, self.settings, opening)


_programs: dict[str, Program] = {}


def compiled(
    recipe: Recipe, seq_len: int, tokenizer: TokenizerSpec, settings: RunSettings, opening: Opening
) -> Program:
    """The compiled program, kept for the life of the process: the start-up check, the loader, and
    the validator (which builds its loader anew every time) ask for the same one."""
    backend = settings.tokenizer_backend
    key = f"{recipe!r} {seq_len} {tokenizer.identity!r} {backend} {settings.reach}"
    if key not in _programs:
        _programs[key] = compile_program(recipe, seq_len, tokenizer, backend=backend, opening=opening, storage=settings)
    return _programs[key]


def training_feed(job: Job) -> Feed:
    """What the training loader of ``job`` reads."""
    return Feed(recipe=job.recipe, settings=job.settings, global_batch_size=job.global_batch_size)


def validation_feed(job: Job, *, steps: int = -1) -> Feed:
    """What the validator of ``job`` reads, the whole set once if ``steps`` is -1. It writes no batch ledger."""
    assert job.validation is not None
    settings = dataclasses.replace(job.settings, ledger=None)
    return dataclasses.replace(training_feed(job), recipe=job.validation, settings=settings, infinite=steps != -1)


def tokenizer_spec(tokenizer: BaseTokenizer, recipe: Recipe) -> TokenizerSpec:
    """The trainer's tokenizer as the files of its folder have it, so that every release gives the same ids.

    One that was changed since it was read, or that knows no folder, is taken as it is, with the roles it states;
    ``TokenizerSpec.roles`` says so. Raises ``TokenizerError``.
    """
    if not hasattr(getattr(tokenizer, "tokenizer", None), "encode_batch_fast"):
        raise TokenizerError(
            f"the trainer's tokenizer is a {type(tokenizer).__name__}; only those backed by Hugging Face "
            "`tokenizers` (TorchTitan's HuggingFaceTokenizer) can be used."
        )
    return _spec(tokenizer, recipe.add_bos, recipe.add_eos, recipe.special_tokens_in_text)


@functools.lru_cache(maxsize=4)
def _spec(tokenizer: Any, add_bos: bool, add_eos: bool, special_tokens_in_text: str) -> TokenizerSpec:
    added: dict[str, Any] = {
        "add_bos": add_bos,
        "add_eos": add_eos,
        "special_tokens_in_text": special_tokens_in_text,
    }
    inner, folder = tokenizer.tokenizer, getattr(tokenizer, "tokenizer_path", None)
    changed = "which knows no folder"
    if folder is not None and unusable(str(folder)) is None:
        spec, ours = _of_folder(str(folder), _stamp(Path(folder)), **added)
        if (part := _difference(inner, ours)) is None:
            return spec
        changed = f"whose {part} is not that of {str(folder)!r}"
    bos, eos = getattr(tokenizer, "bos_id", None), getattr(tokenizer, "eos_id", None)
    told = f"BOS {bos} and EOS {eos} by the trainer's {type(tokenizer).__name__}, {changed}"
    return make_spec(inner, Roles(bos=bos, eos=eos, told=told), **added)


def _stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Size and time of the tokenizer's files."""
    stats = [(name, (folder / name).stat()) for name in FILES if (folder / name).is_file()]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


@functools.lru_cache(maxsize=2)
def _of_folder(folder: str, stamp: tuple[tuple[str, int, int], ...], **added: Any) -> tuple[TokenizerSpec, Any]:
    """The spec of a folder and the tokenizer itself: read once for the start-up check and the loaders."""
    tokenizer, place = open_tokenizer(folder)
    return spec_of(tokenizer, place, **added), tokenizer


def _difference(theirs: Any, ours: Any) -> str | None:
    """What of the trainer's tokenizer differs from the one in its folder, None if nothing that decides ids does.

    Ours may have more tokens: those with a role that TorchTitan does not read.
    """
    vocabulary = ours.get_vocab(with_added_tokens=True)
    if any(vocabulary.get(token) != i for token, i in theirs.get_vocab(with_added_tokens=True).items()):
        return "vocabulary"
    for part in ("normalizer", "pre_tokenizer", "post_processor"):
        states = [None if p is None else p.__getstate__() for p in (getattr(theirs, part), getattr(ours, part))]
        if states[0] != states[1]:
            return part
    return None
