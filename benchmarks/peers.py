"""Five loaders, and the bare tokenizer, on one corpus in one run: speed, memory, restore, and what a resize keeps.

What flows in: a folder of JSONL (each subfolder is a source) and a tokenizer. What flows out: a Markdown table of
medians (minimum to maximum), one CSV row a round, and a plot. The workload: sources mixed equally -> bos, eos ->
packed to 2048 -> shuffle buffer of 128 sequences -> batches of 8, one rank, 1 and 2 workers. Each measurement is a
fresh process of the loader's own throw-away environment (`peers/worker.py`, `peers/load_*.py`); the window excludes
imports, the first batch and the filling of shuffle buffers. Processes are watched from outside, through /proc: CPU and
memory are of the whole session, children included. The resize runs 4 ranks, goes on from their states with 2, from
theirs with 8, and compares the SHA-256 of each global batch with 4 ranks that ran through.

    python benchmarks/peers.py CORPUS/jsonl CORPUS/tokenizer --csv peers.csv --plot peers.svg
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SAMPLE_S = 0.25
LIMIT_S = 900
WORKERS = (1, 2)
# Buffers fill and, at ours' every 256th sequence of each of 8 lanes, empty: up to 1.3 M tokens are delivered then that
# were tokenised before. So the warm-up is one such cycle, and a window is as many whole ones as fill --seconds.
CYCLE_BATCHES = 256

# A resize test runs smaller batches of shorter sequences: 4 sequences from each of 8 lanes a global batch.
WORLDS = (4, 2, 8)
RESIZE_STEPS = 40
RESIZE_BATCHES, RESIZE_ROWS, RESIZE_TOKENS = 8, 4, 512

ENVIRONMENTS = {
    "ours": (".", "fastokens==0.3.5"),
    "torchtitan": ("torch==2.13.0", "torchtitan==0.3.0", "triton"),
    "grain": ("grain==0.2.18", "tokenizers"),
    "mosaic": ("mosaicml-streaming==0.13.0", "tokenizers"),
    "zephon": ("zephon==0.2.0", "transformers"),
    "plot": ("matplotlib",),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the table: ``module`` of `peers/load_*.py` run in ``environment``."""

    module: str
    environment: str
    backend: str = "hf"


BARE = "bare HF tokenizer"
ENTRIES = {
    BARE: Entry("bare", "ours"),
    "torchtitan_zephon, hf": Entry("ours", "ours"),
    "torchtitan_zephon, fastokens": Entry("ours", "ours", "fastokens"),
    "TorchTitan 0.3.0": Entry("torchtitan", "torchtitan"),
    "Grain 0.2.18": Entry("grain", "grain"),
    "Mosaic Streaming 0.13": Entry("mosaic", "mosaic"),
    "zephon 0.2.0": Entry("zephon", "zephon"),
}

# Column of the table -> (key of a result, format).
COLUMNS = {
    "tokens / s": ("tokens_per_s", "{:,.0f}"),
    "CPU s / M tokens": ("cpu_s_per_m_tokens", "{:.3f}"),
    "x bare": ("ratio_to_bare", "{:.2f}"),
    "peak MB": ("peak_mb", "{:,.0f}"),
    "first batch, s": ("first_batch_s", "{:.2f}"),
    "state, bytes": ("state_bytes", "{:,.0f}"),
    "restore, s": ("restore_s", "{:.2f}"),
}

Result = dict[str, Any]


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(options, options.environments or Path(scratch, "environments"), Path(scratch))
        for environment in dict.fromkeys(ENTRIES[name].environment for name in options.loaders):
            bench.install(environment)
        if options.plot:
            bench.install("plot")
        prepared = {name: bench.prepare(name) for name in options.loaders}
        rounds = [
            bench.round(number, workers, name)
            for number in range(options.rounds)
            for workers in WORKERS
            for name in options.loaders
        ]
        _relate(rounds)
        resizes = {name: bench.resize(name) for name in options.loaders if name != BARE}
        print(_table(rounds, resizes))
        versions = ", ".join(f"{n}: {r.get('tokenizers', r.get('error'))}" for n, r in prepared.items())
        print(f"\nRelease of the package tokenizers. {versions}")
        if options.csv:
            _write(options.csv, rounds)
        if options.plot:
            bench.plot(rounds, options.plot)
    return 0


class Bench:
    """Environments, the prepared corpus and the measurements in them."""

    def __init__(self, options: argparse.Namespace, environments: Path, scratch: Path) -> None:
        self.options = options
        self.environments = environments.resolve()
        self.scratch = scratch
        self.prepared = scratch / "prepared"
        self.prepared.mkdir()
        self.checkout = scratch / "checkout"  # a copy, for building in place would leave a build folder in the original
        shutil.copytree(CHECKOUT / "torchtitan_zephon", self.checkout / "torchtitan_zephon")
        for file in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(CHECKOUT / file, self.checkout)

    def install(self, name: str) -> None:
        """Make an environment unless it is there; the checkout is installed anew each time."""
        folder = self.environments / name
        wanted = "\n".join(ENVIRONMENTS[name])
        done = folder / "installed.txt"
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        if not done.exists() or done.read_text("utf-8") != wanted:
            print(f"installing {name}", file=sys.stderr)
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            subprocess.run([*pip, *ENVIRONMENTS[name]], check=True, cwd=self.checkout)
            done.write_text(wanted, "utf-8")
        elif "." in ENVIRONMENTS[name]:
            subprocess.run([*pip, "--force-reinstall", "--no-deps", "."], check=True, cwd=self.checkout)

    def prepare(self, name: str) -> Result:
        return self.run(name, task="prepare")

    def round(self, number: int, workers: int, name: str) -> Result:
        """One measurement and one restore from its state."""
        print(f"round {number}, {workers} workers: {name}", file=sys.stderr)
        state = self.scratch / "state"
        result = {"round": number, "loader": name, "workers": workers}
        settings = {"workers": workers, "rows": 8, "tokens": 2048, "step_batches": 8}
        window = {"cycle": CYCLE_BATCHES, "seconds": self.options.seconds}
        result |= self.run(name, task="measure", save=str(state), **settings, **window)
        if "error" not in result and result["state_bytes"]:
            restored = self.run(name, task="restore", states=[str(state)], **settings)
            result |= {k: restored[k] for k in ("restore_s", "error") if k in restored}
        return result

    def resize(self, name: str) -> str:
        """What `WORLDS` one after another keep of the global batches of the first that runs through."""
        print(f"resize: {name}", file=sys.stderr)
        reference, states, verdicts = [], [], []
        for at, world in enumerate(WORLDS):
            first = at == 0
            saves = [str(self.scratch / f"state-{world}-{rank}") for rank in range(world)]
            steps = RESIZE_STEPS * len(WORLDS) if first else RESIZE_STEPS
            shared = {"task": "digest", "workers": 1, "rows": RESIZE_ROWS, "tokens": RESIZE_TOKENS, "world": world}
            shared |= {"step_batches": RESIZE_BATCHES // world, "steps": steps, "save_after": RESIZE_STEPS}
            batches, error = self.ranks(
                name, [shared | {"rank": r, "states": states, "save": saves[r]} for r in range(world)]
            )
            if error:
                change = f"{world}: does not run" if first else f"{WORLDS[at - 1]} -> {world}: refused"
                return "; ".join([*verdicts, f"{change} ({_short(error)})"])
            if first:
                reference = batches
            else:
                part = reference[at * RESIZE_STEPS : (at + 1) * RESIZE_STEPS]
                verdicts.append(f"{WORLDS[at - 1]} -> {world}: {_verdict(part, batches)}")
            states = saves
        return "; ".join(verdicts)

    def ranks(self, name: str, jobs: list[Result]) -> tuple[list[list[str]], str]:
        """Run all ranks at once, as one world; the rows of each global batch in rank order, or the first error."""
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        processes: list[subprocess.Popen[str]] = []
        with ThreadPoolExecutor(len(jobs)) as pool:
            futures = [pool.submit(self.run, name, port=port, started=processes.append, **job) for job in jobs]
            for future in as_completed(futures):
                if error := future.result().get("error"):
                    for process in processes:
                        _kill(process)
                    return [], error
        steps = zip(*(f.result()["steps"] for f in futures), strict=True)
        return [[row for rows in step for row in rows] for step in steps], ""

    def run(
        self, name: str, *, port: int = 0, started: Callable[[subprocess.Popen[str]], Any] = id, **job: Any
    ) -> Result:
        """One job in a fresh process of the loader's environment, watched from outside."""
        entry = ENTRIES[name]
        defaults = {"workers": 1, "rows": 8, "tokens": 2048, "loader": entry.module, "backend": entry.backend}
        paths = {"corpus": self.options.corpus, "tokenizer": self.options.tokenizer, "prepared": self.prepared}
        job = defaults | {k: str(p.resolve()) for k, p in paths.items()} | job
        rank, world = str(job.get("rank", 0)), str(job.get("world", 1))
        environ = os.environ | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        environ |= {"XDG_CACHE_HOME": str(self.scratch / "cache"), "HF_HOME": str(self.scratch / "hf")}
        environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        python = self.environments / entry.environment / "bin" / "python"
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                [str(python), str(HERE / "peers" / "worker.py"), json.dumps(job)],
                env=environ,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
            started(process)
            result = _watch(process)
            if result is None:
                errors.seek(0)
                last = (errors.read().strip().splitlines() or ["no word"])[-1]
                result = {"error": f"ended with {process.returncode}: {last}"}
        return result

    def plot(self, rounds: list[Result], svg: Path) -> None:
        _write(self.scratch / "rounds.csv", rounds)
        python = self.environments / "plot" / "bin" / "python"
        command = [str(python), str(HERE / "peers" / "plot.py"), str(self.scratch / "rounds.csv"), str(svg)]
        subprocess.run(command, check=True)


def _watch(process: subprocess.Popen[str]) -> Result | None:
    """Its JSON with CPU seconds between its marks and peak memory; None if it ended without or took too long."""
    peak_mb, cpu_s, last = [0.0], 0.0, ""

    def sample() -> None:
        while process.poll() is None:
            peak_mb[0] = max(peak_mb[0], sum(_pss_mb(pid) for pid, _ in _session(process.pid)))
            time.sleep(SAMPLE_S)

    sampler, limit = threading.Thread(target=sample), threading.Timer(LIMIT_S, _kill, [process])
    sampler.start()
    limit.start()
    assert process.stdout is not None
    for line in process.stdout:
        if line == "begin\n":
            cpu_s = _cpu_s(process.pid)
        elif line == "end\n":
            cpu_s = _cpu_s(process.pid) - cpu_s
        elif line.startswith("{"):
            last = line
    process.wait()
    limit.cancel()
    sampler.join()
    _kill(process)  # what it left running
    return json.loads(last) | {"cpu_s": cpu_s, "peak_mb": peak_mb[0]} if last else None


def _session(leader: int) -> Iterator[tuple[int, list[str]]]:
    """The living processes of the session of ``leader`` and the fields of their stat from the state on."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:  # it ended just now
            continue
        if int(fields[3]) == leader:
            yield int(file.parent.name), fields


def _cpu_s(leader: int) -> float:
    """CPU seconds of the session's processes and of the children they have waited for."""
    return sum(sum(map(int, fields[11:15])) for _, fields in _session(leader)) / TICKS_PER_S


def _pss_mb(pid: int) -> float:
    """Resident memory, pages shared by n processes counted as 1/n."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8").splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def _kill(process: subprocess.Popen[str]) -> None:
    """End all that is left of the session that this process leads."""
    for pid, _ in _session(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _verdict(reference: list[list[str]], batches: list[list[str]]) -> str:
    """How many global batches are the same, in order or as sets of sequences."""
    ordered = sum(_digest(a) == _digest(b) for a, b in zip(reference, batches, strict=True))
    as_sets = sum(_digest(sorted(a)) == _digest(sorted(b)) for a, b in zip(reference, batches, strict=True))
    if ordered == len(reference):
        return "same order"
    if as_sets == len(reference):
        return f"same set (order: {ordered} of {len(reference)})"
    return f"differs ({as_sets} of {len(reference)} the same)"


def _digest(rows: list[str]) -> str:
    return hashlib.sha256("".join(rows).encode()).hexdigest()


def _short(error: str) -> str:
    line = " ".join(error.split())
    return line if len(line) <= 120 else line[:117] + "..."


def _relate(rounds: list[Result]) -> None:
    """Add rates, and the ratio to the bare tokenizer with as many workers in the same round."""
    for result in rounds:
        if "tokens" in result:
            result["tokens_per_s"] = result["tokens"] / result["wall_s"]
            result["cpu_s_per_m_tokens"] = result["cpu_s"] / result["tokens"] * 1e6
    bare = {(r["round"], r["workers"]): r for r in rounds if r["loader"] == BARE}
    for result in rounds:
        if "tokens" in result:
            of = bare[result["round"], result["workers"]]["cpu_s_per_m_tokens"]
            result["ratio_to_bare"] = result["cpu_s_per_m_tokens"] / of


def _table(rounds: list[Result], resizes: dict[str, str]) -> str:
    """Median (minimum to maximum) of each loader and number of workers."""
    resized = " -> ".join(map(str, WORLDS)) + " ranks"
    head = ["loader", "workers", *COLUMNS, resized]
    rows = [head, ["---"] * len(head)]
    for name in dict.fromkeys(r["loader"] for r in rounds):
        for workers in WORKERS:
            mine = [r for r in rounds if (r["loader"], r["workers"]) == (name, workers)]
            cells = [_cell([r[key] for r in mine if key in r], form) for key, form in COLUMNS.values()]
            errors = [_short(r["error"]) for r in mine if "error" in r][:1]
            words = [resizes.get(name, "")] if workers == WORKERS[0] else []
            rows.append([name, str(workers), *cells, "; ".join([*words, *errors])])
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def _cell(values: list[float], form: str) -> str:
    if not any(values):
        return ""
    middle, low, high = (form.format(of(values)) for of in (statistics.median, min, max))
    return middle if low == high else f"{middle} ({low} to {high})"


def _write(path: Path, rounds: list[Result]) -> None:
    columns = [
        "round",
        "loader",
        "workers",
        "tokens",
        "wall_s",
        "cpu_s",
        *(key for key, _ in COLUMNS.values()),
        "error",
    ]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rounds)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--seconds", type=float, default=25, help="least length of a measured window")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--environments", type=Path, help="folder of the throw-away environments; kept if given")
    parser.add_argument("--loaders", nargs="+", choices=ENTRIES, default=list(ENTRIES), help="the bare row always runs")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--plot", type=Path, help="SVG of tokens per CPU second")
    options = parser.parse_args()
    options.loaders = list(dict.fromkeys([BARE, *options.loaders]))
    return options


if __name__ == "__main__":
    sys.exit(main())
