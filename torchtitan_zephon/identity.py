"""What a checkpoint compares: the recipe as plain values, with the content of its sources.

Left out on purpose: source folders (only content matters), workers, prefetch and ledger (speed and reporting), dp
degree and local batch (which rank reads, not what is read).
"""

from __future__ import annotations

from typing import Any, Protocol

from .ops.functions import Function
from .ops.tokenize import TokenizerSpec
from .plan.mixture import integer_weights
from .read.files import Manifest
from .read.many_files import ManyFiles
from .read.settings import SourceConfig
from .read.source import Source
from .settings import identity_of
from .state import recipe_hash

STREAM_FORMAT = 2
"""Version of the order itself: golden hashes change only together with it."""
LISTED_SHARDS = 4096


class Recipe(Protocol):
    """The settings of a stream; what is not named here is compared too, as ``identity_of`` says."""

    @property
    def sources(self) -> dict[str, SourceConfig]: ...
    @property
    def seed(self) -> int: ...
    @property
    def shuffle_seed(self) -> int | None: ...


def identity_of_stream(
    recipe: Recipe, seq_len: int, sources: tuple[Source, ...], tokenizer: TokenizerSpec, functions: tuple[Function, ...]
) -> dict[str, Any]:
    """All that decides the stream of ``recipe``."""
    weights = integer_weights({s.name: recipe.sources[s.name].weight for s in sources})
    return {
        "stream_format": STREAM_FORMAT,
        "seq_len": seq_len,
        **identity_of(recipe),
        "shuffle_seed": shuffle_seed(recipe),
        "tokenizer": tokenizer.identity,
        "functions": [f"{f.kind} {f.identity}" for f in functions],
        "sources": {
            s.name: {
                **identity_of(recipe.sources[s.name]),
                "format": s.reader.manifest.format,
                "weight": weight / 2**32,
                "shards": _shards(s.reader.manifest),
                **({"commit": commit} if (commit := s.reader.manifest.store.commit) else {}),
                **({"pieces": "files"} if isinstance(s.reader, ManyFiles) else {}),
            }
            for s, weight in zip(sources, weights, strict=True)
        },
    }


def shuffle_seed(recipe: Recipe) -> int:
    """The seed of the shuffle buffers."""
    return recipe.seed if recipe.shuffle_seed is None else recipe.shuffle_seed


def _shards(manifest: Manifest) -> dict[str, Any]:
    """Name to size and sample; a count and a hash where there are too many to list."""
    listed = {s.name: f"{s.num_bytes} bytes, sample {s.sample}" for s in manifest.shards}
    if len(listed) <= LISTED_SHARDS:
        return listed
    return {"count": len(listed), "bytes": sum(s.num_bytes for s in manifest.shards), "sha256": recipe_hash(listed)}
