"""A run that changes its size on the way: other ranks, shared lanes, another global batch size, in any order."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings, strategies as st

from tests.scenarios import corpus, rank_steps, row_bytes, small_pipeline, text_of, tokenizer_folder, write_jsonl
from torchtitan_zephon import RankStream, RunSettings
from torchtitan_zephon.plan.layout import Layout
from torchtitan_zephon.program import Program
from torchtitan_zephon.state import decode_stream

PACKS: dict[str, dict[str, Any]] = {
    "wrap": {},
    "across": {"label_shift": "sequence"},
    "first_fit": {"algorithm": "first_fit"},
}
LANES = 6
MOST = 100
"""Sequences of a lane that a walk takes at most, before the end of a finite stream."""


class Stretch(NamedTuple):
    """Steps between two stops: sequences a step takes from a lane, ranks, whether they may share lanes."""

    lane_sequences: int
    degree: int
    shared: bool
    steps: int


@st.composite
def stretches(draw: st.DrawFn) -> Stretch:
    lane_sequences, shared = draw(st.integers(1, 5)), draw(st.booleans())
    divided = LANES * lane_sequences if shared else LANES
    degree = draw(st.sampled_from([d for d in range(1, divided + 1) if divided % d == 0]))
    return Stretch(lane_sequences, degree, shared, draw(st.integers(0, 4)))


class Taken(NamedTuple):
    """What a walk took: the hash of each sequence, a list a lane; and the state at the end."""

    lanes: list[list[str]]
    state: dict[str, Any]


def go(program: Program, stretch: Stretch, state: dict[str, Any] | None) -> Taken:
    """One stretch on all its ranks, its checkpoint joined as DCP would: equal keys must have equal bytes."""
    n, steps = stretch.lane_sequences, stretch.steps
    rows: list[list[str]] = []
    saved: dict[str, Any] = {}
    for rank in range(stretch.degree):
        layout = Layout(
            lanes=LANES,
            global_batch_size=LANES * n,
            dp_degree=stretch.degree,
            dp_rank=rank,
            local_batch_size=1,
            shared_lanes=stretch.shared,
        )
        stream = RankStream(program, layout, RunSettings(workers=1, allow_changes=["global_batch_size"]))
        if state is not None:
            stream.load_state_dict(state)
        taken = [[hashlib.sha256(row_bytes(b, 0)).hexdigest() for b in step] for step in rank_steps(stream, steps)]
        rows = rows or [[] for _ in taken]
        for row, more in zip(rows, taken, strict=True):  # every rank has the same number of steps
            row += more
        part = stream.state_dict()
        stream.close()
        for key, value in {"stream": part["stream"], **part["lane"]}.items():
            assert saved.setdefault(key, value) == value
    stream_state = saved.pop("stream")
    assert len(saved) == LANES
    lanes = [[h for row in rows for h in row[lane * n : (lane + 1) * n]] for lane in range(LANES)]
    return Taken(lanes, {"stream": stream_state, "lane": saved})


def walk(program: Program, plan: list[Stretch]) -> Taken:
    lanes: list[list[str]] = [[] for _ in range(LANES)]
    state = None
    for stretch in plan:
        taken = go(program, stretch, state)
        state = taken.state
        lanes = [lane + more for lane, more in zip(lanes, taken.lanes, strict=True)]
    assert state is not None
    return Taken(lanes, state)


class Scene(NamedTuple):
    """A program; all that its lanes give without a stop; the lanes' states after each sequence of a lane."""

    program: Program
    lanes: list[list[str]]
    states: list[dict[str, bytes]]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Scene]:
    folder = tmp_path_factory.mktemp("resize")
    sources = corpus(folder, 45)
    # One-token and empty documents: labels go across them, and a document's own labels skip them.
    sources["bits"] = write_jsonl(folder / "bits.jsonl", [("", "a", text_of(n, n % 7 + 1))[n % 3] for n in range(90)])
    found = {}
    for pack, options in PACKS.items():
        for repeat in (True, False):
            pipeline = small_pipeline(
                sources, lanes=LANES, global_batch_size=LANES, local_batch_size=1, seq_len=16, repeat=repeat,
                flush_every_sequences=5, **options,
            ).tokenize(tokenizer_id=str(tokenizer_folder()), add_bos=False, add_eos=False)  # fmt: skip
            stream = pipeline.for_rank(0, 1)
            steps, states = [], [stream.state_dict()["lane"]]
            while len(steps) < (MOST if repeat else 10**6) and (step := rank_steps(stream, 1)):
                steps += step
                states.append(stream.state_dict()["lane"])
            stream.close()
            lanes = [[hashlib.sha256(row_bytes(step[n], 0)).hexdigest() for step in steps] for n in range(LANES)]
            found[pack, repeat] = Scene(stream.program, lanes, states)
    return found


@pytest.mark.parametrize("pack", PACKS)
@given(plan=st.lists(stretches(), min_size=1, max_size=5))
@settings(max_examples=12)
def test_any_walk_through_sizes_takes_every_lane_in_its_order(
    scenes: dict[tuple[str, bool], Scene], pack: str, plan: list[Stretch]
) -> None:
    scene = scenes[pack, True]
    taken = walk(scene.program, plan)
    count = sum(s.lane_sequences * s.steps for s in plan)
    assert count <= MOST
    assert taken.lanes == [lane[:count] for lane in scene.lanes]
    assert taken.state["lane"] == scene.states[count]
    state = decode_stream(taken.state["stream"])
    assert (state.step, state.lane_sequences) == (sum(s.steps for s in plan), count)


@pytest.mark.parametrize("pack", PACKS)
@given(plan=st.lists(stretches(), min_size=1, max_size=4), last=stretches())
@settings(max_examples=8)
def test_a_finite_pass_of_changing_sizes_ends_when_every_lane_is_dry(
    scenes: dict[tuple[str, bool], Scene], pack: str, plan: list[Stretch], last: Stretch
) -> None:
    scene = scenes[pack, False]
    whole = len(scene.lanes[0])
    taken = walk(scene.program, [*plan, last._replace(steps=10**6)])
    assert [lane[:whole] for lane in taken.lanes] == scene.lanes
    count = len(taken.lanes[0])
    sizes = [s.lane_sequences for s in (*plan, last)]
    assert whole <= count < whole + max(sizes)
    assert len({h for lane in taken.lanes for h in lane[whole:]}) <= 1, "behind the end there is padding only"
    again = go(scene.program, last._replace(steps=1), taken.state)
    assert again.lanes == [[]] * LANES


@pytest.mark.parametrize("pack", PACKS)
def test_a_stop_after_every_step_between_own_and_shared_lanes_changes_nothing(
    scenes: dict[tuple[str, bool], Scene], pack: str
) -> None:
    scene = scenes[pack, True]
    degrees = [(1, False), (9, True), (2, True), (6, False), (18, True), (1, True), (3, False)]
    plan = [Stretch(3, *degrees[k % len(degrees)], 1) for k in range(21)]
    taken = walk(scene.program, plan)
    assert taken == (
        [lane[:63] for lane in scene.lanes],
        {"stream": taken.state["stream"], "lane": scene.states[63]},
    )
    assert go(scene.program, Stretch(3, 1, False, 21), None) == taken


def test_a_pass_goes_on_with_larger_batches_for_as_many_sequences_as_are_left(
    scenes: dict[tuple[str, bool], Scene],
) -> None:
    scene = scenes["wrap", False]
    whole = len(scene.lanes[0])
    half = go(scene.program, Stretch(1, 1, False, whole // 2), None)
    rest = go(scene.program, Stretch(4, 1, False, 10**6), half.state)
    assert len(rest.lanes[0]) == -(-(whole - whole // 2) // 4) * 4
