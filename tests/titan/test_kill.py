"""The real trainer, killed with -9 at random moments of a run that saves at every step, and restarted until it is done.

Every restart must go on from the last complete step, model and loader alike, and the batches of the whole
history must be those of a run that nobody killed. ``--kills N`` asks for more; a line a kill is printed.
"""

from __future__ import annotations

import random
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torchtitan")

from tests.titan.launches import Launch
from tests.titan.scenarios import JOB, ROOT, hashes, job_folder, trained

pytestmark = pytest.mark.slow
RANKS = (2, 1, 2, 1, 4)
STEPS_A_KILL = 2
"""Steps of the run for each kill: a launch is killed at its first, second or third save, so most do one or two."""
SAVE = "(Saving|Staging) the checkpoint"
SAVED = r"Finished saving the checkpoint.*in (\d+\.\d+) seconds"
SPREAD = 1.0
"""Kills come up to so many durations of a save behind its beginning: most inside the writing."""


@dataclass(frozen=True)
class Kill:
    """What one kill hit. ``cut_off``: the step whose save it interrupted, if any."""

    moment: str
    complete: int
    cut_off: int | None


def steps_in(dump: Path) -> tuple[list[int], list[int]]:
    """Steps whose save is complete, and those whose save was cut off."""
    complete, cut_off = [], []
    for folder in (dump / "checkpoint").glob("step-*"):
        (complete if (folder / ".metadata").is_file() else cut_off).append(int(folder.name.removeprefix("step-")))
    return sorted(complete), sorted(cut_off)


def written_at(dump: Path) -> dict[int, int]:
    """When each cut-off save was last written to, in ns."""
    folders = {step: dump / "checkpoint" / f"step-{step}" for step in steps_in(dump)[1]}
    return {step: max(f.stat().st_mtime_ns for f in (path, *path.iterdir())) for step, path in folders.items()}


def launch(folder: Path, dump: Path, processes: int, *overrides: object, steps: int) -> Launch:
    """A launch of the job that does not wait for its end."""
    job = folder / f"{dump.name}.toml"
    job.write_text(JOB.format(dump=dump, root=ROOT, data=folder / "data", steps=steps, validate="false"))
    return Launch(
        processes, "torchtitan_zephon.train", "--job.config_file", job, "--training.local_batch_size", 4,
        "--checkpoint.keep_latest_k", 3, *overrides, cwd=folder,
    )  # fmt: skip


def check_restart(output: str, complete: list[int], cut_off: list[int]) -> None:
    """Model, loader and trainer went on from the newest complete step, and every cut-off save was named."""
    if not complete:
        assert "Training starts at step 1" in output
        assert "Loading the checkpoint" not in output
        return
    newest = complete[-1]
    assert re.findall(r"Loading the checkpoint from \S*/step-(\d+)\.", output)[:1] == [str(newest)], output[-3000:]
    assert f"zephon: continuing behind step {newest}" in output
    assert f"Training starts at step {newest + 1}" in output
    for step in cut_off:
        assert re.search(rf"step-{step} has no \.metadata", output), output[:3000]


def test_a_run_killed_at_random_moments_goes_on_exactly(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    kills = request.config.getoption("--kills")
    steps, rng = STEPS_A_KILL * kills + 2, random.Random(1)
    folder, dump = job_folder(tmp_path), tmp_path / "killed"
    trained(folder, tmp_path / "straight", 2, "--training.local_batch_size", "8", steps=steps)
    straight = hashes(tmp_path / "straight")
    assert sorted(straight) == list(range(1, steps + 1))
    done: list[Kill] = []
    save_s = 0.2
    for k in range(kills + 1):
        complete, cut_off = steps_in(dump)
        before = written_at(dump)
        mode, processes = "async" if k % 2 else "disabled", RANKS[k % len(RANKS)]
        run = launch(folder, dump, processes, "--checkpoint.async_mode", mode, "--checkpoint.interval", 1, steps=steps)
        if k == kills:
            assert run.wait() == 0, run.output[-4000:]
            check_restart(run.output, complete, cut_off)
            break
        began = time.monotonic()
        try:
            if k % 5 == 4:  # any moment: imports, start-up, restore, training
                delay = rng.uniform(1, 15)
                moment = f"{delay:.2f} s after the start"
                time.sleep(delay)
            else:
                nth, delay = rng.choice((1, 2, 2, 3)), rng.uniform(0, SPREAD * save_s)
                moment = f"{delay:.2f} s into save {nth} ({mode})"
                assert run.saw(SAVE, (nth - 1) * processes + 1), run.output[-4000:]  # each rank says it
                time.sleep(delay)
        finally:
            run.kill()
        if "Training starts at step" in run.output:
            check_restart(run.output, complete, cut_off)
        after = written_at(dump)
        hit = [step for step, at in after.items() if at != before.get(step)]
        done.append(Kill(moment, max(steps_in(dump)[0], default=0), hit[0] if hit else None))
        print(f"kill {k + 1}: {processes} ranks, {time.monotonic() - began:.1f} s, {done[-1]}", flush=True)  # noqa: T201
        if mode == "disabled" and (found := re.findall(SAVED, run.output)):
            save_s = float(found[-1])
        if (dump / "ledger").exists() and any((dump / "ledger").rglob("*.jsonl")):
            assert hashes(dump).items() <= straight.items()
    assert hashes(dump) == straight
    inside = sum(kill.cut_off is not None for kill in done)
    print(f"{kills} kills, {inside} inside a save, {steps} steps equal to the straight run's")  # noqa: T201


def test_a_terminated_run_ends_at_once_leaves_nothing_and_goes_on_exactly(tmp_path: Path) -> None:
    folder, dump, steps = job_folder(tmp_path), tmp_path / "terminated", 400
    run = launch(folder, dump, 2, "--checkpoint.interval", 1, steps=steps)
    try:
        assert run.saw(SAVED, 4), run.output[-4000:]
        began = time.monotonic()
        run.signal(signal.SIGTERM)
        assert run.wait() != 0
        took = time.monotonic() - began
        assert took < 10
        assert not run.pids()
    finally:
        run.kill()
    complete, cut_off = steps_in(dump)
    steps = complete[-1] + 2
    run = launch(folder, dump, 1, "--checkpoint.interval", 1, steps=steps)
    assert run.wait() == 0, run.output[-4000:]
    check_restart(run.output, complete, cut_off)
    trained(folder, tmp_path / "straight", 2, "--training.local_batch_size", "8", steps=steps)
    assert hashes(dump).items() >= hashes(tmp_path / "straight").items()
