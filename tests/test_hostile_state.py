"""Any state whatever is loaded as it stands or refused with a ``StateError`` that names the way out; nothing else."""

from __future__ import annotations

import base64
import copy
import functools
import hashlib
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.scenarios import global_batches, says, small_pipeline, texts_of, write_jsonl
from torchtitan_zephon import Pipeline, RankStream, StateError, ZephonError

WAY_OUT = re.compile(
    r"--checkpoint\.|Install the version|Install what|[Ss]et it back|Put these back|[Ss]et allow_changes"
)
State = dict[str, Any]
STEPS = 30
"""60 sequences a lane: each is behind its first segment, which has 12 and what its last chunk has more."""


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="zephon-hostile-"))
    for name in ("news", "wiki"):
        for k in range(2):
            write_jsonl(folder / name / f"{k}.jsonl", texts_of(80, first=1000 * k + len(name)))
    return folder


def pipeline(**options: Any) -> Pipeline:
    return small_pipeline({name: _folder() / name for name in ("news", "wiki")}, **options)


@functools.cache
def endless() -> RankStream:
    return pipeline().for_rank(0, 1)


@functools.cache
def states() -> dict[str, State]:
    """Places to begin from: the start, some way into the second segment, and the middle of one pass."""
    return {
        "start": endless().state_dict(),
        "later": global_batches(pipeline(), 1, STEPS)[1],
        "pass": global_batches(pipeline(repeat=False), 1, 3)[1],
        "row": global_batches(pipeline(label_shift="sequence"), 1, STEPS)[1],
        "whole": global_batches(pipeline(algorithm="first_fit"), 1, 60)[1],
    }


@functools.cache
def streams() -> dict[str, RankStream]:
    whole = pipeline(algorithm="first_fit").for_rank(0, 1)
    row, one = pipeline(label_shift="sequence").for_rank(0, 1), pipeline(repeat=False).for_rank(0, 1)
    return {"start": endless(), "later": endless(), "pass": one, "row": row, "whole": whole}


def canonical(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def sealed(value: State) -> bytes:
    """``value`` with the sums that fit, so that only what it says can be objected to."""
    body = {name: v for name, v in value.items() if name != "check"}
    if "recipe_sha256" in body and "recipe" in body:
        body["recipe_sha256"] = hashlib.sha256(canonical(body["recipe"])).hexdigest()
    return canonical({**body, "check": hashlib.blake2b(canonical(body), digest_size=8).hexdigest()})


def lane_with(state: State, lane: int = 1, **changes: Any) -> State:
    key = f"{lane:05d}"
    return {**state, "lane": {**state["lane"], key: sealed({**json.loads(state["lane"][key]), **changes})}}


def stream_with(state: State, **changes: Any) -> State:
    return {**state, "stream": sealed({**json.loads(state["stream"]), **changes})}


def refused(stream: RankStream, state: Any) -> str:
    """The message of the refusal of ``state``."""
    with pytest.raises(StateError) as refusal:
        stream.load_state_dict(state)
    assert WAY_OUT.search(str(refusal.value)), refusal.value
    str(refusal.value).encode()
    return str(refusal.value)


@pytest.mark.parametrize("place", ["start", "later", "pass", "row", "whole"])
def test_what_was_saved_is_loaded_and_saved_again(place: str) -> None:
    state = states()[place]
    streams()[place].load_state_dict(state)
    assert streams()[place].state_dict() == state
    streams()[place].load_state_dict(
        {"lane": {key: bytearray(value) for key, value in state["lane"].items()}, "stream": bytearray(state["stream"])}
    )
    assert streams()[place].state_dict() == state


@pytest.mark.parametrize(
    ("state", "says_it"),
    [
        (None, "is a NoneType, not a table"),
        ([1], "is a list, not a table"),
        (b"{}", "is a bytes, not a table"),
        (np.zeros(3), "is a ndarray, not a table"),
        ({}, "it has: nothing"),
        ({"stream": b"", "lane": [b""]}, "it has: 'stream', 'lane'"),
        ({"stream": b"", "lane": None}, "it has: 'stream', 'lane'"),
        ({"stream": b"", "lane": {}, "world_size": 4}, "it has: 'stream', 'lane', 'world_size'"),
        ({7: b"", ("a",): {}}, "it has: 7, ('a',)"),
        ({"\ud800": 1}, r"it has: '\ud800'"),
        ({f"dp_rank_{n}": b"" for n in range(999)}, "'dp_rank_7'), so"),
    ],
    ids=range(11),
)
def test_what_is_no_state_at_all_is_refused_by_what_it_has(state: Any, says_it: str) -> None:
    assert says_it in refused(endless(), state)


def test_a_lane_that_the_stream_does_not_have_is_refused_by_its_key() -> None:
    state = states()["later"]
    for key in ("00004", "0", "1", "00001 ", "lane", "-0001", 1, None, ("00001",), b"00001", "\ud800"):
        more = {**state, "lane": {**state["lane"], key: state["lane"]["00001"]}}
        assert f"holds lane {key!r}, which is none of the recipe's 4" in refused(endless(), more)


LATER_LANE: list[tuple[dict[str, Any], str]] = [
    ({"delivered": 61}, "delivered = 61 is more than sequences = 60"),
    ({"delivered": 2**62}, "is more than sequences = 60"),
    ({"sequences": 2**62}, "lane 1 stands at sequence 4611686018427387904, but step 30 ends at 60"),
    ({"segment": 61}, "segment = 61 begins behind"),
    ({"segment": 0}, "segment 0 does not begin at the beginning"),
    ({"runs": [0, 0], "chunks": [0, 0]}, "begins where no chunk was read"),
    ({"scheduled_tokens": [0, 0]}, "scheduled_tokens are not those of its runs and chunks"),
    ({"runs": [2**62, 1]}, "scheduled_tokens are not those of its runs and chunks"),
    (
        {"runs": [3, 3], "chunks": [1, 1], "scheduled_tokens": [10**6, 10**6]},
        "its recipe's plan has no such runs and chunks",
    ),
    ({"segment_digest": "0" * 64}, "segment_digest and the sequences before the segment disagree"),
    ({"digest": "0" * 64, "delivered": 0}, "digest and delivered disagree"),
    ({"source_digests": ["0" * 16, ""], "delivered": 0}, "disagree"),
    ({"runs": [1], "chunks": [0]}, "is for another number of sources than the recipe's 2"),
    ({"tokens": [1, 2, 3]}, "is for another number of sources than the recipe's 2"),
    ({"source_digests": []}, "is for another number of sources than the recipe's 2"),
]


@pytest.mark.parametrize(("changes", "says_it"), LATER_LANE, ids=range(len(LATER_LANE)))
def test_a_lane_whose_numbers_disagree_is_refused_by_them(changes: dict[str, Any], says_it: str) -> None:
    message = refused(endless(), lane_with(states()["later"], **changes))
    assert says_it in message
    assert "lane 1" in message


def test_tokens_of_a_source_that_was_not_read_are_refused() -> None:
    message = refused(endless(), lane_with(states()["start"], tokens=[0, 5]))
    assert "tokens were read of a source that no chunk was read of" in message


def carried(ids: list[int], offsets: list[int], origin: list[list[int]]) -> dict[str, Any]:
    raw = b"".join(i.to_bytes(3, "little") for i in ids)
    return {"ids": base64.b64encode(raw).decode(), "offsets": offsets, "origin": origin}


@pytest.mark.parametrize(
    "carry",
    [
        carried([5] * 40, [0, 40], [[0, 0, 0]]),
        carried([5, 2**24 - 1], [0, 2], [[0, 0, 0]]),
        carried([5, 5], [0, 2], [[2, 0, 0]]),
        carried([5, 5], [0, 2], [[1, 2, 0]]),
        carried([5, 5], [0, 2], [[2**62, 0, 0]]),
    ],
    ids=["more than a row", "no token", "no source", "no shard", "large"],
)
def test_a_carry_that_is_none_of_this_recipe_is_refused(carry: dict[str, Any]) -> None:
    for place in ("later", "row"):
        message = refused(streams()[place], lane_with(states()[place], carry=carry))
        assert "its carry cannot be one of this recipe" in message
    short = carried([5], [0, 1], [[0, 0, 0]])
    assert "its carry cannot be" in refused(streams()["whole"], lane_with(states()["whole"], carry=short))
    assert "does not begin at the beginning" in refused(
        endless(), lane_with(states()["start"], carry=carried([5, 5], [0, 2], [[0, 0, 0]]))
    )


@pytest.mark.parametrize(
    ("changes", "says_it"),
    [
        ({"global_batch_size": 0}, "global_batch_size = 0 is no multiple of 4 lanes"),
        ({"global_batch_size": 9}, "global_batch_size = 9 is no multiple of 4 lanes"),
        ({"global_batch_size": 16}, "made with global_batch_size = 16, this job has 8"),
        ({"step": 61}, "step = 61 and lane_sequences = 60 disagree"),
        ({"step": 0}, "step = 0 and lane_sequences = 60 disagree"),
        ({"step": 1, "lane_sequences": 0}, "step = 1 and lane_sequences = 0 disagree"),
        ({"lane_sequences": 62}, "lane 0 stands at sequence 60, but step 30 ends at 62"),
        ({"tokens_per_mib": None}, "tokens_per_mib is null at step 30"),
        ({"tokens_per_mib": []}, "is not one number above 0 for each source"),
        ({"tokens_per_mib": [1, 2, 3]}, "is not one number above 0 for each source"),
        ({"tokens_per_mib": [0, 1]}, "is not one number above 0 for each source"),
        ({"pass_sequences": [1, 2, 3, 4]}, "pass_sequences is not one number for each lane of a stream that ends"),
        ({"tokenizer_backend": "x" * 9999}, "which this version does not have"),
        ({"recipe": {}}, "made with another recipe"),
        ({"recipe": {"sources": None}}, "made with another recipe"),
        ({"recipe": []}, "field 'recipe' is a list, not a table"),
    ],
    ids=range(16),
)
def test_a_stream_whose_numbers_disagree_is_refused_by_them(changes: dict[str, Any], says_it: str) -> None:
    message = refused(endless(), stream_with(states()["later"], **changes))
    assert says_it in message
    assert len(message) < 3000


def test_the_counts_of_a_pass_are_one_a_lane() -> None:
    for counts in ([], [1, 2, 3], [1] * 5):
        state = stream_with(states()["pass"], pass_sequences=counts)
        assert "pass_sequences is not one number for each lane" in refused(streams()["pass"], state)


def test_a_place_that_one_pass_does_not_have_is_refused_before_anything_is_read() -> None:
    state = lane_with(states()["pass"], segment=1, runs=[900, 0], scheduled_tokens=[10**6, 0], tokens=[1, 0],
                      delivered=1, segment_digest="1" * 64, source_digests=["", ""])  # fmt: skip
    stream = pipeline(repeat=False).for_rank(0, 1)
    stream.load_state_dict(state)
    with pytest.raises(StateError) as refusal:
        next(iter(stream))
    says(refusal, "the state of lane 1", "its recipe's plan has no such runs and chunks", "--checkpoint.load_step")


def test_numbers_that_are_only_large_do_not_end_in_another_error() -> None:
    state = stream_with(states()["later"], tokens_per_mib=[2**62, 2**62], first_step=2**63 - 1)
    stream = pipeline().for_rank(0, 1)
    stream.load_state_dict(state)
    try:
        next(iter(stream))
    except ZephonError:
        pass
    finally:
        stream.close()


# ---- anything else

numbers = st.one_of(
    st.integers(-2, 40), st.sampled_from([2**31, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64, 10**40, -(10**40)])
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    numbers,
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["\ud800", "0" * 64, "f" * 64, "0" * 16, "", "AAAA", "hf", "\x00"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=8,
)


def mutate(draw: Callable[[Any], Any], value: Any) -> Any:
    """``value`` with one place in it replaced, removed or repeated."""
    if isinstance(value, (dict, list)) and value and draw(st.integers(0, 4)):
        key = draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
        inner = copy.copy(value)
        how = draw(st.integers(0, 7))
        if how == 0:
            del inner[key]
        elif how == 1 and isinstance(inner, list):
            inner.append(inner[key])
        elif how == 1:
            inner[draw(st.text(max_size=3))] = inner[key]
        else:
            inner[key] = mutate(draw, value[key])
        return inner
    return draw(st.one_of(numbers, values) if type(value) is int else values)


@st.composite
def hostile(draw: st.DrawFn) -> tuple[str, State]:
    """A place and a state near it; sums fit, or bytes were changed under them."""
    place = draw(st.sampled_from(sorted(states())))
    state = copy.deepcopy(states()[place])
    for _ in range(draw(st.integers(1, 3))):
        key = draw(st.sampled_from(["stream", *sorted(state["lane"])]))
        holder = state if key == "stream" else state["lane"]
        if draw(st.integers(0, 3)):
            try:
                value = mutate(draw, json.loads(holder[key]))
                holder[key] = sealed(value) if isinstance(value, dict) else canonical(value)
            except (ValueError, RecursionError):  # changed before, and no JSON any more
                pass
        else:
            data = bytearray(holder[key])
            at = draw(st.integers(0, max(0, len(data) - 1)))
            data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
            holder[key] = bytes(data)
    if not draw(st.integers(0, 9)):
        state["lane"][draw(st.sampled_from(["00001", "00009", 1, "x"]))] = draw(st.one_of(values, st.binary()))
    return place, state


def refusal_of(stream: RankStream, state: State) -> str | None:
    try:
        stream.load_state_dict(state)
    except StateError as error:
        return str(error)
    return None


@given(hostile())
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
def test_any_state_is_loaded_as_it_stands_or_refused_with_the_way_out(example: tuple[str, State]) -> None:
    place, state = example
    stream = streams()[place]
    if (refusal := refusal_of(stream, state)) is not None:
        assert WAY_OUT.search(refusal), refusal
        refusal.encode()
        return
    assert stream.state_dict() == state
    if max(json.loads(lane)["delivered"] for lane in state["lane"].values()) > 1000:
        return  # it would be read again, and then refused
    try:
        next(iter(stream))
    except ZephonError:
        pass
    finally:
        stream.close()
