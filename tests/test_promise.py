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

from tests.scenarios import corpus, global_batches, rank_steps, small_pipeline, texts_of, tokenizer_folder, write_jsonl
from torchtitan_zephon import Pipeline, RankStream, StateError
from torchtitan_zephon.plan import keyed

STEPS = 14
Sources = dict[str, Path]


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


@pytest.mark.parametrize("pack", ["wrap", "first_fit"])
def test_global_batches_are_equal_on_1_2_4_8_16_and_32_ranks(sources: Sources, pack: str) -> None:
    expected, _ = global_batches(wide(sources, algorithm=pack), 1, STEPS)
    assert len(set(expected)) == STEPS
    for degree in (2, 4, 8, 16, 32):
        assert global_batches(wide(sources, algorithm=pack), degree, STEPS)[0] == expected, degree


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


@pytest.mark.parametrize("pack", ["wrap", "first_fit"])
def test_a_resume_at_every_step_on_other_ranks_continues_exactly(sources: Sources, pack: str) -> None:
    def make() -> Pipeline:
        return pipeline(sources, algorithm=pack).map(strip).filter(most)

    expected, _ = global_batches(make(), 1, STEPS)
    degrees = [1, 2, 4, 8]
    for k in range(STEPS):
        before, state = global_batches(make(), degrees[k % 4], k)
        after, _ = global_batches(make(), degrees[(k + 1) % 4], STEPS - k, state)
        assert before + after == expected, k


def test_three_resumes_in_a_chain_on_other_ranks_continue_exactly(sources: Sources) -> None:
    expected, last = global_batches(wide(sources), 1, 20)
    state, seen = None, []
    for degree, steps in ((8, 3), (2, 7), (32, 4), (1, 6)):
        hashes, state = global_batches(wide(sources), degree, steps, state)
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
    shared = pipeline(sources)
    first, second = shared.for_rank(0, 2), shared.for_rank(0, 2)
    ahead = [take_step(first) for _ in range(3)]
    assert [take_step(second) for _ in range(3)] == ahead
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


def test_a_resume_at_every_step_of_a_tiny_corpus_over_several_epochs(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "tiny.jsonl", [*texts_of(9), " ".join(texts_of(30))])

    def make() -> Pipeline:
        return pipeline({"tiny": tmp_path / "tiny.jsonl"}, lanes=2, global_batch_size=4, flush_every_sequences=5)

    expected, _ = global_batches(make(), 1, 24)
    for k in range(16):
        _, state = global_batches(make(), 1 + k % 2, k)
        assert global_batches(make(), 2 - k % 2, 8, state)[0] == expected[k : k + 8]


def test_one_file_or_five_documents_feed_eight_ranks(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "five.jsonl", texts_of(5))
    expected, _ = global_batches(pipeline({"five": tmp_path / "five.jsonl"}), 1, 5)
    assert global_batches(pipeline({"five": tmp_path / "five.jsonl"}), 8, 5)[0] == expected


def test_neither_the_place_nor_the_order_of_the_sources_matters(sources: Sources, tmp_path: Path) -> None:
    expected, state = global_batches(pipeline(sources), 2, 6)
    shutil.copytree(tmp_path / "data", tmp_path / "elsewhere")
    moved = {name: tmp_path / "elsewhere" / path.name for name, path in reversed(sources.items())}
    assert global_batches(pipeline(moved), 2, 6) == (expected, state)
    after, _ = global_batches(pipeline(sources), 1, 9)
    assert global_batches(pipeline(moved), 4, 3, state)[0] == after[6:]


def test_global_generators_do_not_matter(sources: Sources) -> None:
    expected, _ = global_batches(pipeline(sources), 1, 5)
    random.seed(99)
    np.random.seed(99)
    assert global_batches(pipeline(sources), 1, 5)[0] == expected


def test_the_seed_matters_and_each_seed_gives_another_stream(sources: Sources) -> None:
    streams = {tuple(global_batches(pipeline(sources, seed=seed), 1, 2)[0]) for seed in range(4)}
    assert len(streams) == 4


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
