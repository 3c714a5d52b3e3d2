"""The worker pool: results belong to their calls, errors travel, and nothing outlives its end."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
import weakref

import pytest

from torchtitan_zephon.run.pool import Pool


def threads() -> int:
    return sum(thread.name.startswith("zephon-") for thread in threading.enumerate())


def test_every_call_gets_its_own_result_whichever_ends_first() -> None:
    pool = Pool(3)
    try:
        futures = [pool.submit(lambda n: time.sleep(0.001 * (5 - n % 5)) or n, n) for n in range(30)]
        assert [future.result() for future in futures] == list(range(30))
    finally:
        pool.close()


def test_an_error_reaches_the_caller_and_the_worker_lives_on() -> None:
    pool = Pool(1)
    try:
        failing, good = pool.submit(lambda: 1 // 0), pool.submit(lambda: 7)
        with pytest.raises(ZeroDivisionError):
            failing.result()
        assert good.result() == 7
        with pytest.raises(SystemExit):
            pool.submit(sys.exit).result()
        assert pool.submit(lambda: 8).result() == 8
    finally:
        pool.close()


def test_as_many_calls_run_at_once_as_there_are_workers() -> None:
    pool, meeting = Pool(4), threading.Barrier(4)
    try:
        futures = [pool.submit(meeting.wait, 10) for _ in range(4)]
        assert sorted(future.result() for future in futures) == [0, 1, 2, 3]
    finally:
        pool.close()


def test_what_is_urgent_runs_first_and_all_else_as_it_was_submitted() -> None:
    pool, may_go_on, ran = Pool(1), threading.Event(), list[str]()
    try:
        pool.submit(may_go_on.wait, 10)
        calls = [pool.submit(ran.append, f"{n}", urgent=n in (3, 4)) for n in range(6)]
        may_go_on.set()
        for call in calls:
            call.result(10)
        assert ran == ["3", "4", "0", "1", "2", "5"]
    finally:
        pool.close()


def test_threads_start_with_the_first_call_and_end_at_close() -> None:
    before = threads()
    pool = Pool(3)
    assert threads() == before
    pool.submit(int).result()
    assert threads() == before + 3
    pool.close()
    assert threads() == before
    pool.close()  # twice is fine
    Pool(2).close()  # never used is fine


def test_close_drops_what_is_queued_and_waits_for_what_runs() -> None:
    pool, begun, may_end, ran = Pool(1), threading.Event(), threading.Event(), []

    def first() -> str:
        begun.set()
        may_end.wait(10)
        ran.append("first")
        return "done"

    running = pool.submit(first)
    queued = [pool.submit(ran.append, n) for n in range(100)]
    begun.wait(10)
    closer = threading.Thread(target=pool.close)
    closer.start()
    time.sleep(0.05)
    assert closer.is_alive()
    may_end.set()
    closer.join(10)
    assert not closer.is_alive()
    assert running.result(0) == "done"
    assert ran == ["first"]
    assert not any(future.done() for future in queued)


def test_a_worker_may_close_its_own_pool() -> None:
    pool = Pool(2)
    pool.submit(pool.close).result(10)
    pool.close()


def test_an_idle_worker_keeps_no_result_alive() -> None:
    class Result:
        pass

    pool = Pool(1)
    try:
        future = pool.submit(Result)
        alive = weakref.ref(future.result())
        del future
        for _ in range(200):
            if alive() is None:
                break
            time.sleep(0.01)
        assert alive() is None
    finally:
        pool.close()


def test_the_interpreter_exits_at_once_whatever_is_still_queued() -> None:
    script = textwrap.dedent(
        """
        import time
        from torchtitan_zephon.run import pool
        pool._LOOK_UP_S = 0.05
        workers = pool.Pool(2)
        for _ in range(1000):
            workers.submit(time.sleep, 0.05)
        workers.submit(print, "never")
        time.sleep(0.1)
        """
    )
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert time.monotonic() - begin < 20  # the queue alone is 25 s of work
    assert (done.stdout, done.stderr) == ("", "")
