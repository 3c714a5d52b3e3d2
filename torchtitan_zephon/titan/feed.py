"""What a loader reads and in what batches, the same in either generation of TorchTitan, without importing it."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from ..config import Recipe, RunSettings
from ..errors import TokenizerError
from ..ops.tokenize import TokenizerSpec, make_spec
from ..plan.layout import Layout
from ..program import Program, compile_program

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

    def program(self, seq_len: int, tokenizer: BaseTokenizer) -> Program:
        """The compiled program, kept for the life of the process: the start-up check, the loader, and
        the validator (which builds its loader anew every time) ask for the same one."""
        recipe = self.effective
        spec = tokenizer_spec(tokenizer, recipe)
        backend = self.settings.tokenizer_backend
        key = f"{recipe!r} {seq_len} {spec.identity!r} {backend}"
        if key not in _programs:
            _programs[key] = compile_program(recipe, seq_len, spec, backend=backend)
        return _programs[key]


_programs: dict[str, Program] = {}


def tokenizer_spec(tokenizer: BaseTokenizer, recipe: Recipe) -> TokenizerSpec:
    """The trainer's own tokenizer, with TorchTitan's rule for BOS and EOS."""
    inner: Any = getattr(tokenizer, "tokenizer", None)
    if not hasattr(inner, "encode_batch_fast"):
        raise TokenizerError(
            f"the trainer's tokenizer is a {type(tokenizer).__name__}; only those backed by Hugging Face "
            "`tokenizers` (TorchTitan's HuggingFaceTokenizer) can be used."
        )
    return make_spec(
        inner,
        getattr(tokenizer, "bos_id", None),
        getattr(tokenizer, "eos_id", None),
        add_bos=recipe.add_bos,
        add_eos=recipe.add_eos,
        special_tokens_in_text=recipe.special_tokens_in_text,
    )
