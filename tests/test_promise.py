"""The promise: global batch t is the same bytes in the same order, whatever reads it and however often it stops."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.scenarios import (
    SEQ_LEN,
    corpus,
    global_batches,
    rank_steps,
    row_bytes,
    small_pipeline,
    text_of,
    texts_of,
    tokenizer_folder,
    write_jsonl,
    write_parquet,
)
from torchtitan_zephon import ConfigError, Pipeline, RankStream, StateError
from torchtitan_zephon.plan import keyed
from torchtitan_zephon.state import decode_lane

STEPS = 20
Sources = dict[str, Path]
PACKS: dict[str, dict[str, Any]] = {
    "wrap": {},
    "across": {"label_shift": "sequence"},
    "first_fit": {"algorithm": "first_fit"},
}


def strip(record: dict[str, Any]) -> dict[str, Any]:
    return {"text": record["text"].replace("xy", "yx")}


def most(record: dict[str, Any]) -> bool:
    return keyed.below(keyed.key(record["text"]), 0, 3) > 0


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return corpus(tmp_path / "data", 240)


def pipeline(sources: Sources, *, local: int = 1, **options: Any) -> Pipeline:
    return small_pipeline(sources, **{"lanes": 8, "global_batch_size": 16, "local_batch_size": local, **options})


def wide(sources: Sources, **options: Any) -> Pipeline:
    """Everything on, and as many lanes as the largest number of ranks."""
    return pipeline(sources, lanes=32, global_batch_size=64, **options).map(strip).filter(most)


def take_step(rank: RankStream) -> list[bytes]:
    [batches] = rank_steps(rank, 1)
    return [b.input.tobytes() for b in batches]


@pytest.mark.parametrize("pack", PACKS)
def test_global_batches_are_equal_on_1_2_4_8_16_and_32_ranks(sources: Sources, pack: str) -> None:
    expected, _ = global_batches(wide(sources, **PACKS[pack]), 1, STEPS)
    assert len(set(expected)) == STEPS
    for degree in (2, 4, 8, 16, 32):
        assert global_batches(wide(sources, **PACKS[pack]), degree, STEPS)[0] == expected, degree


@pytest.mark.parametrize("degree", [3, 6, 12])
def test_ranks_that_are_no_power_of_two_get_the_same_global_batches(sources: Sources, degree: int) -> None:
    expected, state = global_batches(pipeline(sources, lanes=12, global_batch_size=24), 1, 6)
    assert global_batches(pipeline(sources, lanes=12, global_batch_size=24), degree, 6) == (expected, state)


@pytest.mark.parametrize("local", [1, 2, 4, 8, 16])
def test_the_local_batch_size_does_not_change_the_global_batch(sources: Sources, local: int) -> None:
    expected, _ = global_batches(pipeline(sources), 1, 6)
    assert global_batches(pipeline(sources, local=local), 1, 6)[0] == expected


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_worker_count_and_random_delays_do_not_change_the_order(sources: Sources, workers: int) -> None:
    def plain(record: dict[str, Any]) -> dict[str, Any]:
        return record

    def slow(record: dict[str, Any]) -> dict[str, Any]:
        time.sleep(random.random() * 0.002)
        return record

    expected, _ = global_batches(pipeline(sources).map(plain, identity="m"), 2, 6)
    delayed = pipeline(sources, workers=workers).map(slow, identity="m")
    assert global_batches(delayed, 2, 6)[0] == expected


@pytest.mark.parametrize("prefetch_bytes", [1, 10_000, 2**30])
def test_prefetch_changes_neither_order_nor_state(sources: Sources, prefetch_bytes: int) -> None:
    expected, state = global_batches(pipeline(sources), 2, 6)
    other = pipeline(sources).options(prefetch_bytes=prefetch_bytes)
    assert global_batches(other, 2, 6) == (expected, state)


def test_the_state_is_the_same_bytes_on_every_number_of_ranks(sources: Sources) -> None:
    for steps in (0, 1, 5, 9):
        states = [global_batches(wide(sources), degree, steps)[1] for degree in (1, 4, 32)]
        if steps == 0:  # nothing was measured yet
            assert all(s["lane"] == states[0]["lane"] for s in states)
        else:
            assert all(s == states[0] for s in states)


@pytest.mark.parametrize("pack", PACKS)
def test_a_resume_at_every_step_on_other_ranks_continues_exactly(sources: Sources, pack: str) -> None:
    def make(workers: int = 2) -> Pipeline:
        return pipeline(sources, **PACKS[pack], workers=workers).map(strip).filter(most)

    expected, last = global_batches(make(), 1, STEPS)
    degrees, workers = [1, 2, 4, 8], [2, 8, 1]
    for k in range(STEPS + 1):
        before, state = global_batches(make(), degrees[k % 4], k)
        after, end = global_batches(make(workers[k % 3]), degrees[(k + 1) % 4], STEPS - k, state)
        assert (before + after, end) == (expected, last), k


def test_three_resumes_in_a_chain_on_other_ranks_continue_exactly(sources: Sources) -> None:
    expected, last = global_batches(wide(sources), 1, 20)
    state, seen = None, []
    for degree, steps, workers, local in ((8, 3, 2, 8), (2, 7, 8, 1), (32, 4, 1, 2), (1, 6, 2, 16)):
        changed = wide(sources, workers=workers, local=local)
        hashes, state = global_batches(changed, degree, steps, state)
        seen += hashes
    assert seen == expected
    assert state == last


def test_a_save_straight_after_a_load_is_what_was_loaded(sources: Sources) -> None:
    _, state = global_batches(pipeline(sources), 2, 5)
    assert global_batches(pipeline(sources), 4, 0, state)[1] == state


def test_loading_before_or_after_iter_or_twice_gives_the_same_next_batch(sources: Sources) -> None:
    _, other = global_batches(pipeline(sources), 1, 2)
    _, state = global_batches(pipeline(sources), 1, 5)
    load_then_iter, iter_then_load, load_twice = (pipeline(sources).for_rank(0, 1) for _ in range(3))
    load_then_iter.load_state_dict(state)
    running = iter(iter_then_load)
    next(running)
    iter_then_load.load_state_dict(state)
    load_twice.load_state_dict(other)
    load_twice.load_state_dict(state)
    expected = take_step(load_then_iter)
    assert [next(running).input.tobytes() for _ in expected] == expected
    assert take_step(load_twice) == expected
    for stream in (load_then_iter, iter_then_load, load_twice):
        stream.close()


def test_two_streams_of_one_pipeline_do_not_disturb_each_other(sources: Sources) -> None:
    alone = pipeline(sources).for_rank(0, 2)
    expected = [take_step(alone) for _ in range(8)]
    alone.close()
    _, state = global_batches(pipeline(sources), 1, 5)
    shared = pipeline(sources)
    first, second = shared.for_rank(0, 2), shared.for_rank(0, 2)
    assert [take_step(first) for _ in range(2)] == expected[:2]
    second.load_state_dict(state)
    assert take_step(second) == expected[5]
    assert take_step(first) == expected[2]
    first.load_state_dict(second.state_dict())
    assert [take_step(second) for _ in range(2)] == [take_step(first) for _ in range(2)] == expected[6:]
    first.close()
    second.close()


def test_a_state_in_the_middle_of_a_step_is_refused(sources: Sources) -> None:
    rank = pipeline(sources).for_rank(0, 1)
    iterator = iter(rank)
    next(iterator)
    with pytest.raises(StateError, match="in the middle of step 1: 1 of its 16 local batches"):
        rank.state_dict()
    for _ in range(15):
        next(iterator)
    assert rank.state_dict()["lane"]
    rank.close()


@pytest.mark.parametrize("pack", PACKS)
def test_a_resume_at_every_step_of_a_tiny_corpus_over_several_epochs(tmp_path: Path, pack: str) -> None:
    path = write_jsonl(tmp_path / "tiny.jsonl", [*texts_of(9, longest=20), text_of(9, words=100)])

    def make(**options: Any) -> Pipeline:
        tiny = {"lanes": 2, "global_batch_size": 4, "flush_every_sequences": 5, **PACKS[pack]}
        return pipeline({"tiny": path}, **{**tiny, **options})

    epoch_tokens = sum(b.sequences[0].filled for b in make(repeat=False))
    assert 0.2 < 4 * SEQ_LEN / epoch_tokens < 0.5, "of an epoch in a step"
    expected, _ = global_batches(make(), 1, 24)
    for k in range(16):
        _, state = global_batches(make(), 1 + k % 2, k)
        assert global_batches(make(), 2 - k % 2, 8, state)[0] == expected[k : k + 8]


def test_a_resume_inside_a_large_row_group_continues_exactly(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "rows.parquet", texts_of(2000), row_group_rows=10_000)

    def make() -> Pipeline:
        return pipeline({"rows": path}, lanes=2, global_batch_size=16, flush_every_sequences=9)

    assert make().for_rank(0, 1).program.tables[0].run_chunks > 1
    expected, last = global_batches(make(), 1, STEPS)
    inside = 0
    for k in range(0, STEPS + 1, 2):
        before, state = global_batches(make(), 1 + k // 2 % 2, k)
        after, end = global_batches(make(), 2 - k // 2 % 2, STEPS - k, state)
        assert (before + after, end) == (expected, last), k
        lanes = (decode_lane(lane, n, ["rows"]) for n, lane in enumerate(state["lane"].values()))
        inside += sum(lane.start.sources["rows"].chunks > 0 for lane in lanes)
    assert inside, "no segment began between two chunks of a row group"


@pytest.mark.parametrize("pack", PACKS)
def test_a_finite_pass_resumed_anywhere_ends_with_the_same_batches(sources: Sources, pack: str) -> None:
    def make() -> Pipeline:
        return pipeline(sources, repeat=False, **PACKS[pack], flush_every_sequences=5).filter(most)

    expected, last = global_batches(make(), 1, 10**6)
    assert 20 < len(expected) < 200
    for k in range(0, len(expected) + 1, 5):
        before, state = global_batches(make(), 4, k)
        after, end = global_batches(make(), 2, 10**6, state)
        assert (before + after, end) == (expected, last), k


@pytest.mark.parametrize("texts", [texts_of(5), texts_of(300)], ids=["five documents", "one file"])
def test_one_file_or_five_documents_feed_eight_ranks(tmp_path: Path, texts: list[str]) -> None:
    path = write_jsonl(tmp_path / "one.jsonl", texts)
    expected, _ = global_batches(pipeline({"one": path}), 1, 5)
    assert global_batches(pipeline({"one": path}), 8, 5)[0] == expected


def test_neither_the_place_nor_the_order_of_the_sources_matters(sources: Sources, tmp_path: Path) -> None:
    expected, state = global_batches(pipeline(sources), 2, 6)
    shutil.copytree(tmp_path / "data", tmp_path / "elsewhere")
    moved = {name: tmp_path / "elsewhere" / path.name for name, path in reversed(sources.items())}
    assert global_batches(pipeline(moved), 2, 6) == (expected, state)
    after, _ = global_batches(pipeline(sources), 1, 9)
    assert global_batches(pipeline(moved), 4, 3, state)[0] == after[6:]


def test_global_generators_do_not_matter_and_are_left_alone(sources: Sources) -> None:
    def disturb(record: dict[str, Any]) -> dict[str, Any]:
        random.seed(record["id"])
        np.random.seed(record["id"])
        return record

    expected, _ = global_batches(pipeline(sources).map(dict, identity="m"), 1, 5)
    random.seed(99)
    np.random.seed(99)
    python_state, numpy_state = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
    assert global_batches(pipeline(sources).map(dict, identity="m"), 1, 5)[0] == expected
    assert random.getstate() == python_state
    assert np.random.get_state()[1].tolist() == numpy_state  # type: ignore[index, union-attr]
    assert global_batches(pipeline(sources).map(disturb, identity="m"), 2, 5)[0] == expected


@pytest.mark.parametrize("shuffled", ["shuffle_chunks", "shuffle_records", "buffer_size"])
def test_each_kind_of_shuffling_follows_the_seed(sources: Sources, shuffled: str) -> None:
    def stream(seed: int) -> list[str]:
        off: dict[str, Any] = {"shuffle_chunks": False, "shuffle_records": False, "buffer_size": 0}
        one = {"alpha": sources["alpha"]}  # of a mixture, the lanes' phases would follow the seed too
        on = {shuffled: 8 if shuffled == "buffer_size" else True}
        return global_batches(pipeline(one, seed=seed, lanes=1, global_batch_size=16, **{**off, **on}), 1, 3)[0]

    assert len({tuple(stream(seed)) for seed in range(4)}) > 2  # of few chunks two may have one order
    assert stream(3) == stream(3)


def test_hash_seeds_and_locales_do_not_matter(sources: Sources, tmp_path: Path) -> None:
    script = (
        "from pathlib import Path; import sys; from tests.scenarios import *\n"
        "root = Path(sys.argv[1])\n"
        "sources = {'alpha': root / 'alpha', 'beta': root / 'beta', 'gamma': root / 'gamma.jsonl'}\n"
        "print(*global_batches(small_pipeline(sources, tokenizer=sys.argv[2]), 2, 4)[0])"
    )
    arguments = [str(tmp_path / "data"), str(tokenizer_folder())]
    outputs = set()
    for seed, locale in (("1", "C"), ("2", "C.UTF-8"), ("random", "de_DE.UTF-8")):
        env = {**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": locale, "PYTHONPATH": str(Path(__file__).parent.parent)}
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments], env=env, capture_output=True, text=True, check=True
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert outputs.pop().split() == global_batches(small_pipeline(sources), 2, 4)[0]


def test_more_lanes_than_chunks_still_feed_every_lane(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "few.jsonl", texts_of(8))
    sources = {"few": tmp_path / "few.jsonl"}
    expected, _ = global_batches(pipeline(sources, lanes=64, global_batch_size=64), 1, 3)
    assert global_batches(pipeline(sources, lanes=64, global_batch_size=64), 16, 3)[0] == expected


def test_ranks_that_share_lanes_go_on_after_losing_a_node_and_getting_it_back(sources: Sources) -> None:
    def make(**options: Any) -> Pipeline:
        return wide(sources).options(lanes=16, global_batch_size=112, **options)

    expected, last = global_batches(make(), 1, 9)
    seen: list[str] = []
    state = None
    for degree, steps in ((8, 3), (7, 4), (8, 2)):
        hashes, state = global_batches(make(shared_lanes=True), degree, steps, state, local_batch_size=1)
        seen += hashes
    assert (seen, state) == (expected, last)


@pytest.mark.parametrize("degree", [1, 2, 4, 7, 8, 14, 16, 28, 56, 112])
def test_shared_lanes_allow_every_degree_that_divides_the_global_batch(sources: Sources, degree: int) -> None:
    def make(**options: Any) -> Pipeline:
        return pipeline(sources, lanes=16, global_batch_size=112).options(**options)

    assert global_batches(make(shared_lanes=True), degree, 2) == global_batches(make(), 1, 2)


def test_a_finite_pass_over_shared_lanes_ends_alike_on_every_rank(sources: Sources) -> None:
    def make(**options: Any) -> Pipeline:
        return pipeline(sources, lanes=4, global_batch_size=24, repeat=False).options(**options)

    expected, _ = global_batches(make(), 1, 10**6)
    for degree in (3, 6, 8, 24):
        assert global_batches(make(shared_lanes=True), degree, 10**6)[0] == expected


def sequences_of(made: Pipeline, degree: int, steps: int, state: Any = None) -> tuple[list[list[bytes]], Any]:
    """The sequences of every lane, in the lane's own order, over ``steps`` steps; and the state at the end."""
    lanes: list[list[bytes]] = []
    saved: dict[str, Any] = {"lane": {}}
    for rank in range(degree):
        stream = made.for_rank(rank, degree)
        if state is not None:
            stream.load_state_dict(state)
        per_lane = stream.layout.lane_sequences
        own: list[list[bytes]] = [[] for _ in stream.layout.own_lanes]
        for batches in rank_steps(stream, steps):
            rows = [row_bytes(batch, r) for batch in batches for r in range(len(batch.input))]
            for k, lane in enumerate(own):
                lane += rows[k * per_lane : (k + 1) * per_lane]
        lanes += own
        part = stream.state_dict()
        saved = {"stream": part["stream"], "lane": {**saved["lane"], **part["lane"]}}
        stream.close()
    return lanes, saved


def test_a_global_batch_size_changed_by_name_loses_and_repeats_no_sequence(sources: Sources) -> None:
    def make(size: int) -> Pipeline:
        return pipeline(sources).options(global_batch_size=size, allow_changes=["global_batch_size"])

    whole, _ = sequences_of(make(16), 1, 16)
    state, seen = None, [[] for _ in range(8)]
    for size, degree, steps in ((16, 2, 3), (32, 4, 4), (8, 8, 6), (24, 1, 3), (16, 2, 0)):
        lanes, state = sequences_of(make(size), degree, steps, state)
        for lane, more in zip(seen, lanes, strict=True):
            lane += more
    assert sum(len(lane) for lane in seen) == 3 * 16 + 4 * 32 + 6 * 8 + 3 * 24
    assert [lane[:32] for lane in seen] == whole


def test_a_changed_global_batch_size_is_refused_unless_asked_for_by_name(sources: Sources) -> None:
    _, state = global_batches(pipeline(sources), 1, 3)
    with pytest.raises(StateError, match=r"16, this job has 32.*allow_changes = \[\"global_batch_size\"\]"):
        global_batches(pipeline(sources).options(global_batch_size=32), 1, 1, state)
    with pytest.raises(ConfigError, match="allow_changes"):
        pipeline(sources).options(allow_changes=["lanes"])  # type: ignore[list-item]
