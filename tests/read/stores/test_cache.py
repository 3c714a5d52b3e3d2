"""Blocks of remote files on a disk: fewer requests, the same bytes, and never an error of the run's."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.read.stores.conftest import Bucket, listing_of
from tests.scenarios import corpus, global_batches, small_pipeline
from tests.servers.s3 import put, put_folder
from torchtitan_zephon import SourceError
from torchtitan_zephon.read.stores import cache
from torchtitan_zephon.read.stores.cache import BLOCK_BYTES, BlockCache, CachedStore

ROOT = Path(__file__).resolve().parents[3]
DATA = os.urandom(3 * BLOCK_BYTES + 12_345)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def opened(bucket: Bucket, folder: Path, most_bytes: int = 2**40) -> CachedStore:
    store, _ = listing_of(bucket.url("x.jsonl"))
    bucket.proxy.clear()
    return CachedStore(store, BlockCache(folder, most_bytes))


@pytest.fixture
def store(bucket: Bucket, folder: Path) -> CachedStore:
    put(bucket.server, bucket.name, {"x.jsonl": DATA})
    return opened(bucket, folder)


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


RANGES = [(0, 10), (BLOCK_BYTES - 5, BLOCK_BYTES + 5), (0, 2**40), (len(DATA) - 7, 2**40), (2**30, 2**31), (5, 5)]


@pytest.mark.parametrize(("start", "stop"), RANGES)
def test_a_range_is_the_same_before_and_after_it_is_kept(
    bucket: Bucket, store: CachedStore, start: int, stop: int
) -> None:
    for _ in range(2):
        assert store.read("x.jsonl", start, stop) == DATA[start:stop]
    assert len(bucket.proxy.seen) <= 1


def test_only_blocks_that_are_missing_are_fetched_side_by_side_in_one_request(
    bucket: Bucket, store: CachedStore
) -> None:
    store.read("x.jsonl", BLOCK_BYTES, BLOCK_BYTES + 1)
    bucket.proxy.clear()
    assert store.read("x.jsonl", 0, len(DATA)) == DATA
    spans = [seen.span for seen in bucket.proxy.seen]
    assert spans == [f"bytes=0-{BLOCK_BYTES - 1}", f"bytes={2 * BLOCK_BYTES}-{len(DATA) - 1}"]


def test_an_open_file_is_read_through_the_cache(bucket: Bucket, store: CachedStore) -> None:
    for _ in range(2):
        with store.open("x.jsonl") as file, store.open_for_arrow("x.jsonl") as other:
            assert file.read() == other.read() == DATA
    assert len(bucket.proxy.seen) == 1


def test_ranks_and_later_runs_share_what_is_kept(bucket: Bucket, store: CachedStore, folder: Path) -> None:
    store.read("x.jsonl", 0, len(DATA))
    assert opened(bucket, folder).read("x.jsonl", 0, len(DATA)) == DATA
    assert not bucket.proxy.seen


def test_another_version_is_never_read_from_what_is_kept(bucket: Bucket, store: CachedStore, folder: Path) -> None:
    store.read("x.jsonl", 0, 10)
    put(bucket.server, bucket.name, {"x.jsonl": DATA[::-1]})
    with pytest.raises(SourceError, match="has changed"):
        store.read("x.jsonl", 0, len(DATA))
    assert opened(bucket, folder).read("x.jsonl", 0, len(DATA)) == DATA[::-1]


@pytest.mark.parametrize("damage", [b"", b"\0" * (BLOCK_BYTES + 4), DATA[:1000], DATA[: BLOCK_BYTES + 4]])
def test_a_damaged_block_is_fetched_again(store: CachedStore, folder: Path, damage: bytes) -> None:
    store.read("x.jsonl", 0, len(DATA))
    for path in entries(folder):
        path.write_bytes(damage)
    assert store.read("x.jsonl", 0, len(DATA)) == DATA


def test_what_was_used_longest_ago_goes_first_and_nothing_of_others(
    bucket: Bucket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_USED_S", -1)
    folder.mkdir()
    (folder / "thesis.txt").write_bytes(b"x" * 10**6)
    blocks = BlockCache(folder, 8 * BLOCK_BYTES)
    for n in range(40):
        blocks.put("ab/cd", n, DATA[:BLOCK_BYTES])
        os.utime(folder / "torchtitan_zephon-blocks" / "ab" / "cd" / str(n), (n, n))
        assert blocks.get("ab/cd", 0, BLOCK_BYTES) is not None  # so it is always the last one used
    kept = [int(path.name) for path in entries(folder / "torchtitan_zephon-blocks")]
    assert 0 in kept and 39 in kept
    assert len(kept) <= 9
    assert set(kept) - {0} <= set(range(30, 40))
    assert (folder / "thesis.txt").stat().st_size == 10**6


def test_blocks_that_are_given_up_while_they_are_read_break_no_reader(bucket: Bucket, store: CachedStore) -> None:
    store._cache = BlockCache(store._cache._named, BLOCK_BYTES)
    wrong = []

    def read(first: int) -> None:
        for n in range(12):
            start = (first + n * 777_777) % len(DATA)
            if store.read("x.jsonl", start, start + 300_000) != DATA[start : start + 300_000]:
                wrong.append(start)

    threads = [threading.Thread(target=read, args=(n * 100_000,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_full_disk_costs_one_warning(
    store: CachedStore, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.read("x.jsonl", 0, BLOCK_BYTES)

    def full(*of: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cache, "write_whole", full)
    for _ in range(3):
        assert store.read("x.jsonl", 0, len(DATA)) == DATA
    (warning,) = [record.getMessage() for record in caplog.records]
    assert f"the cache folder {str(folder)!r} cannot be written: No space left on device" in warning
    assert len(entries(folder)) == 1


def test_a_folder_that_cannot_be_made_costs_one_warning(
    bucket: Bucket, store: CachedStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    broken = opened(bucket, tmp_path / "file" / "x")
    assert broken.read("x.jsonl", 0, len(DATA)) == DATA == broken.read("x.jsonl", 0, len(DATA))
    assert len(caplog.records) == 1


FILL = """
import os, sys
from pathlib import Path
from torchtitan_zephon import cache
from torchtitan_zephon.read.stores.cache import BLOCK_BYTES, BlockCache
blocks, data = BlockCache(Path(sys.argv[1]), 2**40), bytes(BLOCK_BYTES)
if sys.argv[2] == "killed":
    Path.replace = lambda *of: os.kill(os.getpid(), 9)
for n in range(20):
    blocks.put("ab/cd", n, data)
"""


def filling(folder: Path, how: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", FILL, str(folder), how], cwd=ROOT)


def test_a_process_killed_while_it_fills_leaves_no_entry(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert filling(folder, "killed").wait(60) == -signal.SIGKILL
    blocks = BlockCache(folder, 2**40)
    assert len(entries(folder)) == 1
    assert blocks.get("ab/cd", 0, BLOCK_BYTES) is None
    monkeypatch.setattr(cache, "_DEAD_S", -1)
    blocks.put("ab/cd", 1, bytes(BLOCK_BYTES))
    assert [path.name for path in entries(folder)] == ["1"]


def test_processes_that_fill_the_same_entries_do_no_harm(folder: Path) -> None:
    assert [process.wait(60) for process in [filling(folder, "whole") for _ in range(4)]] == [0] * 4
    blocks = BlockCache(folder, 2**40)
    assert all(blocks.get("ab/cd", n, BLOCK_BYTES) == bytes(BLOCK_BYTES) for n in range(20))
    assert len(entries(folder)) == 20


@pytest.mark.parametrize("runner", ["thread", "process"])
def test_the_stream_is_the_same_and_a_second_run_fetches_nothing(
    bucket: Bucket, tmp_path: Path, folder: Path, runner: str
) -> None:
    local = corpus(tmp_path / "data")
    put_folder(bucket.server, bucket.name, tmp_path / "data")
    remote = {name: bucket.url(str(path.relative_to(tmp_path / "data"))) for name, path in local.items()}
    kept = small_pipeline(remote).options(cache_folder=str(folder), runner=runner)
    whole, _ = global_batches(small_pipeline(local), 1, 6)
    assert global_batches(kept, 1, 6)[0] == whole
    bucket.proxy.clear()
    assert global_batches(kept.options(), 1, 6)[0] == whole
    ranges = [seen for seen in bucket.proxy.seen if seen.span]
    assert len(ranges) == 5  # the samples of five files, for the hash of their content
