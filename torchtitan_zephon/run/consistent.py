"""Can a state be one of this program? What its numbers say of each other, and of the data.

What flows in: a decoded state that is of this recipe. What flows out: nothing, or the ``StateError`` that says which
numbers cannot be. A state that is accepted may still be another one than was saved; the replay finds that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..lane.stages import PACK
from ..ops.carried import from_plain
from ..ops.pack import PACKERS
from ..plan.segments import SourcePlace
from ..program import Program
from ..sealed import damaged
from ..state import NO_DIGEST, LaneState, StreamState

_STREAM = "the loader state"


def check_stream(stream: StreamState, program: Program) -> None:
    """Raise ``StateError`` unless the numbers that all lanes share fit together."""
    recipe, rates, counted = program.recipe, stream.tokens_per_mib, stream.pass_sequences
    if not stream.global_batch_size or stream.global_batch_size % recipe.lanes:
        raise damaged(_STREAM, f"global_batch_size = {stream.global_batch_size} is no multiple of {recipe.lanes} lanes")
    if stream.lane_sequences < stream.step or (stream.step == 0 != stream.lane_sequences):
        raise damaged(
            _STREAM,
            f"step = {stream.step} and lane_sequences = {stream.lane_sequences} disagree, as a step takes one sequence "
            "of every lane at least",
        )
    if rates is None and stream.step:
        raise damaged(_STREAM, f"tokens_per_mib is null at step {stream.step}, and is measured before the first")
    if rates is not None and (rates.keys() != set(program.names) or not all(rates.values())):
        raise damaged(_STREAM, f"tokens_per_mib = {rates} is not one number above 0 for each source")
    if counted is not None and (recipe.repeat or len(counted) != recipe.lanes):
        raise damaged(_STREAM, "pass_sequences is not one number for each lane of a stream that ends")


def check_lane(lane: LaneState, program: Program) -> None:
    """Raise ``StateError`` unless the numbers of a lane fit together."""
    start, places = lane.start, lane.start.sources.values()
    before = lane.sequences - lane.delivered
    fits = {
        f"delivered = {lane.delivered} is more than sequences = {lane.sequences}": before >= 0,
        f"segment = {start.segment} begins where no chunk was read": any(map(_moved, places)) or not start.segment,
        "segment 0 does not begin at the beginning": start.segment > 0
        or not (before or any(map(any, places)) or start.carries),
        "bytes or tokens were read of a source that no chunk was read of": all(
            _moved(p) or not (p.all_bytes or p.all_tokens or p.last_scheduled) for p in places
        ),
        "last_bytes were planned and no token": all(p.last_scheduled or not p.last_bytes for p in places),
        "in segment 1 there is no segment before the last": start.segment != 1
        or not any(p.tokens or p.num_bytes or p.target for p in places),
        "segment_digest and the sequences before the segment disagree": (start.digest == NO_DIGEST) == (before == 0),
        "digest and delivered disagree": (lane.digest == start.digest) == (lane.delivered == 0),
        "source_digests and delivered disagree": lane.delivered > 0 or not any(lane.source_digests.values()),
        "its carry cannot be one of this recipe": start.carries.keys() <= {PACK}
        and (PACK not in start.carries or _carry_fits(start.carries[PACK], program)),
    }
    for why, fit in fits.items():
        if not fit:
            raise damaged(f"the state of lane {lane.lane}", why)


def _moved(place: SourcePlace) -> bool:
    return bool(place.runs or place.chunks)


def _carry_fits(plain: Any, program: Program) -> bool:
    """Whether a carry is less than a row of tokens of this vocabulary and from these files."""
    try:
        carry = from_plain(plain, program.names)
    except ValueError:
        return False
    recipe = program.recipe
    length = len(carry.ids) - 1 if recipe.label_shift == "sequence" else carry.num_inputs
    shards = [len(source.reader.manifest.shards) for source in program.sources]
    return (
        PACKERS[recipe.pack].carries
        and len(carry) > 0
        and bool(np.diff(carry.offsets).all())
        and length < program.seq_len
        and int(carry.ids.max()) <= program.tokenize.largest_id()
        and all(shard < shards[source] for source, shard, *_ in carry.origin.tolist())
    )
