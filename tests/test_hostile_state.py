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
from torchtitan_zephon.plan.segments import SourcePlace

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
    """``state`` with other fields of a lane; ``start``: those of its segment's start."""
    key = f"{lane:05d}"
    value = json.loads(state["lane"][key])
    start = {**value["start"], **changes.pop("start", {})}
    return {**state, "lane": {**state["lane"], key: sealed({**value, "start": start, **changes})}}


def places(news: dict[str, int], wiki: dict[str, int] | None = None, place: str = "later") -> dict[str, Any]:
    """The start of lane 1 at ``place`` with other numbers of its sources."""
    sources = json.loads(states()[place]["lane"]["00001"])["start"]["sources"]
    changes = {"news": news, "wiki": wiki or {}}
    return {"sources": {n: list(SourcePlace(*v)._replace(**changes[n])) for n, v in sources.items()}}


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


NOWHERE = dict.fromkeys(SourcePlace._fields, 0)
LATER_LANE: list[tuple[Callable[[], dict[str, Any]], str]] = [
    (lambda: {"delivered": 61}, "delivered = 61 is more than sequences = 60"),
    (lambda: {"delivered": 2**62}, "is more than sequences = 60"),
    (lambda: {"sequences": 2**62}, "lane 1 stands at sequence 4611686018427387904, but step 30 ends at 60"),
    (lambda: {"start": {"segment": 0}}, "segment 0 does not begin at the beginning"),
    (lambda: {"start": places(NOWHERE, NOWHERE)}, "begins where no chunk was read"),
    (lambda: {"start": places(NOWHERE | {"tokens": 1})}, "read of a source that no chunk was read of"),
    (lambda: {"start": places(NOWHERE | {"last_bytes": 1})}, "read of a source that no chunk was read of"),
    (lambda: {"start": places(NOWHERE | {"last_scheduled": 1})}, "read of a source that no chunk was read of"),
    (lambda: {"start": places({"last_bytes": 5, "last_scheduled": 0})}, "last_bytes were planned and no token"),
    (lambda: {"start": {"segment": 1, **places({"tokens": 1})}}, "in segment 1 there is no segment before the last"),
    (lambda: {"start": places({"chunks": 2**62})}, "its recipe's plan has no such runs and chunks"),
    (lambda: {"start": places({"runs": 3, "chunks": 9})}, "its recipe's plan has no such runs and chunks"),
    (lambda: {"start": {"digest": "0" * 64}}, "segment_digest and the sequences before the segment disagree"),
    (lambda: {"delivered": 60}, "segment_digest and the sequences before the segment disagree"),
    (lambda: {"digest": "0" * 64, "delivered": 0}, "digest and delivered disagree"),
    (lambda: {"source_digests": {"news": "0" * 16, "wiki": ""}, "delivered": 0}, "disagree"),
    (lambda: {"start": {"sources": {}}}, "is for the sources none, and the recipe's are 'news', 'wiki'"),
    (lambda: {"source_digests": {"news": ""}}, "is for the sources 'news', and the recipe's are 'news', 'wiki'"),
    (lambda: {"start": {"carries": {"map": 5}}}, "its carry cannot be one of this recipe"),
    (lambda: {"start": {"carries": {"pack": None}}}, "its carry cannot be one of this recipe"),
]


@pytest.mark.parametrize(("changes", "says_it"), LATER_LANE, ids=range(len(LATER_LANE)))
def test_a_lane_whose_numbers_disagree_is_refused_by_them(changes: Callable[[], dict[str, Any]], says_it: str) -> None:
    message = refused(endless(), lane_with(states()["later"], **changes()))
    assert says_it in message
    assert "lane 1" in message


def test_tokens_of_a_source_that_was_not_read_are_refused() -> None:
    start = places({}, {"last_tokens": 5}, "start")
    assert "segment 0 does not begin at the beginning" in refused(endless(), lane_with(states()["start"], start=start))


def carried(ids: list[int], origin: list[int], sources: list[str]) -> dict[str, Any]:
    """The carry of one document, whole or the rest of one."""
    raw = base64.b64encode(b"".join(i.to_bytes(3, "little") for i in ids)).decode()
    return {"pack": {"ids": raw, "offsets": [0, len(ids)], "sources": sources, "origin": [origin]}}


@pytest.mark.parametrize(
    "carries",
    [
        carried([5] * 40, [0, 0, 0, 0], ["news"]),
        carried([5, 2**24 - 1], [0, 0, 0, 0], ["news"]),
        carried([5, 5], [0, 0, 0, 0], ["books"]),
        carried([5, 5], [1, 0, 0, 0], ["news"]),
        carried([5, 5], [0, 2, 0, 0], ["wiki"]),
        carried([5, 5], [0, 2**62, 0, 0], ["news"]),
        carried([], [0, 0, 0, 0], ["news"]),
    ],
    ids=["more than a row", "no token", "no source", "no such one", "no shard", "large", "empty"],
)
def test_a_carry_that_is_none_of_this_recipe_is_refused(carries: dict[str, Any]) -> None:
    for place in ("later", "row"):
        message = refused(streams()[place], lane_with(states()[place], start={"carries": carries}))
        assert "its carry cannot be one of this recipe" in message


def test_a_carry_where_none_can_be_is_refused() -> None:
    some = {"carries": carried([5, 5], [0, 0, 0, 0], ["news"])}
    assert "its carry cannot be" in refused(streams()["whole"], lane_with(states()["whole"], start=some))
    assert "does not begin at the beginning" in refused(endless(), lane_with(states()["start"], start=some))


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
        ({"tokens_per_mib": {}}, "is not one number above 0 for each source"),
        ({"tokens_per_mib": {"news": 1, "wiki": 2, "books": 3}}, "is not one number above 0 for each source"),
        ({"tokens_per_mib": {"news": 1, "books": 2}}, "is not one number above 0 for each source"),
        ({"tokens_per_mib": {"news": 0, "wiki": 1}}, "is not one number above 0 for each source"),
        ({"tokens_per_mib": [1, 2]}, "field 'tokens_per_mib' is a list, not a table of counts, or null"),
        ({"pass_sequences": [1, 2, 3, 4]}, "pass_sequences is not one number for each lane of a stream that ends"),
        ({"tokenizer_backend": "x" * 9999}, "which this version does not have"),
        ({"recipe": {}}, "made with another recipe"),
        ({"recipe": {"sources": None}}, "made with another recipe"),
        ({"recipe": []}, "field 'recipe' is a list, not a table"),
    ],
    ids=range(18),
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
    start = {"segment": 1, "digest": "1" * 64, **places({"runs": 900}, place="pass")}
    state = lane_with(states()["pass"], delivered=1, start=start, source_digests={"news": "", "wiki": ""})
    stream = pipeline(repeat=False).for_rank(0, 1)
    stream.load_state_dict(state)
    with pytest.raises(StateError) as refusal:
        next(iter(stream))
    says(refusal, "the state of lane 1", "its recipe's plan has no such runs and chunks", "--checkpoint.load_step")


def test_numbers_that_are_only_large_do_not_end_in_another_error() -> None:
    state = stream_with(states()["later"], tokens_per_mib={"news": 2**62, "wiki": 2**62}, first_step=2**63 - 1)
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
