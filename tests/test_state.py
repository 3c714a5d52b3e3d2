"""The checkpoint's schema: the same bytes both ways, small, and refused by name when anything is wrong."""

from __future__ import annotations

import hashlib
import json
import pickle
from array import array
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.strategies import documents, tokens_of
from torchtitan_zephon import RecipeChangedError, StateError
from torchtitan_zephon.bad_records import Counted
from torchtitan_zephon.ops.carried import to_plain
from torchtitan_zephon.plan.segments import SourcePlace
from torchtitan_zephon.records import Documents
from torchtitan_zephon.state import (
    FORMAT,
    NO_DIGEST,
    LaneState,
    SegmentStart,
    StreamState,
    check_recipe,
    decode_lane,
    decode_stream,
    encode_lane,
    encode_stream,
    recipe_hash,
)

LARGE = st.integers(0, 2**62)
NAMES = ("news", "wiki")
hexes = st.integers(0, 2**256 - 1).map(lambda n: f"{n:064x}")

recipes = st.dictionaries(
    st.text("abz_", min_size=1, max_size=6),
    st.recursive(
        st.one_of(st.integers(-(2**60), 2**60), st.booleans(), st.text(max_size=8), st.floats(0, 1), st.none()),
        lambda inner: st.dictionaries(st.text("ab.東", min_size=1, max_size=4), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=5,
)


@st.composite
def lane_states(draw: st.DrawFn) -> LaneState:
    names = sorted(draw(st.sets(st.text("ab.東", min_size=1, max_size=4), min_size=1, max_size=5)))
    digests = st.one_of(st.just(""), st.integers(0, 2**64 - 1).map(lambda n: f"{n:016x}"))
    places = {name: SourcePlace(*(draw(LARGE) for _ in SourcePlace._fields)) for name in names}
    carries = draw(recipes)
    if held := [d for d in draw(documents(9, most=4)) if d.ids]:
        carries["pack"] = to_plain(tokens_of(held), ["x", "y", "z"])
    return LaneState(
        draw(st.integers(0, 65535)),
        SegmentStart(draw(LARGE), places, carries, draw(hexes)),
        draw(LARGE),
        draw(LARGE),
        draw(hexes),
        {name: draw(digests) for name in names},
    )


@given(lane_states())
def test_a_lane_state_comes_back_and_gives_the_same_bytes(state: LaneState) -> None:
    encoded, names = encode_lane(state), set(state.source_digests)
    decoded = decode_lane(encoded, state.lane, names)
    assert decoded == state
    assert all(type(place) is SourcePlace for place in decoded.start.sources.values())
    assert encode_lane(decoded) == encoded
    assert encode_lane(decode_lane(bytearray(encoded), state.lane, names)) == encoded


@given(lane_states())
def test_sources_come_back_in_the_order_of_their_names(state: LaneState) -> None:
    """A lane counts its sources in that order."""
    backwards = dict(reversed(state.start.sources.items()))
    encoded = encode_lane(replace(state, start=replace(state.start, sources=backwards)))
    assert encoded == encode_lane(state)
    assert list(decode_lane(encoded, state.lane, set(backwards)).start.sources) == sorted(backwards)


stream_states = st.builds(
    StreamState,
    recipe=recipes,
    tokens_per_mib=st.one_of(st.none(), st.dictionaries(st.text("ab.東", max_size=4), LARGE, max_size=4)),
    global_batch_size=LARGE,
    step=LARGE,
    first_step=LARGE,
    lane_sequences=LARGE,
    pass_sequences=st.one_of(st.none(), st.lists(LARGE, max_size=4).map(tuple)),
)


@given(stream_states)
def test_a_stream_state_comes_back_and_gives_the_same_bytes(state: StreamState) -> None:
    encoded = encode_stream(state)
    assert decode_stream(encoded) == state
    assert encode_stream(decode_stream(encoded)) == encoded


def test_the_bytes_are_canonical_json_that_a_person_can_read() -> None:
    for data in (encode_lane(LANE), encode_stream(STREAM)):
        value = json.loads(data)
        assert value["format"] == FORMAT
        assert data == json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert "東京" in encode_stream(STREAM).decode()


LANE = LaneState(
    7,
    SegmentStart(
        3,
        {"news": SourcePlace(4, 0, 900, 1000, 850, 90, 100, 120), "wiki": SourcePlace(5, 2, 2100, 2000)},
        {"pack": to_plain(tokens_of([]), NAMES)},
        "1" * 64,
    ),
    12,
    345,
    "2" * 64,
    {"news": "00112233aabbccdd", "wiki": ""},
)
STREAM = StreamState(
    {"lanes": 8, "sources": {"東京": {"weight": 0.5}}}, "hf", {"東京": 300_000}, 64, 99, 1000, 792, None
)


def decode(kind: str, data: object) -> object:
    return decode_lane(data, 7, NAMES) if kind == "lane" else decode_stream(data)


VALUES: dict[str, dict[str, Any]] = {
    "lane": json.loads(encode_lane(LANE)),
    "stream": json.loads(encode_stream(STREAM)),
}
WHERE = {"lane": "the state of lane 7", "stream": "the loader state"}
FIELDS = [
    *((kind, field) for kind, value in VALUES.items() for field in sorted(value)),
    *(("lane", f"start.{field}") for field in sorted(VALUES["lane"]["start"])),
]


def at(value: dict[str, Any], field: str) -> Any:
    """The value of ``field``, such as "start.segment"."""
    outer, _, inner = field.partition(".")
    return at(value[outer], inner) if inner else value[outer]


def with_field(value: dict[str, Any], field: str, new: Any) -> dict[str, Any]:
    """``value`` with another value of ``field``."""
    outer, _, inner = field.partition(".")
    return {**value, outer: with_field(value[outer], inner, new) if inner else new}


def without(value: dict[str, Any], field: str) -> dict[str, Any]:
    """``value`` without ``field``."""
    outer, _, inner = field.partition(".")
    if inner:
        return {**value, outer: without(value[outer], inner)}
    return {name: v for name, v in value.items() if name != outer}


def sealed(kind: str, value: dict[str, Any]) -> bytes:
    """``value`` with a check sum that fits, so that only the schema can object."""
    body = {name: v for name, v in value.items() if name != "check"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    check = {"check": hashlib.blake2b(text.encode(), digest_size=8).hexdigest()} if "check" in value else {}
    return json.dumps({**body, **check}, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.parametrize("kind", VALUES)
def test_the_helper_seals_as_the_code_does(kind: str) -> None:
    assert sealed(kind, VALUES[kind]) == {"lane": encode_lane(LANE), "stream": encode_stream(STREAM)}[kind]


@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_a_missing_field_is_refused_by_name(kind: str, field: str) -> None:
    with pytest.raises(StateError, match=rf"{WHERE[kind]} .*damaged: field '{field}' is missing"):
        decode(kind, sealed(kind, without(VALUES[kind], field)))


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        *((kind, "extra") for kind in VALUES),
        *(("stream", later) for later in ("line", "skipped")),
        *(("lane", f"start.{later}") for later in ("extra", "recipe")),
    ],
)
def test_an_extra_field_and_one_of_a_later_version_is_refused_by_name(kind: str, field: str) -> None:
    with pytest.raises(StateError, match=f"unknown field '{field}'"):
        decode(kind, sealed(kind, with_field(VALUES[kind], field, 1)))


WRONG: dict[type, list[Any]] = {
    int: ["1", None, 1.5, [1]],
    str: [1, None, ["a"]],
    list: ["a", 1, None, {}],
    dict: ["a", 1, None, []],
}


@pytest.mark.parametrize(
    ("kind", "field", "wrong"),
    [
        (kind, field, wrong)
        for kind, field in FIELDS
        if field not in ("tokens_per_mib", "pass_sequences")
        for wrong in WRONG[type(at(VALUES[kind], field))]
    ],
)
def test_a_field_of_the_wrong_type_is_refused_by_name_and_type(kind: str, field: str, wrong: Any) -> None:
    value = with_field(VALUES[kind], field, wrong)
    data = sealed(kind, value) if field != "check" else json.dumps(value).encode()
    with pytest.raises(StateError, match=rf"field '{field}' is a {type(wrong).__name__}, not"):
        decode(kind, data)


@pytest.mark.parametrize(
    ("kind", "field", "wrong"),
    [
        ("lane", "start.sources", {"news": [0] * 8, "wiki": ["a"] * 8}),
        ("lane", "start.sources", {"news": [0] * 8, "wiki": [*[0] * 7, None]}),
        ("lane", "start.sources", {"news": [0] * 8, "wiki": [*[0] * 7, 1.5]}),
        ("lane", "start.sources", {"news": [0] * 8, "wiki": [*[0] * 7, True]}),
        ("lane", "start.sources", {"news": [0] * 8, "wiki": [*[0] * 7, -1]}),
        ("lane", "start.sources", {"news": [0] * 8, "wiki": [0] * 7}),
        ("lane", "start.sources", {"news": [0] * 8, "wiki": [0] * 9}),
        ("lane", "start.sources", {"news": [0] * 8, "wiki": 0}),
        ("lane", "start.sources", {"news": [0] * 8, "wiki": {}}),
        ("lane", "source_digests", {"news": 1, "wiki": 2}),
        ("lane", "delivered", True),
        ("lane", "delivered", -1),
        ("lane", "format", 0),
        ("stream", "tokens_per_mib", "abc"),
        ("stream", "tokens_per_mib", [1, 2]),
        ("stream", "tokens_per_mib", {"東京": "a"}),
        ("stream", "pass_sequences", [-1]),
        ("stream", "first_step", -1),
        ("stream", "first_step", True),
        ("stream", "lane_sequences", -1),
        ("stream", "lane_sequences", True),
    ],
)
def test_a_value_inside_a_field_that_cannot_be_is_refused_by_name(kind: str, field: str, wrong: Any) -> None:
    with pytest.raises(StateError, match=field):
        decode(kind, sealed(kind, with_field(VALUES[kind], field, wrong)))


@pytest.mark.parametrize(
    ("kind", "field", "wrong"),
    [
        *(("lane", field, wrong) for field in ("delivered", "start.segment") for wrong in (2**63, 10**400, 1e300)),
        *(("lane", "digest", wrong) for wrong in ("", "1" * 63, "G" * 64, "A" * 64, "1" * 62 + "\n1", "\uff11" * 64)),
        *(("lane", "source_digests", {"news": wrong, "wiki": ""}) for wrong in ("1", "z" * 16, "0" * 64)),
        ("lane", "start.digest", "1" * 128),
        ("lane", "start.sources", {"news": [2**63, *[0] * 7], "wiki": [0] * 8}),
        ("lane", "start.sources", {"news": [[2], *[0] * 7], "wiki": [0] * 8}),
        ("stream", "recipe_sha256", "x" * 64),
        ("stream", "tokens_per_mib", {"東京": 2**64}),
        ("stream", "pass_sequences", [True]),
    ],
)
def test_a_number_or_digest_that_cannot_be_is_refused_by_name(kind: str, field: str, wrong: Any) -> None:
    with pytest.raises(StateError, match=f"field '{field}' is a .*, not a ") as refusal:
        decode(kind, sealed(kind, with_field(VALUES[kind], field, wrong)))
    assert len(str(refusal.value)) < 500


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize(
    "content",
    [
        b"[" * 10_000,
        b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
        b'{"format":5,"step":' + b"9" * 5000 + b"}",
        b'{"format":NaN}',
        b'{"format":-Infinity}',
        b'{"format":1e999}',
        b'{"format":"\\ud800"}',
        b'{"\\udfff":1}',
        b'{"format":"\xed\xa0\x80"}',
        b"\xef\xbb\xbf{}",
        '{"format":5}'.encode("utf-16"),
        '{"format":5}'.encode("utf-32-le"),
        json.dumps(deep(100)).encode(),
        json.dumps(deep(16)).encode(),
    ],
    ids=range(14),
)
def test_json_that_no_state_is_written_in_is_refused_and_shown(kind: str, content: bytes) -> None:
    with pytest.raises(StateError, match=rf"{WHERE[kind]} .*its {len(content)} bytes begin b") as refusal:
        decode(kind, content)
    assert len(str(refusal.value)) < 500
    str(refusal.value).encode()


@pytest.mark.parametrize("kind", VALUES)
def test_another_spelling_of_the_same_values_is_refused(kind: str) -> None:
    data = sealed(kind, VALUES[kind])
    spelt = [
        data + b"\n",
        b" " + data,
        json.dumps(VALUES[kind]).encode(),
        data.replace(b'"format":5', b'"format":5,"format":5'),
        data.replace(b'"format":5', b'"format":4,"format":5'),
        data.replace(b'"format":5', b'"f\\u006frmat":5'),
    ]
    for other in spelt:
        with pytest.raises(StateError, match=rf"{WHERE[kind]} .*not in the one form in which it is written"):
            decode(kind, other)


@pytest.mark.parametrize("kind", VALUES)
def test_no_other_container_of_bytes_is_taken(kind: str) -> None:
    data = sealed(kind, VALUES[kind])
    others = [memoryview(data), np.frombuffer(data, np.uint8), list(data), data.decode(), array("B", data), (data,)]
    for other in others:
        with pytest.raises(StateError, match=rf"{WHERE[kind]} is a {type(other).__name__}, not bytes"):
            decode(kind, other)


@pytest.mark.parametrize("field", ["tokens_per_mib", "pass_sequences"])
def test_numbers_of_all_sources_or_lanes_that_are_one_number_are_refused_by_name(field: str) -> None:
    with pytest.raises(StateError, match=field):
        decode_stream(sealed("stream", {**VALUES["stream"], field: 7}))


@pytest.mark.parametrize("kind", VALUES)
def test_every_flipped_bit_is_refused(kind: str) -> None:
    data = sealed(kind, VALUES[kind])
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        with pytest.raises(StateError, match=WHERE[kind]):
            decode(kind, bytes(flipped))


@pytest.mark.parametrize("kind", VALUES)
def test_every_truncation_is_refused(kind: str) -> None:
    data = sealed(kind, VALUES[kind])
    for length in range(len(data)):
        with pytest.raises(StateError, match=WHERE[kind]):
            decode(kind, data[:length])


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("data", [pickle.dumps({"step": 1}), b"", b"[]", b"null", b"12", b"\xff\xfe"], ids=repr)
def test_bytes_that_are_not_ours_are_refused_and_shown(kind: str, data: bytes) -> None:
    with pytest.raises(
        StateError,
        match=rf"{WHERE[kind]} .*it is not JSON, or none that a state is written in \(its {len(data)} bytes begin b",
    ):
        decode(kind, data)


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("data", [None, 7, "text", {"a": 1}, [1]], ids=repr)
def test_a_value_that_is_not_bytes_is_refused_by_type(kind: str, data: object) -> None:
    with pytest.raises(StateError, match=rf"{WHERE[kind]} is a {type(data).__name__}, not bytes"):
        decode(kind, data)


def test_nothing_is_unpickled() -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return pytest.fail, ("unpickled",)

    for kind in VALUES:
        with pytest.raises(StateError):
            decode(kind, pickle.dumps(Trap()))


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("other", [1, 2, 3, 4, 6, 2**40])
def test_another_format_is_refused_with_the_way_out_even_if_its_fields_are_unknown(kind: str, other: int) -> None:
    assert FORMAT == 5
    refusal = rf"^{WHERE[kind]} has format {other}; .* reads format 5\. Install the version that wrote it\."
    for value in ({**VALUES[kind], "format": other}, {"format": other, "new": 1}):
        with pytest.raises(StateError, match=refusal):
            decode(kind, sealed(kind, value))


@pytest.mark.parametrize(
    ("number", "later"), [(1, ("first_step", "lane_sequences")), (2, ("tokenizer_backend",)), (3, ("pass_sequences",))]
)
def test_an_older_stream_state_is_refused_as_that_and_not_as_damaged(number: int, later: tuple[str, ...]) -> None:
    old = {name: v for name, v in VALUES["stream"].items() if name not in later}
    with pytest.raises(StateError, match=f"has format {number}") as refusal:
        decode_stream(sealed("stream", {**old, "tokens_per_mib": [300_000], "format": number}))
    assert "damaged" not in str(refusal.value)


FORMAT_4_LANE = {
    "carry": {"ids": "", "offsets": [0], "origin": []},
    "chunks": [0, 2],
    "delivered": 12,
    "digest": "2" * 64,
    "format": 4,
    "lane": 7,
    "runs": [4, 5],
    "scheduled_tokens": [1000, 2000],
    "segment": 3,
    "segment_digest": "1" * 64,
    "sequences": 345,
    "source_digests": ["00112233aabbccdd", ""],
    "tokens": [900, 2100],
}
"""As the version before has written a lane, without the check sum."""


def test_a_lane_of_format_4_is_refused_by_its_format_and_the_one_that_is_read() -> None:
    with pytest.raises(StateError) as refusal:
        decode("lane", sealed("lane", {**FORMAT_4_LANE, "check": ""}))
    assert str(refusal.value) == (
        "the state of lane 7 has format 4; this version of torchtitan_zephon reads format 5. "
        "Install the version that wrote it."
    )


def test_a_state_of_another_lane_or_of_other_sources_is_refused_by_both_names() -> None:
    with pytest.raises(StateError, match="the state of lane 8 says it belongs to lane 7"):
        decode_lane(encode_lane(LANE), 8, NAMES)
    for other in (("books", *NAMES), ("books", "wiki"), ("wiki",)):
        named = ", ".join(map(repr, other))
        with pytest.raises(StateError, match=f"lane 7 is for the sources 'news', 'wiki', and the recipe's are {named}"):
            decode_lane(encode_lane(LANE), 7, other)
    lacking = replace(LANE, source_digests={"news": ""})
    with pytest.raises(StateError, match="lane 7 is for the sources 'news', and the recipe's are 'news', 'wiki'"):
        decode_lane(encode_lane(lacking), 7, NAMES)


def test_every_refusal_names_a_way_out() -> None:
    for data in (b"", sealed("lane", {**VALUES["lane"], "extra": 1})):
        with pytest.raises(StateError, match=r"--checkpoint\.load_step N.*--checkpoint\.exclude_from_loading"):
            decode_lane(data, 7, NAMES)


@given(st.integers(0, 8192), st.integers(1, 4), st.integers(0, 2**32))
@settings(max_examples=30)
def test_a_lanes_state_is_under_2_kib_and_4_bytes_a_carried_token(tokens: int, pieces: int, seed: int) -> None:
    ids = (np.arange(tokens, dtype=np.int64) * 2654435761 + seed) % 150_000
    bounds = np.linspace(0, tokens, pieces + 1).astype(np.int64)
    origin = np.array([[n % 2, 2**40, 2**40, 0] for n in range(pieces)], np.int64)
    carry = Documents({}, {"ids": ids.astype(np.int32)}, bounds, origin)
    places = dict.fromkeys(NAMES, SourcePlace(*[2**50] * len(SourcePlace._fields)))
    carries = {"pack": to_plain(carry, NAMES)}
    start = SegmentStart(2**40, places, carries, NO_DIGEST)
    state = LaneState(65_535, start, 2**30, 2**50, NO_DIGEST, dict.fromkeys(NAMES, "f" * 16))
    assert len(encode_lane(state)) < 2048 + 4 * tokens


def test_equal_recipes_are_accepted_whatever_the_order_of_their_fields() -> None:
    check_recipe({"a": 1, "b": {"c": (1, 2)}}, {"b": {"c": [1, 2]}, "a": 1})
    assert recipe_hash({"a": 1, "b": 2}) == recipe_hash({"b": 2, "a": 1})


def test_changed_recipes_are_refused_field_by_field() -> None:
    saved = {"lanes": 8, "pack": "wrap", "sources": {"wiki": {"weight": 0.5, "field": "text"}}, "old": None}
    current = {"lanes": 16, "pack": "wrap", "sources": {"wiki": {"weight": 0.7, "field": "text"}, "news": {}}}
    with pytest.raises(RecipeChangedError) as refusal:
        check_recipe(saved, current)
    assert refusal.value.changes == [
        "lanes: 8 -> 16",
        "old: null -> (absent)",
        "sources.news: (absent) -> {}",
        "sources.wiki.weight: 50 % of tokens -> 70 %",
    ]
    assert "\n    lanes: 8 -> 16\n" in str(refusal.value)


def test_recipes_that_differ_in_how_names_with_dots_are_nested_are_not_the_same() -> None:
    with pytest.raises(RecipeChangedError, match="recipe_sha256: "):
        check_recipe({"a": {"b.c": 1}}, {"a.b": {"c": 1}})


def test_a_long_list_of_changes_is_cut_in_the_text_only() -> None:
    with pytest.raises(RecipeChangedError, match="and 8 more") as refusal:
        check_recipe({f"f{n}": 0 for n in range(20)}, {f"f{n}": 1 for n in range(20)})
    assert len(refusal.value.changes) == 20
    assert str(refusal.value).count(": 0 -> 1") == 12


RECORDS = {"news": {"read": 1000, "refused": {"line": 3}}, "wiki": {"read": 0, "refused": {}}}


def test_counts_of_bad_records_come_back_and_are_absent_where_there_are_none() -> None:
    assert "records" not in VALUES["lane"]["start"]
    state = decode_lane(sealed("lane", with_field(VALUES["lane"], "start.records", RECORDS)), 7, NAMES)
    assert state.start.records == {"news": Counted(1000, {"line": 3}), "wiki": Counted()}
    assert json.loads(encode_lane(state))["start"]["records"] == RECORDS


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        [],
        {"news": RECORDS["news"], "wiki": {"read": 1}},
        {"news": RECORDS["news"], "wiki": {"read": -1, "refused": {}}},
        {"news": RECORDS["news"], "wiki": {"read": 1, "refused": {"line": "3"}}},
        {"news": RECORDS["news"], "wiki": {"read": 1, "refused": [], "more": 1}},
    ],
    ids=str,
)
def test_counts_of_bad_records_that_cannot_be_are_refused_by_name(wrong: Any) -> None:
    with pytest.raises(StateError, match=r"field 'start\.records' is a \w+, not a table of records read and refused"):
        decode_lane(sealed("lane", with_field(VALUES["lane"], "start.records", wrong)), 7, NAMES)


def test_counts_of_bad_records_of_other_sources_are_refused() -> None:
    data = sealed("lane", with_field(VALUES["lane"], "start.records", {"news": RECORDS["news"]}))
    with pytest.raises(StateError, match=r"is for the sources 'news', and the recipe's are 'news', 'wiki'"):
        decode_lane(data, 7, NAMES)
