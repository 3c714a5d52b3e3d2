"""``runner = "process"``: however either side ends, the other ends too and nothing is left behind."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

import pytest

from tests.run.processes import (
    HEAD,
    ROOT,
    Script,
    Sources,
    children,
    fail_unspeakably,
    failure,
    let_run_ahead,
    made,
    soon,
    stall_elsewhere,
)
from tests.scenarios import global_batches, row_bytes, small_pipeline, tokenizer_folder
from torchtitan_zephon import ConfigError, RunnerError, StateError
from torchtitan_zephon.ledger import read_ledger
from torchtitan_zephon.run import process
from torchtitan_zephon.run.ring import SLOTS

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")


# ---- the process dies


def test_a_killed_process_ends_the_run_at_once_with_the_signal(sources: Sources) -> None:
    stream = made(sources).for_rank(0, 1)
    next(iter(stream))
    let_run_ahead(stream)
    os.kill(children()[0], signal.SIGKILL)
    taken, error = failure(stream)
    assert taken <= SLOTS
    assert type(error) is RunnerError
    assert "the loader's process died (signal 9, SIGKILL)" in str(error)
    assert "resume from the last checkpoint" in str(error)


def test_a_killed_process_is_noticed_by_a_trainer_that_waits(
    sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STALLED", str(tmp_path / "stalled"))
    stream = made(sources).map(stall_elsewhere).for_rank(0, 1)
    killer = threading.Thread(
        target=lambda: soon((tmp_path / "stalled").exists) and os.kill(children()[0], signal.SIGKILL)
    )
    killer.start()
    with pytest.raises(RunnerError, match="signal 9"):
        next(iter(stream))
    killer.join()


def test_a_killed_process_is_noticed_though_a_fork_holds_its_end_of_the_socket(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []

    def pipe() -> tuple[Connection, Connection]:
        ours, theirs = Pipe()
        held.append(os.dup(theirs.fileno()))  # as a process forked by another thread at this moment
        return ours, theirs

    monkeypatch.setattr(process, "Pipe", pipe)
    stream = made(sources).for_rank(0, 1)
    next(iter(stream))
    let_run_ahead(stream)
    os.kill(children()[0], signal.SIGKILL)
    assert "SIGKILL" in str(failure(stream)[1])
    os.close(held.pop())


def test_a_process_that_does_not_answer_is_killed_at_close(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_GRACE_S", 0.1)
    stream = made(sources).for_rank(0, 1)
    next(iter(stream))
    os.kill(children()[0], signal.SIGSTOP)
    stream.close()
    assert children() == []


def test_a_process_that_cannot_say_what_failed_ends(sources: Sources, capfd: pytest.CaptureFixture[str]) -> None:
    taken, error = failure(made(sources).map(fail_unspeakably).for_rank(0, 1))
    assert (taken, type(error)) == (0, RunnerError)
    assert "exit code 1" in str(error)
    assert "SystemExit: pickled" in capfd.readouterr().err


def test_a_process_that_cannot_start_says_how_it_ended(
    sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    boot = tmp_path / "boot.py"
    boot.write_text("raise SystemExit(3)")
    monkeypatch.setattr(process, "BOOT", boot)
    taken, error = failure(made(sources).for_rank(0, 1))
    assert (taken, type(error)) == (0, RunnerError)
    assert "the loader's process died (exit code 3)" in str(error)
    monkeypatch.undo()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [])
        stream = made(sources).for_rank(0, 1)
        with pytest.raises(RunnerError, match=r"exit code 1\)"):
            next(iter(stream))
    assert "ModuleNotFoundError" in capfd.readouterr().err
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(RunnerError, match=r"the loader's process cannot be started: .*No such file"):
        next(iter(made(sources).for_rank(0, 1)))


def test_a_stream_closed_at_a_full_ring_ends_quickly_and_opens_again(sources: Sources) -> None:
    _, state = global_batches(small_pipeline(sources), 1, 2)
    stream = made(sources).for_rank(0, 1)
    next(iter(stream))
    let_run_ahead(stream)
    began = time.monotonic()
    stream.close()
    assert time.monotonic() - began < process._GRACE_S / 2  # told, not killed
    with pytest.raises(ConfigError, match="was closed"):
        next(iter(stream))
    with pytest.raises(StateError, match="was closed"):
        stream.state_dict()
    stream.load_state_dict(state)
    assert next(iter(stream)).step == 3
    stream.close()


# ---- the trainer dies

STALLS = """
stream = made().map(processes.stall_elsewhere).for_rank(0, 1)
stalled = Path(os.environ["STALLED"])
threading.Thread(target=lambda: processes.soon(stalled.exists) and say("ready"), daemon=True).start()
next(iter(stream))
"""
FULL_RING = """
stream = made().for_rank(0, 1)
next(iter(stream))
processes.let_run_ahead(stream)
say("ready")
time.sleep(600)
"""


@pytest.mark.parametrize("text", [STALLS, FULL_RING], ids=["in a long read", "at a full ring"])
@pytest.mark.parametrize("whole_group", [False, True], ids=["alone", "with its group"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda s: s.name)
def test_nothing_outlives_a_trainer_that_a_signal_ends(
    sources: Sources, tmp_path: Path, text: str, number: signal.Signals, whole_group: bool
) -> None:
    script = Script(text, sources, STALLED=str(tmp_path / "stalled"))
    assert script.line() == "ready"
    assert script.alive()
    if whole_group and number != signal.SIGKILL:
        os.killpg(script.process.pid, number)
    else:
        script.process.send_signal(number)
    code, errors = script.end()
    assert code == -number
    assert errors.count("Traceback") == (number == signal.SIGINT)  # the trainer's own KeyboardInterrupt, no other


def test_a_trainer_that_catches_the_signal_of_its_group_can_still_read_and_save(sources: Sources) -> None:
    script = Script(
        """
        asked = []
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda *_: asked.append(1))
        stream = made().for_rank(0, 1)
        rank_steps(stream, 1)
        say("ready")
        while len(asked) < 2:
            time.sleep(0.01)
        rank_steps(stream, 20)
        say(len(stream.state_dict()["lane"]), stream.step)
        """,
        sources,
    )
    assert script.line() == "ready"
    for number in (signal.SIGTERM, signal.SIGUSR1):
        os.killpg(script.process.pid, number)
    assert script.line() == "2 21"
    assert script.end() == (0, "")


@pytest.mark.parametrize("ending", ["sys.exit(0)", "os._exit(0)", "1 / 0", "pass"])
def test_nothing_outlives_a_trainer_that_ends_by_itself(sources: Sources, ending: str) -> None:
    script = Script(f"stream = made().for_rank(0, 1)\nnext(iter(stream))\n{ending}", sources)
    code, errors = script.end()
    assert code == (ending == "1 / 0")
    assert ("ZeroDivisionError" in errors) == (ending == "1 / 0")
    assert "ResourceWarning" not in errors


def test_an_interrupt_while_the_process_starts_ends_both(sources: Sources, tmp_path: Path) -> None:
    (tmp_path / "slow_import.py").write_text(
        "import sys, time\nfrom pathlib import Path\nfrom tests.run.processes import elsewhere\n"
        f"if elsewhere(): Path({str(tmp_path / 'stalled')!r}).touch(); time.sleep(600)\n"
        "def same(record): return record\n"
    )
    script = Script(
        f"sys.path.append({str(tmp_path)!r}); import slow_import\n"
        "next(iter(made().map(slow_import.same).for_rank(0, 1)))",
        sources,
    )
    assert soon((tmp_path / "stalled").exists)
    script.process.send_signal(signal.SIGINT)
    code, errors = script.end()
    assert code == -signal.SIGINT
    assert "KeyboardInterrupt" in errors


def test_a_fork_of_the_trainer_neither_keeps_the_process_alive_nor_ends_it(sources: Sources, tmp_path: Path) -> None:
    script = Script(
        """
        stream = made().for_rank(0, 1)
        batches = iter(stream)
        next(batches)
        for ending in (lambda: sys.exit(0), stream.close, lambda: next(batches)):
            if (pid := os.fork()) == 0:
                try:
                    ending()
                except RunnerError as error:
                    say(error)
                sys.exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        rank_steps(stream, 30)
        closed = made().for_rank(0, 1)
        next(iter(closed))
        if (pid := os.fork()) == 0:  # which holds the socket open
            time.sleep(600)
        began = time.monotonic()
        closed.close()
        say(time.monotonic() - began < 2)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        parent = os.getpid()
        if os.fork() == 0:  # which holds the socket open
            assert processes.soon(lambda: os.getppid() != parent)
            say(processes.soon(lambda: not any(map(processes.is_loader, Path("/proc").glob("[0-9]*")))))
            os._exit(0)
        assert any(map(processes.is_loader, Path("/proc").glob("[0-9]*")))
        say("ready", stream.step)
        time.sleep(600)
        """,
        sources,
    )
    assert "a fork of it" in script.line()
    assert script.line() == "True"
    assert script.line() == "ready 31"
    script.process.kill()
    assert script.line() == "True"
    code, errors = script.end()
    assert (code, errors) == (-signal.SIGKILL, "")


def test_steps_that_a_killed_trainer_took_are_in_the_ledger(sources: Sources, tmp_path: Path) -> None:
    script = Script(
        f"""
        stream = made().options(ledger={str(tmp_path / "ledger")!r}).for_rank(0, 1)
        rank_steps(stream, 3)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        sources,
    )
    assert script.end()[0] == -signal.SIGKILL
    assert list(read_ledger(tmp_path / "ledger")) == [1, 2, 3]


# ---- how it is started, what it holds


@pytest.mark.parametrize("by", ["-c", "-"], ids=["python -c", "stdin"])
def test_any_kind_of_main_program_can_start_it_and_its_own_functions_are_refused(sources: Sources, by: str) -> None:
    script = Script(
        """
        import functools
        def own(record):
            return record
        class Own:
            def __call__(self, record):
                return record
        for function in (own, functools.partial(own), Own()):
            try:
                made().map(function, identity="own").for_rank(0, 1)
            except ConfigError as error:
                say("__main__" in str(error))
        stream = made().for_rank(0, 1)
        say(row_bytes(next(iter(stream)), 0).hex())
        """,
        sources,
        by=by,
    )
    assert [script.line() for _ in range(3)] == ["True"] * 3
    alone = small_pipeline({"alpha": sources["alpha"]}, lanes=2, global_batch_size=4)
    assert script.line() == row_bytes(next(iter(alone)), 0).hex()
    alone.close()
    assert script.end() == (0, "")


@pytest.mark.parametrize("functions", ["no_torch", "import_torch no_torch"])
def test_the_process_has_no_torch_though_the_main_program_imports_it(
    sources: Sources, tmp_path: Path, functions: str
) -> None:
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "main.py").write_text(
        f"import sys\nsys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]\nimport torch\n{HEAD}\n"
        f"pipeline = made()\nfor name in {functions.split()}: pipeline = pipeline.map(getattr(processes, name))\n"
        "rank_steps(pipeline.for_rank(0, 1), 20)\n"
        "say('torch' in sys.modules)\n"
    )
    script = Script("", sources, by=str(tmp_path / "main.py"))
    brought = "import_torch" in functions  # so that the check is seen to fail
    assert script.line() == ("" if brought else "True")
    code, errors = script.end()
    assert (code, "torch came with the main program" in errors) == (brought, brought)


def test_a_shared_memory_mount_of_64_kilobytes_does_not_matter(sources: Sources) -> None:
    own_mounts = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*own_mounts, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    script = HEAD + textwrap.dedent(
        """
        stream = made().pack_flat(max_length=4096).batch(microbatch_size=8).options(global_batch_size=8).for_rank(0, 1)
        for _, batch in zip(range(6), stream):
            say(batch.input.nbytes)
        pid = processes.child_of(stream)._process.pid
        print(open(f"/proc/{pid}/maps").read().count("/dev/shm"), os.listdir("/dev/shm"))
        """
    )
    done = subprocess.run(
        [*own_mounts, sys.executable, "-c", script, str(sources["alpha"]), str(tokenizer_folder())],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split("\n") == [str(8 * 8 * 4096)] * 6 + ["0 []", ""]


def test_starting_and_ending_leave_no_descriptor_and_no_process(sources: Sources) -> None:
    def descriptors() -> list[str]:
        return sorted(str(f.readlink()) for f in Path("/proc/self/fd").iterdir() if f.is_symlink())

    def once(how: str) -> None:
        stream = made(sources).for_rank(0, 1)
        batches = iter(stream)
        next(batches)
        [pid] = children()
        assert os.sched_getscheduler(pid) == os.SCHED_BATCH
        if how == "close":
            stream.close()
            stream.close()
        elif how == "load":
            stream.load_state_dict(global_batches(small_pipeline(sources), 1, 0)[1])
        del stream, batches
        gc.collect()
        assert children() == []

    once("close")
    before = len(descriptors())
    for how in ("close", "drop", "load"):
        for _ in range(2):
            once(how)
    assert len(descriptors()) == before, descriptors()
