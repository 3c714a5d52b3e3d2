"""Can a state be one of this program? What its numbers say of each other, and of the data.

What flows in: a decoded state that is of this recipe. What flows out: nothing, or the ``StateError`` that says which
numbers cannot be. A state that is accepted may still be another one than was saved; the replay finds that.
"""

from __future__ import annotations

from ..program import Program
from ..records import Documents
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
    if rates is not None and (len(rates) != len(program.names) or not all(rates)):
        raise damaged(_STREAM, f"tokens_per_mib = {list(rates)} is not one number above 0 for each source")
    if counted is not None and (recipe.repeat or len(counted) != recipe.lanes):
        raise damaged(_STREAM, "pass_sequences is not one number for each lane of a stream that ends")


def check_lane(lane: LaneState, program: Program) -> None:
    """Raise ``StateError`` unless the numbers of a lane fit together."""
    start, cursor = lane.start, lane.start.cursor
    before = lane.sequences - lane.delivered
    moved = [bool(runs or chunks) for runs, chunks in zip(cursor.runs, cursor.chunks, strict=True)]
    columns = list(zip(moved, cursor.runs, cursor.chunks, cursor.scheduled_tokens, start.tokens, strict=True))
    fits = {
        f"delivered = {lane.delivered} is more than sequences = {lane.sequences}": before >= 0,
        f"segment = {start.segment} begins behind {before} sequences": start.segment <= before,
        f"segment = {start.segment} begins where no chunk was read": any(moved) or not start.segment,
        "segment 0 does not begin at the beginning": start.segment > 0
        or not (before or any(moved) or len(start.carry.ids)),
        "scheduled_tokens are not those of its runs and chunks": all(
            scheduled >= runs + chunks and moved == bool(scheduled) for moved, runs, chunks, scheduled, _ in columns
        ),
        "tokens were read of a source that no chunk was read of": all(moved or not n for moved, *_, n in columns),
        "segment_digest and the sequences before the segment disagree": (start.digest == NO_DIGEST) == (before == 0),
        "digest and delivered disagree": (lane.digest == start.digest) == (lane.delivered == 0),
        "source_digests and delivered disagree": lane.delivered > 0 or not any(lane.source_digests),
        "its carry cannot be one of this recipe": _carry_fits(start.carry, program),
    }
    for why, fit in fits.items():
        if not fit:
            raise damaged(f"the state of lane {lane.lane}", why)


def _carry_fits(carry: Documents, program: Program) -> bool:
    """Whether ``carry`` is less than a row of tokens of this vocabulary and from these files."""
    if not len(carry.ids):
        return True
    recipe = program.recipe
    length = len(carry.ids) - 1 if recipe.label_shift == "sequence" else carry.num_inputs
    shards = [len(source.reader.manifest.shards) for source in program.sources]
    return (
        recipe.pack == "wrap"
        and length < program.seq_len
        and int(carry.ids.max()) <= program.tokenize.largest_id()
        and all(source < len(shards) and shard < shards[source] for source, shard, *_ in carry.origin.tolist())
    )
