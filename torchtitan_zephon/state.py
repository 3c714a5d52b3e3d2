"""The only schema of the checkpoint: canonical JSON bytes, readable by eye, never unpickled.

What flows in and out: ``StreamState`` (one for the job) and ``LaneState`` (one a lane), each as
bytes. A checkpoint names a place in the stream and holds none of it, except the carries:
at most one row of tokens that ``wrap`` keeps across a flush, at 4 bytes a token. Size: a few
hundred bytes a lane plus the carries, however long the run. Sources stand by name.

A value that is damaged, foreign or of another format is refused by name. ``merge`` and
``split`` are not needed: a lane's state is the same bytes whichever rank saves it.

Later versions may add fields that are absent where they say nothing: of a stream ``line`` (older recipes with their
first steps) and ``skipped`` (ranges of lane sequences); of a segment start ``recipe`` (which of the line). This version
refuses them by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .bad_records import Counted
from .changes import recipe_changes
from .errors import RecipeChangedError, StateError
from .plan.segments import SourcePlace
from .plan.slices import TapePlace
from .sealed import (
    COUNT,
    COUNT_BY_NAME,
    COUNTS,
    DIGESTS,
    NEW_STREAM as NEW_STREAM,
    OLDER_STEP as OLDER_STEP,
    SHA256,
    TABLE,
    TEXT,
    Kind,
    canonical,
    damaged,
    from_table,
    is_count,
    is_counts,
    kinds,
    seal,
    stored,
    stored_if_any,
    table_of,
    to_table,
    unseal,
)

FORMAT = 5
"""Version of these schemas. Another one is refused by name."""

NO_DIGEST = "0" * 64


def _counts_a_source(place: Callable[..., Any]) -> Kind:
    """A table by source of NamedTuples ``place``, which have counts only."""
    fields = place._fields  # type: ignore[attr-defined]

    def fits(value: Any) -> bool:
        places = value.values() if isinstance(value, dict) else [None]
        return all(isinstance(p, list) and len(p) == len(fields) and all(map(is_count, p)) for p in places)

    return Kind(
        f"table of {len(fields)} counts a source",
        fits,
        lambda table: {name: list(counts) for name, counts in table.items()},
        lambda table: {name: place(*counts) for name, counts in table.items()},
    )


RECORDS = Kind(
    "table of records read and refused by source",
    lambda v: (
        isinstance(v, dict)
        and all(
            isinstance(c, dict) and c.keys() == {"read", "refused"} and is_count(c["read"]) and is_counts(c["refused"])
            for c in v.values()
        )
    ),
    lambda records: {name: counted._asdict() for name, counted in records.items()},
    lambda table: {name: Counted(**counted) for name, counted in table.items()},
)


@dataclass(frozen=True, slots=True)
class SegmentStart:
    """Where a segment begins: all that decides the rest of the lane.

    ``sources``: by name, where the lane stands in each. ``carries``: by stage, what it holds across the flush, as plain
    values; a stage that holds nothing has none. ``digest``: hash over every sequence delivered before. ``records``: by
    source, how many were read and how many of these refused, by kind; absent unless bad records are left out.
    ``tapes``: by source, where the lane stands in files that are read from the front.
    """

    segment: int = stored(COUNT)
    sources: dict[str, SourcePlace] = stored(_counts_a_source(SourcePlace))
    carries: dict[str, Any] = stored(TABLE)
    digest: str = stored(SHA256)
    records: dict[str, Counted] = stored_if_any(RECORDS)
    tapes: dict[str, TapePlace] = stored_if_any(_counts_a_source(TapePlace))

    @classmethod
    def first(cls, names: Iterable[str]) -> SegmentStart:
        """The beginning of the stream."""
        return cls(0, {name: SourcePlace() for name in names}, {}, NO_DIGEST)


@dataclass(frozen=True, slots=True)
class LaneState:
    """Where the trainer is in one lane: ``delivered`` sequences behind ``start``.

    ``sequences``: delivered since step 0. ``digest``: hash over all of them.
    ``source_digests``: one a source, over the tokens read from it in this segment.
    """

    lane: int = stored(COUNT)
    start: SegmentStart = stored(table_of(SegmentStart))
    delivered: int = stored(COUNT)
    sequences: int = stored(COUNT)
    digest: str = stored(SHA256)
    source_digests: dict[str, str] = stored(DIGESTS)

    @classmethod
    def first(cls, lane: int, names: Sequence[str]) -> LaneState:
        """The beginning of the stream."""
        return cls(lane, SegmentStart.first(names), 0, 0, NO_DIGEST, dict.fromkeys(names, ""))


@dataclass(frozen=True, slots=True)
class StreamState:
    """What all lanes share.

    ``tokenizer_backend``: what has encoded the texts. ``tokens_per_mib``: by source, measured once, then kept; None
    before that. ``step``: steps of this stream; ``first_step``: steps the trainer had done when it began.
    ``lane_sequences``: delivered by each lane. ``pass_sequences``: what every lane has in one pass, counted once;
    None for a repeating stream, and before the count.
    """

    recipe: dict[str, Any] = stored(TABLE)
    tokenizer_backend: str = stored(TEXT)
    tokens_per_mib: dict[str, int] | None = stored(COUNT_BY_NAME)
    global_batch_size: int = stored(COUNT)
    step: int = stored(COUNT)
    first_step: int = stored(COUNT)
    lane_sequences: int = stored(COUNT)
    pass_sequences: tuple[int, ...] | None = stored(COUNTS)


class Snapshot(NamedTuple):
    """The place of one rank at a step's end, not yet encoded: cheap to take and never changed."""

    stream: StreamState
    lanes: tuple[LaneState, ...]

    def encode(self) -> dict[str, Any]:
        """``{"stream": bytes, "lane": {"00007": bytes, ...}}``, as a checkpoint holds it."""
        lanes = {lane_key(state.lane): encode_lane(state) for state in self.lanes}
        return {"stream": encode_stream(self.stream), "lane": lanes}


def lane_key(lane: int) -> str:
    """The checkpoint key of a lane."""
    return f"{lane:05d}"


def no_such_place(lane: int) -> StateError:
    """The refusal of a lane whose cursor stands where the plan has no chunk."""
    return damaged(f"the state of lane {lane}", "its recipe's plan has no such runs and chunks")


def check_strays(lanes: Mapping[Any, object], count: int) -> None:
    """Raise ``StateError`` for a key in ``lanes`` that a stream of ``count`` lanes does not have."""
    if strays := lanes.keys() - set(map(lane_key, range(count))):
        raise StateError(
            f"the checkpoint holds lane {min(map(repr, strays))}, which is none of the recipe's {count}; it was put "
            f"together from several. {OLDER_STEP}"
        )


def encode_lane(state: LaneState) -> bytes:
    """The bytes of one lane's state."""
    return seal(FORMAT, to_table(state))


def decode_lane(data: object, lane: int, names: Collection[str]) -> LaneState:
    """The state of ``lane`` of a stream with the sources ``names``. Raises ``StateError``."""
    where = f"the state of lane {lane}"
    state = from_table(LaneState, unseal(data, FORMAT, kinds(LaneState), where))
    if state.lane != lane:
        raise StateError(
            f"{where} says it belongs to lane {state.lane}; the checkpoint was put together wrongly. {OLDER_STEP}"
        )
    for table in (state.start.sources, state.source_digests, state.start.records or state.start.sources):
        if table.keys() != set(names):
            raise StateError(
                f"{where} is for the sources {_named(table)}, and the recipe's are {_named(names)}. {OLDER_STEP}"
            )
    return state


def _named(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "none"


def encode_stream(state: StreamState) -> bytes:
    """The bytes of what all lanes share."""
    return seal(FORMAT, {**to_table(state), "recipe_sha256": recipe_hash(state.recipe)})


def decode_stream(data: object) -> StreamState:
    """The shared state. Raises ``StateError``."""
    value = unseal(data, FORMAT, {**kinds(StreamState), "recipe_sha256": SHA256}, "the loader state")
    if value["recipe_sha256"] != recipe_hash(value["recipe"]):
        raise damaged("the loader state", "recipe_sha256 is not its recipe's")
    return from_table(StreamState, value)


def recipe_hash(recipe: Mapping[str, Any]) -> str:
    """SHA-256 of the recipe's canonical JSON."""
    return hashlib.sha256(canonical(recipe)).hexdigest()


def check_recipe(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Raise ``RecipeChangedError``, listing each changed field, unless the recipes are equal."""
    changes = recipe_changes(saved, current)
    if not changes and recipe_hash(saved) != recipe_hash(current):  # names with dots in them may hide where
        changes = [f"recipe_sha256: {recipe_hash(saved)} -> {recipe_hash(current)}"]
    if changes:
        raise RecipeChangedError(
            "the checkpoint was made with another recipe, so its place in the stream means nothing in this one "
            f"(field: checkpoint -> now):{listed(changes)}\nPut these back to continue the same stream. {NEW_STREAM}",
            changes,
        )


def listed(changes: list[str]) -> str:
    """The first dozen of ``changes``, a line each."""
    shown = changes[:12] + ([f"and {len(changes) - 12} more"] if len(changes) > 12 else [])
    return "".join(f"\n    {change}" for change in shown)
