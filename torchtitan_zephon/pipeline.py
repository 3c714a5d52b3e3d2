"""The Python way to say a recipe: sources, then stages, then run settings.

What flows in: datasets, weights and stages. What flows out: an iterable of ``Batch`` with
``state_dict`` and ``load_state_dict``. A pipeline is a value: every method returns a new one.
TOML jobs arrive at the same ``Recipe`` and ``Program``; there is one engine.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .config import Recipe, RunSettings, SourceConfig
from .errors import ConfigError, Problems, nearest
from .ops.functions import Function
from .ops.pack import PACKERS
from .ops.tokenizer_files import load_tokenizer
from .plan.layout import Layout
from .program import Program, compile_program
from .read.source import Opening, open_source
from .records import Batch, Record
from .run.agree import Exchange, alone
from .run.statement import statement
from .run.stream import RankStream
from .run.together import open_together
from .settings import from_table


@dataclass(frozen=True, slots=True)
class Dataset:
    """A named source: a file, folder or glob, and how it is read."""

    name: str
    path: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_path(cls, name: str, path: str, **settings: Any) -> Dataset:
        """Nothing is opened yet; the files are listed when the pipeline is first used.

        ``settings``: other keys of a source, as in a job's table ``[zephon.sources.NAME]``, such as ``format``.
        """
        return cls(name, str(path), settings)

    def source(self, weight: float) -> SourceConfig:
        """What a recipe says of it. Raises ``ConfigError``."""
        table = {**self.settings, "path": self.path, "weight": weight}
        return from_table(SourceConfig, table, f"dataset {self.name!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenEstimation:
    """How tokens per byte are measured: ``sample_bytes`` of each source, once, when the stream begins."""

    sample_bytes: int = 512 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class StaticMixtureWorkSource:
    """Datasets mixed by tokens with fixed weights. ``repeat``: for ever, or exactly one pass.

    Raises ``ConfigError`` if datasets and weights do not name the same sources.
    """

    datasets: list[Dataset]
    mixture: Mapping[str, float]
    token_estimation: TokenEstimation = TokenEstimation()
    seed: int = 0
    repeat: bool = True
    shuffle_chunks: bool = True
    shuffle_records: bool = True
    chunk_bytes: int = 256 * 1024

    def __post_init__(self) -> None:
        names = [d.name for d in self.datasets]
        problems = Problems()
        for name in sorted({n for n in names if names.count(n) > 1}):
            problems.note(f"two datasets are named {name!r}; a name identifies a source.")
        for name, weight in self.mixture.items():
            if name not in names:
                problems.note(
                    f"mixture: the weight {weight!r} names {name!r}, which is no dataset. {nearest(name, names)}"
                )
        for name in names:
            if name not in self.mixture:
                problems.note(f"mixture: dataset {name!r} has no weight; give it one, or leave the dataset out.")
        problems.refuse()

    def recipe(self) -> Recipe:
        """The part of the recipe that is said here; stages and options add the rest."""
        return Recipe(
            sources={d.name: d.source(self.mixture[d.name]) for d in self.datasets},
            lanes=1,
            seed=self.seed,
            repeat=self.repeat,
            shuffle_chunks=self.shuffle_chunks,
            chunk_bytes=self.chunk_bytes,
            shuffle_records=self.shuffle_records,
            estimate_bytes=self.token_estimation.sample_bytes,
            shuffle_buffer_sequences=0,
        )


class Pipeline:
    """Stages over a source. Iterating reads the whole stream as one rank; ``for_rank`` gives a share.

    >>> source = StaticMixtureWorkSource(datasets=[Dataset.from_path("a", "a.jsonl")], mixture={"a": 1.0})
    >>> pipeline = Pipeline(source).tokenize(tokenizer_id="gpt2").pack_flat(max_length=2048).batch(microbatch_size=8)
    """

    def __init__(self, source: StaticMixtureWorkSource) -> None:
        self._recipe = source.recipe()
        self._settings = RunSettings()
        self._functions: tuple[Function, ...] = ()
        self._tokenizer_id: str | None = None
        self._seq_len: int | None = None
        self._local_batch_size: int | None = None
        self._global_batch_size: int | None = None
        self._program: Program | None = None
        self._stream: RankStream | None = None

    # ---- stages

    def map(self, function: Callable[[Record], Record], *, identity: str | None = None) -> Pipeline:
        """Change each record (a dict). ``identity`` names the function in the recipe; by default its
        name and a hash of its source text. It must be pure and may run in any thread."""
        return self._with(_functions=(*self._functions, Function("map", function, identity or _identity(function))))

    def filter(self, function: Callable[[Record], bool], *, identity: str | None = None) -> Pipeline:
        """Keep the records for which ``function`` is true; the others are counted as filtered."""
        return self._with(_functions=(*self._functions, Function("filter", function, identity or _identity(function))))

    def tokenize(
        self,
        *,
        tokenizer_id: str,
        field: str | list[str] = "text",
        template: str = "",
        parallelism: int = 2,
        add_bos: bool = True,
        add_eos: bool = True,
        special_tokens_in_text: Literal["plain", "parse"] = "plain",
    ) -> Pipeline:
        """Tokenise ``field`` with the tokenizer in a folder, a file or on the hub, on ``parallelism`` threads.

        ``field``, or ``template`` in its place, as for a source in ``docs/configuration.md``.
        """
        recipe = replace(
            self._recipe,
            add_bos=add_bos,
            add_eos=add_eos,
            special_tokens_in_text=special_tokens_in_text,
            sources={n: replace(s, field=field, template=template) for n, s in self._recipe.sources.items()},
        )
        return self._with(
            _recipe=recipe, _tokenizer_id=str(tokenizer_id), _settings=replace(self._settings, workers=parallelism)
        )

    def pack_flat(
        self,
        *,
        max_length: int,
        algorithm: str = "wrap",
        label_shift: Literal["document", "sequence"] = "document",
    ) -> Pipeline:
        """Pack into sequences of exactly ``max_length`` tokens; labels are the next token within each
        document, or within the whole sequence, borders included."""
        if algorithm not in PACKERS:
            raise ConfigError(f"pack_flat: algorithm = {algorithm!r}. {nearest(str(algorithm), PACKERS)}")
        return self._with(_recipe=replace(self._recipe, pack=algorithm, label_shift=label_shift), _seq_len=max_length)

    def shuffle(self, *, buffer_size: int, seed: int | None = None) -> Pipeline:
        """Shuffle sequences in a buffer of ``buffer_size`` a lane; ``seed`` defaults to the source's."""
        return self._with(_recipe=replace(self._recipe, shuffle_buffer_sequences=buffer_size, shuffle_seed=seed))

    def batch(self, *, microbatch_size: int) -> Pipeline:
        """Hand out local batches of ``microbatch_size`` sequences."""
        return self._with(_local_batch_size=microbatch_size)

    def options(
        self,
        *,
        lanes: int | None = None,
        global_batch_size: int | None = None,
        flush_every_sequences: int | None = None,
        shares: Literal["measured", "estimated"] | None = None,
        on_bad_record: Literal["error", "skip"] | None = None,
        max_bad_fraction: float | None = None,
        max_record_bytes: int | None = None,
        workers: int | None = None,
        runner: Literal["thread", "process"] | None = None,
        prefetch_bytes: int | None = None,
        shared_lanes: bool | None = None,
        allow_changes: list[Literal["global_batch_size", "tokenizer_backend"]] | None = None,
        tokenizer_backend: Literal["auto", "hf", "fastokens"] | None = None,
        ledger: str | None = None,
        storage: dict[str, dict[str, Any]] | None = None,
        cache_folder: str | None = None,
        cache_bytes: int | None = None,
    ) -> Pipeline:
        """The stream's shape, bad records, then speed and reporting. What is None stays as it was."""
        stream = {
            "lanes": lanes,
            "flush_every_sequences": flush_every_sequences,
            "shares": shares,
            "on_bad_record": on_bad_record,
            "max_bad_fraction": max_bad_fraction,
            "max_record_bytes": max_record_bytes,
        }
        run = {
            "workers": workers,
            "runner": runner,
            "prefetch_bytes": prefetch_bytes,
            "shared_lanes": shared_lanes,
            "allow_changes": allow_changes,
            "tokenizer_backend": tokenizer_backend,
            "ledger": ledger,
            "storage": storage,
            "cache_folder": cache_folder,
            "cache_bytes": cache_bytes,
        }
        return self._with(
            _recipe=replace(self._recipe, **{k: v for k, v in stream.items() if v is not None}),  # type: ignore[arg-type]
            _settings=replace(self._settings, **{k: v for k, v in run.items() if v is not None}),  # type: ignore[arg-type]
            _global_batch_size=self._global_batch_size if global_batch_size is None else global_batch_size,
        )

    # ---- use

    def for_rank(
        self, dp_rank: int, dp_degree: int, *, local_batch_size: int | None = None, exchange: Exchange = alone
    ) -> RankStream:
        """The share of one data-parallel rank of the same stream.

        ``exchange``: how the processes of a job compare, here and before the first batch, what each is going to read;
        such as ``torchtitan_zephon.torch_exchange.torch_exchange``. Then all of them must call this together.
        """
        local = self._stage("batch", "_local_batch_size") if local_batch_size is None else local_batch_size
        lanes = self._recipe.lanes
        layout = Layout(
            lanes=lanes,
            global_batch_size=lanes * local if self._global_batch_size is None else self._global_batch_size,
            dp_degree=dp_degree,
            dp_rank=dp_rank,
            local_batch_size=local,
            shared_lanes=self._settings.shared_lanes,
        )
        program = open_together(exchange, self._compiled, lambda program: statement(program, layout))
        return RankStream(program, layout, self._settings, exchange=exchange)

    def explain(self) -> str:
        """The compiled plan in words and numbers; opens the sources, reads none of their text but the sample hash."""
        return self._compiled(open_source).explain()

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.stream)

    def state_dict(self) -> dict[str, Any]:
        """Where the pipeline stands; see ``RankStream.state_dict``."""
        return self.stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go there; before or after ``iter``, once or twice."""
        self.stream.load_state_dict(state)

    def close(self) -> None:
        """End the workers, threads or process."""
        self.stream.close()

    @property
    def stream(self) -> RankStream:
        """The stream that iterating this pipeline reads: all of it, as one rank."""
        if self._stream is None:
            self._stream = self.for_rank(0, 1)
        return self._stream

    def _compiled(self, opening: Opening) -> Program:
        if self._program is None:
            tokenizer = load_tokenizer(
                self._stage("tokenize", "_tokenizer_id"),
                add_bos=self._recipe.add_bos,
                add_eos=self._recipe.add_eos,
                special_tokens_in_text=self._recipe.special_tokens_in_text,
            )
            self._program = compile_program(
                self._recipe,
                self._stage("pack_flat", "_seq_len"),
                tokenizer,
                self._functions,
                self._settings.tokenizer_backend,
                opening,
                self._settings,
            )
        return self._program

    def _stage(self, stage: str, attribute: str) -> Any:
        value = getattr(self, attribute)
        if value is None:
            raise ConfigError(
                f"the pipeline has no {stage} stage; a complete one is "
                "Pipeline(source).tokenize(...).pack_flat(...).shuffle(...).batch(...), shuffle being optional."
            )
        return value

    def _with(self, **changes: Any) -> Pipeline:
        new = object.__new__(Pipeline)
        new.__dict__.update({**self.__dict__, "_program": None, "_stream": None, **changes})
        return new


def _identity(function: Callable[..., Any]) -> str:
    name = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(type(function)))}"
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        raise ConfigError(
            f"the source text of {name} cannot be found, so a changed function would go unnoticed at a resume. "
            'Name it: map(function, identity="strip-v1").'
        ) from None
    return f"{name} {hashlib.sha256(text.encode()).hexdigest()[:16]}"
