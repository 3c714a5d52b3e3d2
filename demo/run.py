"""The demo: one training job on 4 ranks, stopped, and resumed on 2 and on 8, compared batch by batch.

What flows in: ``train_configs/demo.toml``, run by torchrun as any job is. What flows out: a table of
the SHA-256 of every global batch, and exit status 0 only if every run gave the same ones. Logs,
checkpoints and ledgers stay below ``outputs/demo``. Takes a few minutes on two CPU cores; no GPU.

    python demo/run.py                  4 ranks straight; 4 stopped at step 6, resumed on 2 and on 8
    python demo/run.py --change-a-byte  the same stop, then one byte of a source changed: a resume must refuse
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchtitan_zephon.errors import ZephonError
from torchtitan_zephon.ledger import read_ledger

ROOT = Path(__file__).resolve().parent.parent
OUTPUTS = ROOT / "outputs" / "demo"
STEPS, STOP = 12, 6
LOG_LINES_SHOWN = 30
TIMEOUT_S = 900

STEP = re.compile(r"\bstep:\s*(\d+)\b(?:.*?\bloss:\s*([\d.]+))?")
COLOUR = re.compile(r"\x1b\[[\d;]*m")
OTHER_LINE = re.compile(r"^\[titan\]|^/\S+:\d+: ")
AFTERMATH = re.compile(r"Sending process \d+ closing signal|failed \(exitcode")
REFUSAL = re.compile(r"^torchtitan_zephon: (?!CPU mode)")


class Failed(Exception):
    """The demo failed; the message is what a person needs to see."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One torchrun job. Its log is ``<outputs>/<name>.log``, its dump folder ``<outputs>/<name>``."""

    name: str
    title: str
    ranks: int
    last_step: int
    job: Path = ROOT / "train_configs" / "demo.toml"
    outputs: Path = OUTPUTS

    @property
    def folder(self) -> Path:
        return self.outputs / self.name

    @property
    def log(self) -> Path:
        return self.outputs / f"{self.name}.log"

    @property
    def command(self) -> list[str]:
        """``torchrun ... -m torchtitan_zephon.train ...`` of this interpreter."""
        return [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(self.ranks),
            "-m",
            "torchtitan_zephon.train",
            "--job.config_file",
            str(self.job),
            "--job.dump_folder",
            str(self.folder),
            "--training.steps",
            str(self.last_step),
        ]


def execute(run: Run) -> int:
    """Run to the end with one live line on the terminal; the exit status. Its processes end with it."""
    run.outputs.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    # One thread a rank: the ranks already share the cores.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    with open(run.log, "wb") as log:
        process = subprocess.Popen(
            run.command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while process.poll() is None:
            elapsed_s = time.monotonic() - started
            if elapsed_s > TIMEOUT_S:
                raise Failed(f"{run.title}: not finished after {TIMEOUT_S} s.\n{tail(run.log)}")
            show(f"{run.title:<42} {progress(run):<28} {elapsed_s:4.0f} s", live=True)
            time.sleep(0.5)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
    outcome = progress(run) if process.returncode == 0 else f"ended with status {process.returncode}"
    show(f"{run.title:<42} {outcome:<28} {time.monotonic() - started:4.0f} s", live=False)
    return process.returncode


def must_succeed(run: Run) -> None:
    """Run ``run``; ``Failed`` with the end of its log if it fails."""
    if execute(run):
        raise Failed(f"{run.title}: the run failed.\n{tail(run.log)}")


def progress(run: Run) -> str:
    """Where a run is, read from its log."""
    step, loss = 0, ""
    for found in STEP.finditer(COLOUR.sub("", run.log.read_text("utf-8", "replace"))):
        if int(found[1]) >= step:
            step, loss = int(found[1]), found[2] or loss
    return f"step {step:2}/{run.last_step}  loss {loss}" if step else f"starting {run.ranks} processes"


def show(line: str, *, live: bool) -> None:
    """Print ``line``; a live one only on a terminal, to be overwritten by the next."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[K{line[:width] if live else line}", end="" if live else "\n", flush=True)
    elif not live:
        print(line, flush=True)


def tail(log: Path) -> str:
    """The last lines of a log, without colours and without torchrun's account of how the ranks ended."""
    lines = COLOUR.sub("", log.read_text("utf-8", "replace")).splitlines()
    end = next((n for n, line in enumerate(lines) if AFTERMATH.search(line)), len(lines))
    lines = lines[:end] or lines
    return "\n".join([f"last lines of {log}:", *(f"  | {line}" for line in lines[-LOG_LINES_SHOWN:])])


def hashes(folder: Path) -> dict[int, str]:
    """Step to SHA-256 of the run whose dump folder is ``folder``."""
    return {step: record.sha256 for step, record in read_ledger(folder / "ledger").items()}


def table(reference: Mapping[int, str], resumed: Mapping[int, Mapping[int, str]]) -> tuple[str, list[str]]:
    """The printed table and what differs. ``resumed``: ranks to step to SHA-256.

    A cell is the verdict on that run's hash of that step, against the straight run's in the row.
    """
    lines = [
        f"{'step':>4} | {'SHA-256 of the global batch':<64} | 4 straight"
        + "".join(f" | {ranks} resumed" for ranks in resumed)
    ]
    lines.append("-" * len(lines[0]))
    differences = []
    for step in range(1, STEPS + 1):
        expected = reference.get(step)
        cells = [f"{'reference' if expected else 'missing':<10}"]
        if not expected:
            differences.append(f"step {step}, 4 straight: no hash in the ledger")
        for ranks, found in resumed.items():
            same = expected is not None and found.get(step) == expected
            verdict = "missing" if step not in found else "same" if same else "DIFFERS"
            cells.append(f"{verdict + '*' if same and step <= STOP else verdict:<9}")
            if not same:
                differences.append(
                    f"step {step}, {ranks} resumed:\n  straight {expected}\n  resumed  {found.get(step)}"
                )
        lines.append(f"{step:>4} | {expected or '-':<64} | {' | '.join(cells)}".rstrip())
    lines.append(f"* written by the 4-rank run that was stopped after step {STOP}")
    return "\n".join(lines), differences


def compare() -> None:
    """Straight on 4 ranks; stopped on 4 and resumed on 2 and 8; the table. ``Failed`` on any difference."""
    straight = Run(name="straight-4", title=f"4 ranks, steps 1-{STEPS}", ranks=4, last_step=STEPS)
    stopped = Run(name="stopped-4", title=f"4 ranks, stopped after step {STOP}", ranks=4, last_step=STOP)
    resumed = {
        n: Run(name=f"resumed-{n}", title=f"{n} ranks, resumed for steps {STOP + 1}-{STEPS}", ranks=n, last_step=STEPS)
        for n in (2, 8)
    }
    fresh(straight, stopped, *resumed.values())
    must_succeed(straight)
    must_succeed(stopped)
    for run in resumed.values():
        shutil.copytree(stopped.folder, run.folder)
        must_succeed(run)
    printed, differences = table(hashes(straight.folder), {n: hashes(run.folder) for n, run in resumed.items()})
    print(f"\n{printed}\n")
    if differences:
        raise Failed("NOT identical:\n" + "\n".join(differences))
    print(
        f"Identical: the same {STEPS} global batches, in the same order, on 4 ranks straight through and on 4 ranks\n"
        f"stopped after step {STOP} and resumed on 2 and on 8. Logs and ledgers: {OUTPUTS}"
    )


def change_a_byte() -> None:
    """Stop, change one byte of a copy of the data, resume. ``Failed`` unless the resume is refused."""
    outputs = OUTPUTS / "change-a-byte"
    copy = outputs / "copy"
    job = copy / "train_configs" / "demo.toml"
    stopped = Run(
        name="stopped-4", title=f"4 ranks, stopped after step {STOP}", ranks=4, last_step=STOP, job=job, outputs=outputs
    )
    resumed = Run(
        name="resumed-2", title="2 ranks, resumed after the change", ranks=2, last_step=STEPS, job=job, outputs=outputs
    )
    shutil.rmtree(outputs, ignore_errors=True)
    for part in ("demo/data", "configs/demo.toml", "train_configs/demo.toml"):
        source, target = ROOT / part, copy / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
    must_succeed(stopped)
    shutil.copytree(stopped.folder, resumed.folder)
    shard = copy / "demo" / "data" / "books" / "persuasion-0.jsonl"
    change = flip_letter(shard)
    print(f"changed one byte of source 'books': {shard.relative_to(copy)}, {change}")
    if not execute(resumed):
        raise Failed("The resume was NOT refused, although a source had changed.")
    refusal = find_refusal(resumed.log)
    if "checkpoint" not in refusal or "books" not in refusal or shard.name not in refusal:
        raise Failed(
            f"The resume ended, but not with a refusal that names source 'books' and the file.\n{tail(resumed.log)}"
        )
    if trained := [step for step in hashes(resumed.folder) if step > STOP]:
        raise Failed(f"The resume was refused only after it had delivered {trained}.")
    print(f"\nRefused, as it must be:\n\n{refusal}")


def flip_letter(shard: Path) -> str:
    """Change the case of the letter nearest behind the middle of ``shard``; says what was done."""
    content = bytearray(shard.read_bytes())
    at = len(content) // 2
    while not chr(content[at]).isascii() or not chr(content[at]).isalpha() or content[at - 1] == ord("\\"):
        at += 1
    before = content[at]
    content[at] ^= 0x20
    shard.write_bytes(content)
    return f"byte {at}: {chr(before)!r} -> {chr(content[at])!r}"


def find_refusal(log: Path) -> str:
    """The paragraph with which the trainer ended, up to the next log line, warning or torchrun's; '' if none."""
    lines = COLOUR.sub("", log.read_text("utf-8", "replace")).splitlines()
    starts = [n for n, line in enumerate(lines) if REFUSAL.search(line)]
    if not starts:
        return ""
    message = lines[starts[0] :]
    end = next((n for n, line in enumerate(message) if AFTERMATH.search(line) or OTHER_LINE.search(line)), len(message))
    return "\n".join(message[:end])


def fresh(*runs: Run) -> None:
    """Remove what an earlier demo left at the places of ``runs``."""
    for run in runs:
        shutil.rmtree(run.folder, ignore_errors=True)
        run.log.unlink(missing_ok=True)


def main() -> int:
    """Exit status: 0 identical (or refused, with ``--change-a-byte``), 1 otherwise, 130 interrupted."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--change-a-byte",
        action="store_true",
        help="check instead that a resume refuses a source that was changed by one byte",
    )
    started = time.monotonic()
    try:
        change_a_byte() if parser.parse_args().change_a_byte else compare()
    except (Failed, ZephonError) as error:
        show("", live=True)
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    print(f"\n{time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
