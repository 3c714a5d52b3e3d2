"""The only schema of the checkpoint: canonical JSON bytes, readable by eye, never unpickled.

What flows in and out: ``StreamState`` (one for the job) and ``LaneState`` (one a lane), each as
bytes. A checkpoint names a place in the stream and holds none of it, except the carry:
at most one row of tokens that ``wrap`` keeps across a flush, at 4 bytes a token. Size: a few
hundred bytes a lane plus the carry, however long the run.

A value that is damaged, foreign or of another format is refused by name. ``merge`` and
``split`` are not needed: a lane's state is the same bytes whichever rank saves it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from .changes import recipe_changes
from .errors import RecipeChangedError, StateError
from .plan.cursor import Cursor
from .records import Documents
from .sealed import NEW_STREAM as NEW_STREAM, OLDER_STEP as OLDER_STEP, canonical, damaged, is_count, seal, unseal

FORMAT = 4
"""Version of these schemas. Another one is refused by name."""

NO_DIGEST = "0" * 64


@dataclass(frozen=True, slots=True)
class SegmentStart:
    """Where a segment begins: all that decides the rest of the lane.

    ``tokens``: tokens taken from each source so far. ``carry``: what the packer holds. ``digest``:
    hash over every sequence delivered before.
    """

    segment: int
    cursor: Cursor
    tokens: tuple[int, ...]
    carry: Documents
    digest: str

    @classmethod
    def first(cls, num_sources: int) -> SegmentStart:
        """The beginning of the stream."""
        return cls(0, Cursor.start(num_sources), (0,) * num_sources, Documents.empty(), NO_DIGEST)


@dataclass(frozen=True, slots=True)
class LaneState:
    """Where the trainer is in one lane: ``delivered`` sequences behind ``start``.

    ``sequences``: delivered since step 0. ``digest``: hash over all of them.
    ``source_digests``: one a source, over the tokens read from it in this segment.
    """

    lane: int
    start: SegmentStart
    delivered: int
    sequences: int
    digest: str
    source_digests: tuple[str, ...]

    @classmethod
    def first(cls, lane: int, num_sources: int) -> LaneState:
        """The beginning of the stream."""
        return cls(lane, SegmentStart.first(num_sources), 0, 0, NO_DIGEST, ("",) * num_sources)


@dataclass(frozen=True, slots=True)
class StreamState:
    """What all lanes share.

    ``tokenizer_backend``: what has encoded the texts. ``tokens_per_mib``: measured once, then kept; None before
    that. ``step``: steps of this stream; ``first_step``: steps the trainer had done when it began.
    ``lane_sequences``: delivered by each lane. ``pass_sequences``: what every lane has in one pass, counted once;
    None for a repeating stream, and before the count.
    """

    recipe: dict[str, Any]
    tokenizer_backend: str
    tokens_per_mib: tuple[int, ...] | None
    global_batch_size: int
    step: int
    first_step: int
    lane_sequences: int
    pass_sequences: tuple[int, ...] | None


def encode_lane(state: LaneState) -> bytes:
    """The bytes of one lane's state."""
    start = state.start
    return seal(
        FORMAT,
        {
            "lane": state.lane,
            "segment": start.segment,
            "runs": start.cursor.runs,
            "chunks": start.cursor.chunks,
            "scheduled_tokens": start.cursor.scheduled_tokens,
            "tokens": start.tokens,
            "carry": _pack_carry(start.carry),
            "segment_digest": start.digest,
            "delivered": state.delivered,
            "sequences": state.sequences,
            "digest": state.digest,
            "source_digests": state.source_digests,
        },
    )


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


_LANE_FIELDS = {
    "lane": "count",
    "segment": "count",
    "runs": "list of counts",
    "chunks": "list of counts",
    "scheduled_tokens": "list of counts",
    "tokens": "list of counts",
    "carry": "table",
    "segment_digest": "SHA-256",
    "delivered": "count",
    "sequences": "count",
    "digest": "SHA-256",
    "source_digests": "list of digests",
}


def decode_lane(data: object, lane: int, num_sources: int) -> LaneState:
    """The state of ``lane``. Raises ``StateError``."""
    where = f"the state of lane {lane}"
    value = unseal(data, FORMAT, _LANE_FIELDS, where)
    if value["lane"] != lane:
        raise StateError(
            f"{where} says it belongs to lane {value['lane']}; the checkpoint was put together wrongly. {OLDER_STEP}"
        )
    columns = [tuple(value[k]) for k in ("runs", "chunks", "scheduled_tokens", "tokens", "source_digests")]
    if any(len(c) != num_sources for c in columns):
        raise StateError(f"{where} is for another number of sources than the recipe's {num_sources}. {OLDER_STEP}")
    runs, chunks, scheduled, tokens, source_digests = columns
    start = SegmentStart(
        value["segment"],
        Cursor(runs, chunks, scheduled),
        tokens,
        _unpack_carry(value["carry"], where),
        value["segment_digest"],
    )
    return LaneState(lane, start, value["delivered"], value["sequences"], value["digest"], source_digests)


def encode_stream(state: StreamState) -> bytes:
    """The bytes of what all lanes share."""
    return seal(
        FORMAT,
        {
            "recipe": state.recipe,
            "recipe_sha256": recipe_hash(state.recipe),
            "tokenizer_backend": state.tokenizer_backend,
            "tokens_per_mib": None if state.tokens_per_mib is None else list(state.tokens_per_mib),
            "global_batch_size": state.global_batch_size,
            "step": state.step,
            "first_step": state.first_step,
            "lane_sequences": state.lane_sequences,
            "pass_sequences": None if state.pass_sequences is None else list(state.pass_sequences),
        },
    )


def decode_stream(data: object) -> StreamState:
    """The shared state. Raises ``StateError``."""
    fields = {
        "recipe": "table",
        "recipe_sha256": "SHA-256",
        "tokenizer_backend": "text",
        "tokens_per_mib": "list of counts, or null",
        "global_batch_size": "count",
        "step": "count",
        "first_step": "count",
        "lane_sequences": "count",
        "pass_sequences": "list of counts, or null",
    }
    value = unseal(data, FORMAT, fields, "the loader state")
    if value["recipe_sha256"] != recipe_hash(value["recipe"]):
        raise damaged("the loader state", "recipe_sha256 is not its recipe's")
    measured, counted = value["tokens_per_mib"], value["pass_sequences"]
    return StreamState(
        value["recipe"],
        value["tokenizer_backend"],
        None if measured is None else tuple(measured),
        value["global_batch_size"],
        value["step"],
        value["first_step"],
        value["lane_sequences"],
        None if counted is None else tuple(counted),
    )


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


def _pack_carry(carry: Documents) -> dict[str, Any]:
    """Ids at 3 bytes each in base64, which is 4 bytes a token; ``Tokenize`` refuses ids of 2**24 and more.

    The origin's part is left out, as it is always 0.
    """
    assert carry.ids.max(initial=0) < 1 << 24
    raw = carry.ids.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    origin = carry.origin[:, :3].tolist()
    return {"ids": base64.b64encode(raw).decode(), "offsets": carry.offsets.tolist(), "origin": origin}


def _unpack_carry(value: dict[str, Any], where: str) -> Documents:
    """What ``_pack_carry`` was given. Nothing else is taken: what comes out gives the same table again."""
    try:
        raw = np.frombuffer(base64.b64decode(value["ids"], validate=True), np.uint8).reshape(-1, 3)
        ids = np.zeros((len(raw), 4), np.uint8)
        ids[:, :3] = raw
        if not all(map(is_count, [*value["offsets"], *chain.from_iterable(value["origin"])])):
            raise ValueError
        offsets = np.array(value["offsets"], np.int64)
        places = np.array(value["origin"], np.int64).reshape(-1, 3)
        origin = np.column_stack([places, np.zeros(len(places), np.int64)])
        carry = Documents({}, {"ids": ids.view("<u4").reshape(-1).astype(np.int32)}, offsets, origin)
        if (
            (offsets[0], offsets[-1]) != (0, len(raw))
            or len(offsets) != len(origin) + 1
            or (np.diff(offsets) < 1).any()
        ):
            raise ValueError
        if _pack_carry(carry) == value:
            return carry
    except (KeyError, ValueError, IndexError, TypeError):
        pass
    raise damaged(where, "its carry cannot be read")
