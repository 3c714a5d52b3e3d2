"""From a checkpoint's loader state to the place a stream goes on from, or to the reason why it cannot.

What flows in: the state, and the program, layout and settings it is to go on with. What flows out: the decoded
stream and lane states, and the program on the checkpoint's tokenizer back-end. Nothing is read or changed here.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any, cast

from ..config import RunSettings
from ..errors import StateError, TokenizerError
from ..ops.tokenize import Backend
from ..plan.layout import Layout
from ..program import Program
from ..state import (
    NEW_STREAM,
    OLDER_STEP,
    LaneState,
    StreamState,
    check_recipe,
    decode_lane,
    decode_stream,
    lane_key,
)


def decode_state(
    state: Mapping[str, Any], program: Program, layout: Layout, settings: RunSettings
) -> tuple[StreamState, dict[int, LaneState]]:
    """Everything that can be wrong with a state, found before anything here changes."""
    if "stream" not in state or not isinstance(state.get("lane"), Mapping):
        raise StateError(
            "the checkpoint's loader state has no stream and lanes (it has: "
            f"{', '.join(map(repr, state)) or 'nothing'}), so it was not made by torchtitan_zephon. {NEW_STREAM}"
        )
    stream = decode_stream(state["stream"])
    check_recipe(stream.recipe, program.identity)
    before, now = stream.global_batch_size, layout.global_batch_size
    if before != now and "global_batch_size" not in settings.allow_changes:
        raise StateError(
            f"the checkpoint was made with global_batch_size = {before}, this job has {now}. Set it back to "
            "continue the same global batches; or, to go on with the same sequences in batches of another size, "
            'set allow_changes = ["global_batch_size"].'
        )
    lanes: dict[int, LaneState] = {}
    for n in layout.own_lanes:
        if lane_key(n) not in state["lane"]:
            raise StateError(
                f"the checkpoint holds no state of lane {n}, which this rank owns; it was saved "
                f"incompletely. {OLDER_STEP}"
            )
        lanes[n] = decode_lane(state["lane"][lane_key(n)], n, len(program.names))
        if lanes[n].sequences != stream.lane_sequences:
            raise StateError(
                f"lane {n} stands at sequence {lanes[n].sequences}, but step {stream.step} ends at "
                f"{stream.lane_sequences}: the parts of this checkpoint are of different steps. {OLDER_STEP}"
            )
    return stream, lanes


def on_backend(before: str, program: Program, settings: RunSettings) -> Program:
    """The program on the tokenizer back-end of a checkpoint, or on another where that is allowed."""
    wanted = settings.tokenizer_backend
    if before not in typing.get_args(Backend):
        raise StateError(
            f"the checkpoint was made with tokenizer_backend = {before!r}, which this version does not have."
        )
    if "tokenizer_backend" in settings.allow_changes:
        return program.on(wanted)
    if wanted not in ("auto", before):
        raise StateError(
            f"the checkpoint was made with tokenizer_backend = {before!r}, this job has {wanted!r}. Set it "
            'back, or to "auto", which goes on with that of the checkpoint; or set '
            'allow_changes = ["tokenizer_backend"].'
        )
    try:
        return program.on(cast(Backend, before))
    except TokenizerError as error:
        raise StateError(
            f"the checkpoint was made with tokenizer_backend = {before!r}, but here {error} Install what "
            'is missing; or set allow_changes = ["tokenizer_backend"], to go on with tokenizers.'
        ) from None
