"""Threads against a process for the work of users' functions, with the GIL and without it.

What flows in: nothing; JPEGs and texts are made here, a Parquet source of each, whose `map` function makes the ids.
What flows out: records a second, medians of interleaved rounds with their spread, each measurement in a process of its
own behind a warm-up, and the ratios. One thread asks for the batches and does nothing else, so what a trainer's own
Python would add to the thread runner's load is not in it.

- image: JPEGs of 384 x 384 decoded by pillow, cut down to 32 x 32 grey values.
- text: documents of about 2,000 characters encoded by tiktoken, with a vocabulary made here.
- python: the same documents encoded by a loop in Python, which no C code helps to leave the GIL.

The engine wants a tokenizer also where sources hold ids. Where the package `tokenizers` does not install, that in
`stand_in/` takes its place; it encodes nothing here. Needs pillow and tiktoken; the rows without a GIL need a
free-threaded interpreter:

    python3.13t benchmarks/free_threading.py [--records 4000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import io
import itertools
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
SEQ_LEN, BATCH, VOCABULARY, ROWS_A_GROUP = 1024, 8, 1 << 14, 8
WORK = {"image": 1.0, "text": 2.0, "python": 1.0}
"""What is done to a record, and how many records of it for one image."""
GIL = ("on", "off") if sysconfig.get_config_var("Py_GIL_DISABLED") else ("on",)
HOW = list(itertools.product(("thread", "process"), (1, 2), GIL))
"""Runner, workers, GIL."""
RATIOS = [
    (("thread", 1, "on"), ("process", 1, "on")),
    (("thread", 2, "on"), ("process", 2, "on")),
    (("thread", 2, "on"), ("thread", 1, "on")),
    (("thread", 1, "off"), ("process", 1, "off")),
    (("thread", 2, "off"), ("process", 2, "off")),
    (("thread", 2, "off"), ("thread", 1, "off")),
    (("thread", 1, "off"), ("thread", 1, "on")),
    (("thread", 2, "off"), ("thread", 2, "on")),
    (("thread", 2, "off"), ("process", 2, "on")),
]


# ---- what the user's functions do: importable, so that the loader's process finds them


def image(record: dict[str, Any]) -> dict[str, Any]:
    from PIL import Image

    with Image.open(io.BytesIO(record["data"])) as picture:
        return {"ids": np.asarray(picture.convert("L").resize((32, 32))).ravel()}


def text(record: dict[str, Any]) -> dict[str, Any]:
    return {"ids": encoding().encode_ordinary(record["data"])}


def python(record: dict[str, Any]) -> dict[str, Any]:
    ids, last = [], 0
    for character in record["data"]:
        last = (last * 31 + ord(character)) % VOCABULARY
        ids.append(last)
    return {"ids": ids}


@functools.cache
def encoding() -> Any:
    """Bytes, then the beginnings of the commonest words, shortest first, so that each is one byte more than another."""
    import tiktoken

    parts = {f" {word}"[:size].encode() for word in words()[:2000] for size in range(2, len(word) + 2)}
    ranks = {bytes([b]): b for b in range(256)}
    for part in sorted(parts, key=lambda p: (len(p), p)):
        ranks.setdefault(part, len(ranks))
    assert len(ranks) <= VOCABULARY
    return tiktoken.Encoding("made", pat_str=r" ?\p{L}+|\s+|.", mergeable_ranks=ranks, special_tokens={})


@functools.cache
def words() -> list[str]:
    """4,000 words of 2 to 9 letters, the commonest first."""
    rng = np.random.default_rng(1)
    return ["".join(map(chr, rng.integers(97, 123, size))) for size in rng.integers(2, 10, 4000)]


FUNCTIONS = {"image": image, "text": text, "python": python}


# ---- one measurement


def one() -> None:
    """Print [records a second, whether there was a GIL]. Run with this module imported by its name, so that the
    loader's process finds the functions in it."""
    what, runner, workers, folder, records = json.loads(sys.argv[1])
    from torchtitan_zephon import Dataset, Pipeline, StaticMixtureWorkSource, TokenEstimation

    source = StaticMixtureWorkSource(
        datasets=[Dataset.from_path("s", f"{folder}/{'image' if what == 'image' else 'text'}.parquet")],
        mixture={"s": 1.0},
        token_estimation=TokenEstimation(sample_bytes=4 * 4096),
        chunk_bytes=4096,  # of the column of ids, which is empty but for the functions: a chunk is a row group
    )
    pipeline = (
        Pipeline(source)
        .map(FUNCTIONS[what])
        .tokenize(tokenizer_id=f"{folder}/tokenizer.json", field="ids", add_bos=False, add_eos=False)
        .pack_flat(max_length=SEQ_LEN)
        .shuffle(buffer_size=16)
        .batch(microbatch_size=BATCH)
        .options(lanes=BATCH, workers=workers, runner=runner)
    )
    batches = iter(pipeline)
    begin = _pull(pipeline, batches, records / 4)
    started = time.perf_counter()
    end = _pull(pipeline, batches, begin + records)
    rate = (end - begin) / (time.perf_counter() - started)
    pipeline.close()
    print(json.dumps([rate, getattr(sys, "_is_gil_enabled", lambda: True)()]))


def _pull(pipeline: Any, batches: Any, records: float) -> int:
    """Take batches until so many records are in; returns how many are."""
    done = 0
    while done < records:
        next(batches)
        done = pipeline.stream.balance.read.records
    return done


# ---- all of them


def measure(folder: str, what: str, how: tuple[str, int, str], records: float) -> float:
    runner, workers, gil = how
    script = "import free_threading; free_threading.one()"
    stand_in = [] if importlib.util.find_spec("tokenizers") else [str(HERE / "stand_in")]
    before = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    path = os.pathsep.join([str(HERE), *stand_in, str(HERE.parent), *before])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHON_GIL": "1" if gil == "on" else "0"}
    arguments = json.dumps([what, runner, workers, folder, WORK[what] * records])
    done = subprocess.run(
        [sys.executable, "-c", script, arguments], stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    rate, had_gil = json.loads(done.stdout)
    assert had_gil == (gil == "on"), "a package turned the GIL on again"
    return float(rate)


def write(folder: Path) -> None:
    """512 images, 1,024 texts, and a tokenizer that gives no more than the size of the vocabulary."""
    from PIL import Image

    rng = np.random.default_rng(2)
    images = []
    for _ in range(64):
        rough = Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)).resize((384, 384))
        file = io.BytesIO()
        rough.save(file, "JPEG", quality=90)
        images.append(file.getvalue())
    chosen = np.minimum(rng.zipf(1.2, (1024, 330)) - 1, len(words()) - 1)
    texts = [" ".join(words()[w] for w in row) for row in chosen.tolist()]
    for name, data in (("image", images * 8), ("text", texts)):
        table = pa.table({"data": data, "ids": pa.array([[0]] * len(data), pa.list_(pa.int32()))})
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=ROWS_A_GROUP, compression="none")
    model = {"type": "WordLevel", "vocab": {str(i): i for i in range(VOCABULARY)}, "unk_token": "0"}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model}), "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=float, default=4000, help="images a measurement; of the others in proportion")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", nargs="*", choices=list(WORK), default=list(WORK))
    options = parser.parse_args()
    there = "the package" if importlib.util.find_spec("tokenizers") else "the stand-in"
    print(f"{sys.version}\n{os.cpu_count()} cores; tokenizers: {there}")
    found: dict[tuple[str, tuple[str, int, str]], list[float]] = {
        key: [] for key in itertools.product(options.work, HOW)
    }
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        for _ in range(options.rounds):
            for (what, how), rates in found.items():
                rates.append(measure(folder, what, how, options.records))
    print("work    runner   workers  GIL   records / s: min, median, max")
    for (what, (runner, workers, gil)), rates in found.items():
        figures = f"{min(rates):10.1f} {statistics.median(rates):9.1f} {max(rates):9.1f}"
        print(f"{what:7} {runner:8} {workers:7}  {gil:4} {figures}")
    for what, (a, b) in itertools.product(options.work, RATIOS):
        if a in HOW and b in HOW:
            ratios = sorted(x / y for x, y in zip(found[what, a], found[what, b], strict=True))
            names = [f"{runner}, {workers} workers, GIL {gil}" for runner, workers, gil in (a, b)]
            print(f"{what}: {' / '.join(names)}: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
