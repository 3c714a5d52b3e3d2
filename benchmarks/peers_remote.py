"""Loaders on one corpus behind ``s3://`` on this machine, in one run: tokens per CPU second.

What flows in: a folder of JSONL (each subfolder is a source) and a tokenizer. What flows out: a Markdown table of
medians (minimum to maximum). The workload and the measuring are those of ``peers.py``: each measurement is a fresh
process in the loader's own throw-away environment, and CPU is of that process and its children, not of the server.
Every source is in the bucket as JSONL packed with zstd, as Parquet, and as Mosaic Streaming's own format.

    PYTHONPATH=. python benchmarks/peers_remote.py CORPUS/jsonl CORPUS/tokenizer [--rounds 2] [--environments FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import peers
import pyarrow as pa
import pyarrow.parquet as pq
from backports import zstd

from tests.servers.s3 import environment, make_bucket, put_folder, start_s3

BUCKET = "corpus"
peers.ENVIRONMENTS["ours"] = (".[s3]", "fastokens==0.3.5")
peers.ENVIRONMENTS["datasets"] = ("datasets==4.7.0", "s3fs", "zstandard", "tokenizers")
ROWS = {
    peers.BARE: (peers.Entry("bare", "ours"), ""),
    "torchtitan_zephon, JSONL.zst": (peers.Entry("ours", "ours"), "zst"),
    "torchtitan_zephon, Parquet": (peers.Entry("ours", "ours"), "parquet"),
    "torchtitan_zephon, JSONL.zst, fastokens": (peers.Entry("ours", "ours", "fastokens"), "zst"),
    "datasets 4.7 streaming, JSONL.zst": (peers.Entry("datasets", "datasets"), "zst"),
    "datasets 4.7 streaming, Parquet": (peers.Entry("datasets", "datasets"), "parquet"),
    "Mosaic Streaming 0.13, MDS": (peers.Entry("mosaic", "mosaic"), "mds"),
}
"""A row of the table -> how it is run, and which copy of the corpus it reads."""


def main() -> int:
    options = _options()
    peers.ENTRIES.update({name: entry for name, (entry, _) in ROWS.items()})
    with tempfile.TemporaryDirectory() as scratch, start_s3() as url:
        bench = peers.Bench(options, options.environments or Path(scratch, "environments"), Path(scratch))
        for name in dict.fromkeys(entry.environment for entry, _ in ROWS.values()):
            bench.install(name)
        write_copies(options.corpus, Path(scratch, "copies"))
        bench.prepare("Mosaic Streaming 0.13, MDS")
        (bench.prepared / "mds").rename(Path(scratch, "copies", "mds"))
        os.environ.update(environment(url), S3_ENDPOINT_URL=url)
        make_bucket(url, BUCKET)
        put_folder(url, BUCKET, Path(scratch, "copies"))
        rounds = []
        for number in range(options.rounds):
            for name, (_, copy) in ROWS.items():
                print(f"round {number}: {name}", file=sys.stderr)
                window = {"cycle": peers.CYCLE_BATCHES, "seconds": options.seconds, "step_batches": 8}
                remote = f"s3://{BUCKET}/{copy}" if copy else ""
                result = bench.run(name, task="measure", save=str(bench.scratch / "state"), remote=remote, **window)
                rounds.append({"round": number, "loader": name, "workers": 1} | result)
        peers._relate(rounds)
        print(peers._table(rounds, {}))
        print(json.dumps(rounds), file=sys.stderr)
    return 0


def write_copies(corpus: Path, folder: Path) -> None:
    """Every source below ``folder`` as ``zst/NAME/*.jsonl.zst`` and ``parquet/NAME/*.parquet``."""
    for file in sorted(corpus.rglob("*.jsonl")):
        name = file.relative_to(corpus).parent
        for copy in ("zst", "parquet"):
            (folder / copy / name).mkdir(parents=True, exist_ok=True)
        data = file.read_bytes()
        (folder / "zst" / name / f"{file.name}.zst").write_bytes(zstd.compress(data))
        texts = [json.loads(line)["text"] for line in data.splitlines()]
        pq.write_table(
            pa.table({"text": texts}), folder / "parquet" / name / f"{file.stem}.parquet", row_group_size=1000
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--seconds", type=float, default=10, help="least length of a measured window")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--environments", type=Path, help="folder of the throw-away environments; kept if given")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
