"""The lane machine: whatever is called in whatever order, and killed whenever, the same sequences and states.

There is no file, tokenizer or thread here: a chunk's documents are made from its numbers.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter, deque
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.strategies import Document, tokens_of
from torchtitan_zephon import SourceError
from torchtitan_zephon.errors import ReplayError
from torchtitan_zephon.lane.machine import Lane, Trip
from torchtitan_zephon.lane.stages import LaneProgram, Link, sequence_hash
from torchtitan_zephon.ops.carried import from_plain, to_plain
from torchtitan_zephon.ops.pack import Packing
from torchtitan_zephon.ops.render import padding_rows
from torchtitan_zephon.ops.shuffle import ShuffleBuffer
from torchtitan_zephon.plan import keyed
from torchtitan_zephon.plan.chunking import Chunk, ChunkTable, Pieces, cut
from torchtitan_zephon.plan.cursor import Dealt, Endless, LaneRuns, order_keys
from torchtitan_zephon.plan.mixture import Begin, Mixture
from torchtitan_zephon.plan.segments import LanePlan
from torchtitan_zephon.records import IGNORE_LABEL, Documents, Packet, Sequence
from torchtitan_zephon.state import LaneState, decode_lane, encode_lane

NAMES = ("small", "wiki")
PADDING = 3
LANES = 2


class Setting(NamedTuple):
    """What the properties vary."""

    pack: Any = "wrap"
    repeat: bool = True
    buffer: int = 4
    flush: int = 6
    seq_len: int = 8
    lane: int = 0
    measured: bool = True
    links: bool = False


settings_of_a_lane = st.builds(
    Setting,
    pack=st.sampled_from(["wrap", "first_fit", "across"]),
    repeat=st.booleans(),
    buffer=st.sampled_from([0, 1, 5, 40]),
    flush=st.sampled_from([1, 6, 25]),
    seq_len=st.sampled_from([4, 9]),
    lane=st.integers(0, LANES - 1),
    measured=st.booleans(),
    links=st.booleans(),
)


def program_of(setting: Setting) -> LaneProgram:
    """Two sources: one JSONL-like of a few chunks, one Parquet-like with runs of neighbouring chunks."""
    small = cut(0, _pieces([9000], [9000], True), 4096, LANES)
    wiki = cut(1, _pieces([200_000, 9000], [70, 9], False), 4096, 1)
    assert wiki.run_chunks > 1
    runs = tuple(_runs(s, table, setting) for s, table in enumerate((small, wiki)))
    plan = LanePlan(
        runs=LaneRuns(setting.lane, (small, wiki), runs, Begin(setting.lane % 2, 3, 8)),
        mixture=Mixture((1, 3), (10 * setting.lane, 5)),
        tokens_per_mib=(2**13, 2**13),  # a chunk has about 30 tokens
        segment_tokens=setting.flush * setting.seq_len,
        measured=setting.measured,
    )
    across = setting.pack == "across"
    packing = Packing(
        algorithm="wrap" if across else setting.pack,
        label_shift="sequence" if across else "document",
        seq_len=setting.seq_len,
        padding_id=PADDING,
    )
    return LaneProgram(
        plan=plan,
        source_names=NAMES,
        packing=packing,
        shuffle_buffer_sequences=setting.buffer,
        shuffle_seed=11,
        links=LINKS if setting.links else (),
    )


def _runs(s: int, table: ChunkTable, setting: Setting) -> Endless | Dealt:
    first = (setting.lane - s) % LANES
    if setting.repeat:
        return Endless(first, LANES, table.num_runs, order_keys(1, NAMES)[s])
    return Dealt(np.arange(first, table.num_runs, LANES)[::-1])


def _pieces(sizes: list[int], units: list[int], runs_of_one: bool) -> Pieces:
    return Pieces(np.array(sizes, np.int64), np.array(units, np.int64), runs_of_one)


def work(chunk: Chunk) -> Packet:
    """The fake work function: up to six documents of 0 to 19 tokens, made from the chunk's numbers."""
    k = keyed.key("work", chunk.source, chunk.epoch, chunk.number, chunk.start)
    items = []
    for d in range(keyed.below(k, 0, 7)):
        ids = [keyed.below(k, 100 * d + i, 50_000) for i in range(keyed.below(k, 7 + d, 20))]
        items.append(Document(ids, (chunk.source, chunk.piece, d, 0)))
    return Packet.of(tokens_of(items))


class Swap:
    """A stage that decides: holds back two documents, and lets the shorter one go first. It carries the longer."""

    def __init__(self, carry: Any) -> None:
        self.held = Documents.empty() if carry is None else from_plain(carry, NAMES)

    def add(self, documents: Documents) -> Documents:
        self.held = Documents.join(self.held, documents)
        lengths = np.diff(self.held.offsets)
        last = np.argsort(-lengths, kind="stable")[:2]
        return self._without(last)

    def flush(self) -> Documents:
        return self._without(np.argsort(-np.diff(self.held.offsets), kind="stable")[:1])

    def finish(self) -> Documents:
        return self._without(np.zeros(0, np.int64))

    def carry(self) -> Any:
        return to_plain(self.held, NAMES) if len(self.held) else None

    def _without(self, kept: np.ndarray) -> Documents:
        out = self.held.take(np.setdiff1d(np.arange(len(self.held)), kept))
        self.held = self.held.take(np.sort(kept))
        return out


def double(documents: Documents) -> Documents:
    """A pure function behind it: each token becomes another, and every third document goes."""
    kept = documents.take(np.flatnonzero(np.arange(len(documents)) % 3 < 2))
    return replace(kept, tokens={"ids": (kept.ids * 2 + 1).astype(np.int32)})


LINKS = (Link("swap", Swap, double), Link("again", Swap, double))


class Driver:
    """A lane with its outstanding work; ``take`` reads only as far as it must."""

    def __init__(self, setting: Setting, state: bytes | None = None, work: Any = work) -> None:
        saved = None if state is None else decode_lane(state, setting.lane, NAMES)
        self.lane, self.work, self.saved = Lane(program_of(setting), saved), work, saved
        self.outstanding: deque[Chunk] = deque()
        self.trips: deque[Trip] = deque()

    def plan(self) -> bool:
        chunk = self.lane.plan_chunk()
        if chunk is not None:
            self.outstanding.append(chunk)
        assert self.lane.pending == len(self.outstanding)
        return chunk is not None

    def arrive(self) -> None:
        self.lane.arrived(self.work(self.outstanding.popleft()))
        self._collect()

    def come_back(self) -> None:
        """Let the oldest packet of each link come back from its function."""
        oldest = {trip.link: trip for trip in reversed(self.trips)}
        for trip in oldest.values():
            self.trips.remove(trip)
            self.lane.returned(trip, self.lane.program.links[trip.link].function(trip.packet.documents))
            self._collect()

    def _collect(self) -> None:
        self.trips.extend(self.lane.trips)
        self.lane.trips.clear()

    def ready(self) -> bool:
        """Read on until a sequence can be taken; false at the end of a finite stream."""
        while not self.lane.ready and not self.lane.dry:
            if self.trips:
                self.come_back()
                continue
            if not self.outstanding:
                assert self.plan()
            self.arrive()
        return self.lane.ready > 0

    def take(self) -> Sequence:
        self.ready()
        return self.lane.take()

    def replay(self) -> None:
        """Take again what the saved state says was taken in its segment, and compare."""
        assert self.saved is not None
        for _ in range(self.saved.delivered):
            self.take()
        self.lane.check_replay(self.saved)


class Taken(NamedTuple):
    """After one ``take``: the sequence's hash and the encoded state."""

    sequence: bytes
    state: bytes


@functools.cache
def reference(setting: Setting, count: int = 150) -> tuple[bytes, list[Taken]]:
    """The state at the start, and the first ``count`` takes of a lane that is never ahead and never stopped."""
    driver = Driver(setting)
    start = encode_lane(driver.lane.state())
    taken = [Taken(sequence_hash(driver.take()), encode_lane(driver.lane.state())) for _ in range(count)]
    return start, taken


class LaneMachine(RuleBasedStateMachine):
    """Plans, arrivals, takes and kills in any order."""

    @initialize(setting=settings_of_a_lane)
    def start(self, setting: Setting) -> None:
        self.setting, self.driver, self.taken = setting, Driver(setting), 0
        self.first, self.expected = reference(setting)

    @rule(chunks=st.integers(1, 6))
    def plan_ahead(self, chunks: int) -> None:
        for _ in range(chunks):
            self.driver.plan()

    @precondition(lambda self: self.driver.outstanding)
    @rule(chunks=st.integers(1, 6))
    def let_arrive(self, chunks: int) -> None:
        for _ in range(min(chunks, len(self.driver.outstanding))):
            self.driver.arrive()

    @precondition(lambda self: self.driver.trips)
    @rule()
    def let_come_back(self) -> None:
        self.driver.come_back()

    @precondition(lambda self: self.taken < 140)
    @rule(count=st.integers(1, 10))
    def take(self, count: int) -> None:
        for _ in range(count):
            assert sequence_hash(self.driver.take()) == self.expected[self.taken].sequence
            self.taken += 1

    @rule()
    def kill_and_restore(self) -> None:
        self.driver = Driver(self.setting, encode_lane(self.driver.lane.state()))
        self.driver.replay()

    @invariant()
    def the_state_is_that_of_a_lane_that_was_never_ahead_or_stopped(self) -> None:
        expected = self.expected[self.taken - 1].state if self.taken else self.first
        assert encode_lane(self.driver.lane.state()) == expected


LaneMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
test_any_interleaving_and_any_kill_gives_the_same_sequences_and_states = LaneMachine.TestCase


@pytest.mark.parametrize("pack", ["wrap", "first_fit"])
def test_a_lane_killed_after_every_single_sequence_goes_on_the_same(pack: str) -> None:
    setting = Setting(pack=pack)
    start, expected = reference(setting)
    state = start
    for taken in expected[:60]:
        driver = Driver(setting, state)
        driver.replay()
        assert sequence_hash(driver.take()) == taken.sequence
        state = encode_lane(driver.lane.state())
        assert state == taken.state


def segments(setting: Setting, count: int = 150) -> list[tuple[LaneState, list[bytes]]]:
    """The state at each segment's start with the hashes of the segment's sequences; the last may be cut."""
    start, taken = reference(setting, count)
    found = [(decode_lane(start, setting.lane, NAMES), list[bytes]())]
    for sequence, data in taken:
        state = decode_lane(data, setting.lane, NAMES)
        begun = state.start.segment != found[-1][0].start.segment
        if not begun or state.delivered == 0:
            found[-1][1].append(sequence)
        if begun:  # by its first sequence, where the packet that ended the segment before gave none
            assert state.delivered <= 1
            found.append((replace(state, delivered=0, digest=state.start.digest), [sequence] * state.delivered))
    return found


def test_every_lane_and_segment_shuffles_with_a_key_of_its_own() -> None:
    with mock.patch("torchtitan_zephon.lane.stages.ShuffleBuffer", side_effect=ShuffleBuffer) as buffers:
        for lane in range(LANES):
            driver = Driver(Setting(lane=lane))
            for _ in range(60):
                driver.take()
    keys = [call.args[1] for call in buffers.call_args_list]
    assert len(keys) > 10
    assert len(set(keys)) == len(keys)


def test_a_segment_starts_with_the_tokens_read_before_it_source_by_source() -> None:
    read = [0, 0]
    driver = Driver(Setting(buffer=0, flush=6))
    state = driver.lane.state()
    for _ in range(60):
        driver.plan()
        source, tokens = driver.outstanding[0].source, len(work(driver.outstanding[0]).documents.ids)
        driver.arrive()
        read[source] += tokens
        while driver.lane.ready:
            driver.lane.take()
        before, state = state, driver.lane.state()
        if state.delivered == 0 and state.start.segment != before.start.segment:
            assert [place.all_tokens for place in state.start.sources.values()] == read
            driver = Driver(Setting(buffer=0, flush=6), encode_lane(state))
    assert state.start.segment > 3


@pytest.mark.parametrize("pack", ["wrap", "first_fit"])
def test_a_flush_empties_the_shuffle_buffer_and_changes_no_segments_content(pack: str) -> None:
    plain, mixed = (segments(Setting(pack=pack, buffer=buffer, flush=25)) for buffer in (0, 40))
    assert len(plain) == len(mixed) > 3
    for (a, in_order), (b, shuffled) in zip(plain[:-1], mixed[:-1], strict=True):
        assert a.start.sources == b.start.sources
        assert a.start.carries == b.start.carries
        assert Counter(in_order) == Counter(shuffled)
        assert in_order != shuffled


def test_wrap_carries_the_unfinished_row_across_a_flush_and_first_fit_nothing() -> None:
    carries = [state.start.carries for state, _ in segments(Setting(pack="wrap", flush=6))[1:]]
    carried = [len(from_plain(carry["pack"], NAMES).ids) for carry in carries if carry]
    assert carried
    assert all(n < 2 * 8 + 8 for n in carried)
    assert not any(state.start.carries for state, _ in segments(Setting(pack="first_fit", flush=6)))


def test_wrap_never_pads_in_mid_stream() -> None:
    driver = Driver(Setting(flush=1))
    assert all(driver.take().filled == 8 for _ in range(100))


@given(settings_of_a_lane)
@settings(max_examples=20)
def test_the_digest_is_a_chain_over_all_sequences_taken(setting: Setting) -> None:
    driver, digest = Driver(setting), bytes(32)
    for _ in range(60):
        rows, r = driver.take()
        columns = (rows.columns["input"][r], rows.columns["labels"][r], rows.columns["positions"][r])
        data = b"".join(column.astype("<i4").tobytes() for column in columns)
        digest = hashlib.sha256(digest + hashlib.sha256(data).digest()).digest()
        assert driver.lane.state().digest == digest.hex()


@pytest.mark.parametrize("pack", ["wrap", "first_fit"])
@pytest.mark.parametrize("buffer", [0, 5])
def test_finite_lanes_give_every_token_once_and_then_padding(pack: str, buffer: int) -> None:
    read: list[Documents] = []
    pairs: Counter[tuple[int, int]] = Counter()

    def reading(chunk: Chunk) -> Packet:
        packet = work(chunk)
        read.append(packet.documents)
        return packet

    for lane in range(LANES):
        driver = Driver(Setting(pack=pack, buffer=buffer, repeat=False, lane=lane), work=reading)
        while driver.ready():
            rows, r = sequence = driver.take()
            n = sequence.filled
            pairs.update(
                zip(rows.columns["input"][r][:n].tolist(), rows.columns["labels"][r][:n].tolist(), strict=True)
            )
            assert rows.columns["labels"][r][n:].tolist() == [IGNORE_LABEL] * (8 - n)
        assert driver.lane.balance.tokens_held == 0
        assert driver.lane.plan_chunk() is None
        assert sequence_hash(driver.take()) == sequence_hash(Sequence(padding_rows(1, PADDING, 8), 0))
    documents = [tokens.ids[a:b].tolist() for tokens in read for a, b in pairwise(tokens.offsets.tolist())]
    assert pairs == Counter(pair for ids in documents for pair in pairwise(ids))


def test_a_lane_without_any_chunk_is_dry_from_the_start() -> None:
    program = program_of(Setting(repeat=False))
    nothing = Dealt(np.zeros(0, np.int64))
    runs = replace(program.plan.runs, runs=(nothing, nothing))
    lane = Lane(replace(program, plan=replace(program.plan, runs=runs)))
    assert lane.dry
    assert lane.plan_chunk() is None
    assert lane.take().filled == 0
    assert lane.state().sequences == 1


def test_a_repeating_lane_without_a_usable_document_ends_with_an_error() -> None:
    driver = Driver(Setting(), work=lambda chunk: Packet.of(tokens_of([])))
    with pytest.raises(SourceError, match=r"lane 0 read \d+ chunks of 'small', 'wiki' and found no usable document"):
        driver.take()


class Nothing:
    """A stage that lets no document go."""

    def __init__(self, carry: Any) -> None:
        self.carried = carry

    def add(self, documents: Documents) -> Documents:
        return Documents.empty()

    def flush(self) -> Documents:
        return Documents.empty()

    def finish(self) -> Documents:
        return Documents.empty()

    def carry(self) -> Any:
        return self.carried


def test_a_repeating_lane_of_which_a_stage_lets_nothing_go_ends_with_an_error() -> None:
    with mock.patch(f"{__name__}.LINKS", (Link("nothing", Nothing, double),)):
        driver = Driver(Setting(links=True))
    with pytest.raises(SourceError, match=r"lane 0 read \d+ chunks of 'small', 'wiki' and found no usable document"):
        driver.take()


def changed_work(source: int, nth: int) -> Any:
    """``work``, but in the ``nth`` chunk of ``source`` one token is another."""
    seen = Counter[int]()

    def changed(chunk: Chunk) -> Packet:
        packet = work(chunk)
        ids = packet.documents.ids
        if chunk.source == source and len(ids):
            if seen[source] == nth:
                ids[len(ids) // 2] ^= 1
                packet = Packet.of(packet.documents)
            seen[source] += 1
        return packet

    return changed


@pytest.mark.parametrize("pack", ["wrap", "first_fit"])
@pytest.mark.parametrize("buffer", [0, 5])
@pytest.mark.parametrize("source", [0, 1])
def test_one_changed_token_is_found_in_the_replay_and_its_source_named(pack: str, buffer: int, source: int) -> None:
    setting = Setting(pack=pack, buffer=buffer, flush=60)
    driver = Driver(setting)
    for _ in range(50):
        driver.take()
    state = encode_lane(driver.lane.state())
    assert decode_lane(state, 0, NAMES).delivered == 50
    again = Driver(setting, state, work=changed_work(source, 0))
    with pytest.raises(ReplayError, match=rf"lane 0: the 50 sequences.*data of source '{NAMES[source]}' changed\."):
        again.replay()


def test_a_replay_in_another_order_says_that_the_order_changed() -> None:
    setting = Setting(flush=60)
    driver = Driver(setting)
    for _ in range(30):
        driver.take()
    again = Driver(setting, encode_lane(driver.lane.state()))
    again.lane = Lane(replace(program_of(setting), shuffle_seed=12), again.saved)
    with pytest.raises(ReplayError, match="their packing or order changed"):
        again.replay()


def test_data_that_changed_in_two_sources_names_both() -> None:
    setting = Setting(flush=60)
    driver = Driver(setting)
    for _ in range(50):
        driver.take()
    first, second = changed_work(0, 0), changed_work(1, 0)
    again = Driver(
        setting, encode_lane(driver.lane.state()), work=lambda chunk: (first if chunk.source == 0 else second)(chunk)
    )
    with pytest.raises(ReplayError, match="data of source 'small', 'wiki' changed"):
        again.replay()


def test_lanes_differ_in_what_they_read_and_in_how_they_shuffle() -> None:
    streams = [[taken.sequence for taken in reference(Setting(lane=lane))[1]] for lane in range(LANES)]
    assert not set(streams[0]) & set(streams[1])
