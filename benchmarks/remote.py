"""Bytes fetched for every byte that is read, over ``s3://`` from a server on this machine.

What flows in: one source of about ``--mib`` MiB, as JSONL and as Parquet with small and with large row groups. What
flows out, for each: bytes fetched by byte consumed (of JSONL, of the file; of Parquet, of the compressed text column)
between the first batch and the end of ``--steps`` steps; requests for each MiB consumed; and connections. The bytes are
counted by a proxy, so they include what is fetched twice.

    PYTHONPATH=. python benchmarks/remote.py [--mib 64] [--steps 40]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.scenarios import small_pipeline, text_of, write_jsonl
from tests.servers.proxy import Proxy, start_proxy
from tests.servers.s3 import environment, make_bucket, put_folder, start_s3
from torchtitan_zephon.read.source import Source

BUCKET = "benchmark"


def documents(num_bytes: int) -> list[str]:
    """Texts of 200 bytes to 30 KB, as of web pages, each another one."""
    rng, texts, total = np.random.default_rng(1), list[str](), 0
    while total < num_bytes:
        words = int(np.clip(rng.lognormal(5.5, 1.0), 20, 5000))
        texts.append(text_of(len(texts), words))
        total += len(texts[-1].encode())
    return texts


def write(folder: Path, texts: list[str]) -> dict[str, float]:
    """Three sources below ``folder``; the bytes of each that are consumed in an epoch."""
    for part in range(4):
        write_jsonl(folder / "jsonl" / f"{part}.jsonl", texts[part::4])
        for name, rows in (("small groups", 1000), ("one group a file", 10**6)):
            (folder / name).mkdir(exist_ok=True)
            table = pa.table({"id": list(range(len(texts[part::4]))), "text": texts[part::4]})
            pq.write_table(table, folder / name / f"{part}.parquet", row_group_size=rows, use_dictionary=False)
    sizes = {"jsonl": float(sum(path.stat().st_size for path in (folder / "jsonl").iterdir()))}
    for name in ("small groups", "one group a file"):
        footers = [pq.read_metadata(path) for path in (folder / name).iterdir()]
        columns = [f.row_group(g).column(1) for f in footers for g in range(f.num_row_groups)]
        sizes[name] = float(sum(column.total_compressed_size for column in columns))
    return sizes


def measure(name: str, num_bytes: float, proxy: Proxy, steps: int, **options: Any) -> dict[str, Any]:
    """Read ``steps`` steps and count. So few lanes, as a lane's runs are to be as long as in a source of many GB."""
    pipeline = small_pipeline(
        {"s": f"s3://{BUCKET}/{name}"}, lanes=4, global_batch_size=32, local_batch_size=32, seq_len=8192,
        buffer_size=4, flush_every_sequences=10**6, chunk_bytes=256 * 1024,
    ).options(**options)  # fmt: skip
    stream = pipeline.for_rank(0, 1)
    table = stream.program.tables[0]
    share = num_bytes / float(table.pieces.sizes.sum())
    consumed, read = [0.0], Source.read

    def counted(source: Source, chunk: Any, *how: Any) -> Any:
        consumed[0] += chunk.num_bytes * share
        return read(source, chunk, *how)

    iterator = iter(stream)
    next(iterator)
    Source.read = counted  # type: ignore[method-assign]
    proxy.clear()
    for _ in range(steps):
        next(iterator)
    stream.close()
    Source.read = read  # type: ignore[method-assign]
    mib = consumed[0] / 2**20
    return {
        "source": name,
        **options,
        "consumed MiB": round(mib, 1),
        "fetched / consumed": round(proxy.body_bytes / consumed[0], 3),
        "requests / MiB": round(len(proxy.seen) / mib, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, start_s3() as server, start_proxy(server) as proxy:
        folder = Path(name)
        sizes = write(folder / "data", documents(options.mib * 2**20))
        os.environ.update(environment(proxy.url))
        make_bucket(server, BUCKET)
        put_folder(server, BUCKET, folder / "data")
        for source, num_bytes in sizes.items():
            print(json.dumps(measure(source, num_bytes, proxy, options.steps)), flush=True)
        kept = {"cache_folder": str(folder / "cache")}
        print(json.dumps(measure("one group a file", sizes["one group a file"], proxy, options.steps, **kept)))


if __name__ == "__main__":
    main()
