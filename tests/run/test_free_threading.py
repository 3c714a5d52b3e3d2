"""The engine's threads under stress: whatever the workers do, every global batch is that of one worker.

Ordinary tests with the GIL, where a switch every 10 us stands in for running at once. They are meant for a
free-threaded interpreter: PYTHON_GIL=0, and PYTHONPATH=benchmarks/stand_in where `tokenizers` and `orjson` do not
install.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.scenarios import global_batches, small_pipeline, text_of
from torchtitan_zephon import Pipeline
from torchtitan_zephon.cache import cached
from torchtitan_zephon.ops.tokenize import tokenize
from torchtitan_zephon.run import child
from torchtitan_zephon.run.messages import Taken
from torchtitan_zephon.state import Snapshot, StreamState

WORKERS, AT_ONCE, ROUNDS, STEPS = 8, 6, 3, 30
T = TypeVar("T")


@pytest.fixture(autouse=True)
def threads_that_switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Path]:
    """Ids in many small row groups, ids in one of many chunks (so that open streams are handed on), and text."""
    for name, rows, group in (("many", 1200, 16), ("large", 3000, 3000)):
        lists = [[2 + (n * 31 + k * k) % 380 for k in range(1 + n * 7 % 60)] for n in range(rows)]
        table = pa.table({"id": range(rows), "text": pa.array(lists, pa.list_(pa.int32()))})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=group, use_dictionary=False)
    texts = pa.table({"id": range(600), "text": [text_of(n, 1 + n % 30) for n in range(600)]})
    pq.write_table(texts, tmp_path / "words.parquet", row_group_size=40)
    return {name: tmp_path / f"{name}.parquet" for name in ("many", "large", "words")}


def changed(record: dict[str, Any]) -> dict[str, Any]:
    """Slower for some records than for others, so that chunks end in another order than they began."""
    time.sleep(0.0005 * (record["id"] % 97 == 0))
    return {**record, "text": record["text"][::-1]}


def kept(record: dict[str, Any]) -> bool:
    return record["id"] % 11 != 0


def over(sources: dict[str, Path], workers: int, functions: bool, **settings: Any) -> Pipeline:
    pipeline = small_pipeline(sources, workers=workers, **settings)
    return pipeline.map(changed).filter(kept) if functions else pipeline


def at_once(call: Callable[[int], T], threads: int = AT_ONCE) -> list[T]:
    """What ``call`` gives in each of ``threads`` threads that begin together."""
    begin = threading.Barrier(threads)

    def one(n: int) -> T:
        begin.wait(60)
        return call(n)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, range(threads)))


@pytest.mark.parametrize("functions", [False, True])
def test_many_workers_give_the_batches_and_the_state_of_one(sources: dict[str, Path], functions: bool) -> None:
    expected = global_batches(over(sources, 1, functions), 1, STEPS)
    assert len(set(expected[0])) == STEPS
    for _ in range(ROUNDS):
        assert global_batches(over(sources, WORKERS, functions), 1, STEPS) == expected


@pytest.mark.parametrize("functions", [False, True])
def test_streams_at_once_over_the_same_open_files_do_not_meet(sources: dict[str, Path], functions: bool) -> None:
    expected = global_batches(over(sources, 1, functions), 1, STEPS)
    pipeline = over(sources, WORKERS, functions)
    pipeline.explain()  # compiled once: the streams share the readers, and the files these hold open
    for _ in range(ROUNDS):
        assert all(found == expected for found in at_once(lambda _: global_batches(pipeline, 1, STEPS)))


def test_ranks_at_once_give_the_global_batches_of_one_rank(sources: dict[str, Path]) -> None:
    whole = over(sources, 1, True).stream
    expected = [batch for _, batch in zip(range(4 * STEPS), whole, strict=False)]
    whole.close()
    pipeline = over(sources, WORKERS, True)
    pipeline.explain()

    def rank(n: int) -> list[np.ndarray]:
        stream = pipeline.for_rank(n, 4)
        inputs = [batch.input for _, batch in zip(range(STEPS), stream, strict=False)]
        stream.close()
        return inputs

    for step, parts in enumerate(zip(*at_once(rank, 4), strict=True)):
        for n, part in enumerate(parts):
            assert np.array_equal(part, expected[4 * step + n].input)


def test_streams_begun_and_resumed_at_once_go_on_as_one_does(sources: dict[str, Path]) -> None:
    expected, _ = global_batches(over(sources, 1, True), 1, STEPS)
    first, state = global_batches(over(sources, 1, True), 1, STEPS // 2)

    def resumed(n: int) -> list[str]:
        return global_batches(over(sources, 2, True), 1 + n % 2, STEPS - STEPS // 2, state)[0]

    for _ in range(ROUNDS):
        tokenize.cache_clear()  # every thread compiles its own program, and the tokenizer is built again
        assert all(first + rest == expected for rest in at_once(resumed))


def test_finite_passes_at_once_account_for_every_record(sources: dict[str, Path]) -> None:
    def passed(n: int) -> tuple[str, str]:
        stream = over(sources, 1 if n == 0 else WORKERS, True, repeat=False).stream
        rows = hashlib.sha256()
        for batch in stream:
            rows.update(batch.input.data)
        return rows.hexdigest(), str(stream.balance)

    expected = passed(0)
    assert "4,800 records read" in expected[1]
    assert at_once(passed, 3) == [expected] * 3


def test_kept_results_are_whole_whoever_writes_them_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    value = list(range(50_000))

    def valid(found: object) -> bool:
        return found == value

    for round_ in range(20):
        assert at_once(lambda _, r=round_: cached("k", [r], lambda: value, valid)) == [value] * AT_ONCE  # type: ignore[misc]
        assert cached("k", [round_], lambda: "computed again", valid) == value
    assert not [f for f in (tmp_path / "torchtitan_zephon").iterdir() if f.suffix != ".json"]


def test_places_are_kept_and_dropped_by_two_threads_of_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that reads adds the place behind each step while the main thread drops those behind the trainer."""
    loader = child._Loader(None, -1)  # type: ignore[arg-type]
    saved: list[Any] = []
    monkeypatch.setattr(loader, "send", saved.append)
    made, room = threading.Semaphore(0), threading.Semaphore(100)
    steps = 5000

    def read() -> None:
        for step in range(1, steps + 1):
            room.acquire()
            loader.keep(Snapshot(StreamState({}, "hf", None, 8, step, 0, step, None), ()))
            made.release()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    for step in range(1, steps + 1):
        assert made.acquire(timeout=60)
        loader.taken(Taken(0, step))
        room.release()
        if step % 100 == 0:
            loader.save(step)
    reader.join()
    assert [json.loads(message.state["stream"])["step"] for message in saved] == list(range(100, steps + 1, 100))
    assert list(loader._snapshots) == [steps]


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this interpreter always has a GIL")
def test_no_package_of_the_engine_turns_the_gil_on_again(sources: dict[str, Path]) -> None:
    script = (
        "import sys, pathlib\n"
        "from tests.run.test_free_threading import over\n"
        "sources = {p.stem: p for p in map(pathlib.Path, sys.argv[1:])}\n"
        "next(iter(over(sources, 2, False)))\n"
        "assert not sys._is_gil_enabled()\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHON_GIL"}
    command = [sys.executable, "-W", "error", "-c", script, *map(str, sources.values())]
    subprocess.run(command, env=environment, timeout=120, check=True)
    if os.environ.get("PYTHON_GIL") == "0":
        assert not sys._is_gil_enabled()
