"""From a checkpoint's loader state to the place a stream goes on from, or to the reason why it cannot.

What flows in: the state, and the program, layout and settings it is to go on with. What flows out: the decoded
stream and lane states, and the program on the checkpoint's commits and tokenizer back-end. Nothing is changed here.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from ..config import RunSettings
from ..errors import StateError, TokenizerError
from ..ops.tokenize import Backend
from ..plan.layout import Layout
from ..program import Program, compile_program
from ..read.settings import SourceConfig
from ..read.source import Source, open_source, source_of
from ..read.stores.hub import COMMIT, at_commit
from ..read.stores.settings import StorageSettings
from ..state import (
    NEW_STREAM,
    OLDER_STEP,
    LaneState,
    Snapshot,
    check_recipe,
    check_strays,
    decode_lane,
    decode_stream,
    lane_key,
    no_such_place,
)
from .consistent import check_lane, check_stream


def decode_state(state: Any, program: Program, layout: Layout, settings: RunSettings) -> tuple[Snapshot, Program]:
    """The place in ``state``, and ``program`` pinned to it.

    Everything that can be wrong with a state is found before anything here changes.
    """
    if not isinstance(state, Mapping):
        raise StateError(
            f"the checkpoint's loader state is a {type(state).__name__}, not a table, so it was not made by "
            f"torchtitan_zephon. {NEW_STREAM}"
        )
    if state.keys() != {"stream", "lane"} or not isinstance(state["lane"], Mapping):
        raise StateError(
            "the checkpoint's loader state has no stream and lanes, or more than these (it has: "
            f"{', '.join(map(repr, list(state)[:8])) or 'nothing'}), so it was not made by torchtitan_zephon. "
            f"{NEW_STREAM}"
        )
    stream = decode_stream(state["stream"])
    program = pinned(program, stream.recipe)
    check_recipe(stream.recipe, program.identity)
    check_stream(stream, program)
    check_strays(state["lane"], layout.lanes)
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
        lanes[n] = decode_lane(state["lane"][lane_key(n)], n, program.names)
        if lanes[n].sequences != stream.lane_sequences:
            raise StateError(
                f"lane {n} stands at sequence {lanes[n].sequences}, but step {stream.step} ends at "
                f"{stream.lane_sequences}: the parts of this checkpoint are of different steps. {OLDER_STEP}"
            )
        check_lane(lanes[n], program)
    if program.recipe.repeat and stream.tokens_per_mib is not None:  # else a lane finds it when it is built
        rates = [stream.tokens_per_mib[name] for name in program.names]
        for n, lane in program.lanes(lanes, rates).items():
            if not lane.plan.holds(tuple(lanes[n].start.sources.values())):
                raise no_such_place(n)
    return Snapshot(stream, tuple(lanes.values())), program


def pinned(program: Program, before: Mapping[str, Any]) -> Program:
    """``program`` with the commits of ``before``, a checkpoint's recipe, for sources whose paths name none.

    What a path such as ``hf://OWNER/NAME``, or a branch, means may have moved on since.
    """
    manifests, sources = {source.name: source.reader.manifest for source in program.sources}, {}
    for name, own in program.recipe.sources.items():
        commit = _commit_of(before, name)
        moved = commit and commit != manifests[name].store.commit
        sources[name] = replace(own, path=at_commit(own.path, commit)) if moved else own
    if sources == program.recipe.sources:
        return program

    def opening(name: str, settings: SourceConfig, max_record_bytes: int, storage: StorageSettings) -> Source:
        if settings == program.recipe.sources[name]:
            return source_of(name, settings, max_record_bytes, manifests[name])
        return open_source(name, settings, max_record_bytes, storage)

    recipe, tokenize = replace(program.recipe, sources=sources), program.tokenize
    return compile_program(
        recipe, program.seq_len, tokenize.spec, program.functions, tokenize.backend, opening, program.storage
    )


def _commit_of(recipe: Mapping[str, Any], source: str) -> str:
    """The commit of a source in a recipe as plain values; '' if it has none."""
    sources = recipe.get("sources")
    own = sources.get(source) if isinstance(sources, Mapping) else None
    commit = own.get("commit") if isinstance(own, Mapping) else None
    return commit if isinstance(commit, str) and COMMIT.fullmatch(commit) else ""


def on_backend(before: str, program: Program, settings: RunSettings) -> Program:
    """The program on the tokenizer back-end of a checkpoint, or on another where that is allowed."""
    wanted = settings.tokenizer_backend
    if before not in typing.get_args(Backend):
        raise StateError(
            f"the checkpoint was made with tokenizer_backend = {before[:40]!r}, which this version does not have. "
            "Install the version that wrote it."
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
