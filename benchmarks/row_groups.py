"""What many small row groups cost: the same rows in 4 row groups of 9 columns, in 1,050, and in 40,000.

What flows in: nothing; the files are made. What flows out: for each file the CPU seconds until its source is open, the
CPU seconds that reading takes per MB of text (and how many of its row groups were read for that), and the growth of
memory, each in a process of its own.

    python benchmarks/row_groups.py FOLDER [--groups 4 1050 40000] [--most-groups 1050]
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from torchtitan_zephon.documents import read_documents
from torchtitan_zephon.plan.chunking import Chunk
from torchtitan_zephon.read.settings import SourceConfig
from torchtitan_zephon.read.source import open_source

ROWS = 42_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--groups", type=int, nargs="+", default=[4, 1050, 40_000])
    parser.add_argument("--most-groups", type=int, default=1050, help="read so many of a file's row groups")
    parser.add_argument("--measure", type=Path, help="this file, in this process")
    options = parser.parse_args()
    if options.measure is not None:
        measure(options.measure, options.most_groups)
        return
    for groups in options.groups:
        path = options.folder / f"{groups}.parquet"
        if not path.exists():
            write(path, groups)
        command = [sys.executable, __file__, str(options.folder), "--measure", str(path)]
        subprocess.run([*command, "--most-groups", str(options.most_groups)], check=True)


def write(path: Path, groups: int) -> None:
    """The rows (or so many of them as there are groups) with 8 columns beside the text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    words, numbers = [f"w{n}" for n in range(5000)], random.Random(1)
    texts = [" ".join(numbers.choices(words, k=60)) for _ in range(ROWS)]
    columns = {f"number_{i}": pa.array(range(ROWS)) for i in range(4)}
    more = {f"string_{i}": pa.array([str(n) for n in range(ROWS)]) for i in range(4)}
    rows = max(1, ROWS // groups)
    table = pa.table({**columns, "text": texts, **more}).slice(0, rows * groups)
    pq.write_table(table, path, row_group_size=rows)


def measure(path: Path, most: int) -> None:
    before, started = resident_mib(), time.process_time()
    source = open_source("s", SourceConfig(path=str(path)))
    opened = time.process_time() - started
    units = source.reader.pieces().units.tolist()
    every = max(1, len(units) // most)
    cpu, size = time.process_time(), 0
    pieces = range(0, len(units), every)
    for piece in pieces:
        chunk = Chunk(0, 0, 0, piece, 0, units[piece], 1)
        size += sum(len(text) for text in read_documents(source, chunk, ()).values["text"])
    cpu = time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{path.name}: open in {opened:.2f} CPU s; {cpu / size * 1e6:.4f} CPU s per MB of text ({len(pieces)} row "
        f"groups, {size / 1e6:.1f} MB); memory {before:.0f} MiB, then {resident_mib():.0f}, at most {peak:.0f}",
        flush=True,
    )


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


if __name__ == "__main__":
    main()
