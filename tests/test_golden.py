"""The order of the stream, recorded: per-step hashes and a checkpoint in ``tests/golden``.

They hold across machines, Python, numpy and tokenizers versions. A change of the order needs a new
``STREAM_FORMAT`` and a changelog line that says so; then ``python -m tests.test_golden`` records it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios import global_batches
from torchtitan_zephon import Dataset, Pipeline, StaticMixtureWorkSource
from torchtitan_zephon.identity import STREAM_FORMAT
from torchtitan_zephon.state import FORMAT

GOLDEN = Path(__file__).resolve().parent / "golden"
STEPS, SAVED_STEP = 24, 13
STREAMS: dict[str, dict[str, Any]] = {
    "wrap_shuffle": {},
    "first_fit": {"algorithm": "first_fit"},
    "finite": {"repeat": False},
    "wrap_across": {"label_shift": "sequence"},
}


def numbers(seed: int) -> Iterator[int]:
    """Knuth's MMIX generator: integers below 2**31 that need no library."""
    state = seed
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield state >> 33


def text_of(n: int) -> str:
    """A text of 1 to 60 made-up words of ASCII, accents and other scripts."""
    draw = numbers(n)
    syllables = ("ba", "ko", "ri", "sta", "lu", "mé", "Zü", "東", "the", "ing", "0", "7", "?", "🚀")
    words = ("".join(syllables[next(draw) % 14] for _ in range(1 + next(draw) % 4)) for _ in range(1 + next(draw) % 60))
    return " ".join(words)


def write_corpus(folder: Path) -> None:
    """``books``: three JSONL files; ``notes``: one. Written byte by byte, so that every machine has the same."""
    files = {"books/part-2.jsonl": 60, "books/part-10.jsonl": 50, "books/ä.jsonl": 5, "notes.jsonl": 45}
    n = 0
    for name, count in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        texts = [text_of(n + i) for i in range(count)]
        n += count
        lines = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts]
        (folder / name).write_bytes("".join(lines).encode())


def pipeline_over(
    folder: Path, *, algorithm: Any = "wrap", label_shift: Any = "document", repeat: bool = True, backend: Any = "hf"
) -> Pipeline:
    """Lanes of a few chunks each, so that these steps meet flushes, carries and a second epoch."""
    source = StaticMixtureWorkSource(
        datasets=[
            Dataset.from_path("books", str(folder / "books")),
            Dataset.from_path("notes", str(folder / "notes.jsonl")),
        ],
        mixture={"books": 2.0, "notes": 1.0},
        seed=42,
        repeat=repeat,
        chunk_bytes=4096,
    )
    return (
        Pipeline(source)
        .tokenize(tokenizer_id=str(GOLDEN))
        .pack_flat(max_length=32, algorithm=algorithm, label_shift=label_shift)
        .shuffle(buffer_size=40, seed=43)
        .batch(microbatch_size=2)
        .options(lanes=4, global_batch_size=32, flush_every_sequences=30, tokenizer_backend=backend)
    )


def read_golden(name: str) -> tuple[int, list[str]]:
    """The stream format that a file was recorded with, and the hash of each step."""
    head, *lines = (GOLDEN / f"{name}.txt").read_text("utf-8").splitlines()
    steps = [line.split() for line in lines]
    assert [int(step) for step, _ in steps] == list(range(1, len(steps) + 1))
    return int(head.removeprefix("stream format ")), [sha256 for _, sha256 in steps]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    write_corpus(folder)
    return folder


CHANGED = (
    "\nThe order of the stream has changed: runs that began before cannot be continued. If that is meant, raise "
    "STREAM_FORMAT in identity.py, say so in CHANGELOG.md, and record: python -m tests.test_golden"
)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize(("dp_degree", "backend"), [(1, "hf"), (4, "hf"), (2, "fastokens")])
def test_the_stream_is_the_recorded_one(name: str, dp_degree: int, backend: str, folder: Path) -> None:
    recorded_format, recorded = read_golden(name)
    assert recorded_format == STREAM_FORMAT, CHANGED
    steps = 1000 if name == "finite" else STEPS
    hashes, _ = global_batches(pipeline_over(folder, **STREAMS[name], backend=backend), dp_degree, steps)
    assert hashes == recorded, CHANGED


def test_the_recorded_streams_are_long_enough_to_mean_something() -> None:
    for name in STREAMS:
        _, recorded = read_golden(name)
        assert len(recorded) >= 10
        assert len(set(recorded)) == len(recorded)


@pytest.mark.parametrize("dp_degree", [1, 2, 4])
def test_the_recorded_checkpoint_loads_and_goes_on_with_the_recorded_batches(dp_degree: int, folder: Path) -> None:
    saved = json.loads((GOLDEN / "checkpoint.json").read_text("utf-8"))
    state = {"stream": saved["stream"].encode(), "lane": {k: v.encode() for k, v in saved["lane"].items()}}
    _, recorded = read_golden("wrap_shuffle")
    hashes, _ = global_batches(pipeline_over(folder), dp_degree, STEPS - SAVED_STEP, state)
    assert hashes == saved["next"] == recorded[SAVED_STEP:], CHANGED


def test_the_recorded_checkpoint_is_what_is_saved_today(folder: Path) -> None:
    saved = json.loads((GOLDEN / "checkpoint.json").read_text("utf-8"))
    _, state = global_batches(pipeline_over(folder), 2, SAVED_STEP)
    assert state["stream"].decode() == saved["stream"]
    assert {name: data.decode() for name, data in state["lane"].items()} == saved["lane"]


def test_the_changelog_states_the_formats_of_stream_and_state() -> None:
    changelog = (GOLDEN.parent.parent / "CHANGELOG.md").read_text("utf-8")
    assert f"Stream format {STREAM_FORMAT}." in changelog
    assert f"State format {FORMAT}." in changelog


def record(folder: Path) -> None:
    """Write the golden files; refuses to record another order under the same stream format."""
    for name, changes in STREAMS.items():
        file = GOLDEN / f"{name}.txt"
        hashes, _ = global_batches(pipeline_over(folder, **changes), 1, 1000 if name == "finite" else STEPS)
        if file.exists() and read_golden(name)[0] == STREAM_FORMAT and read_golden(name)[1] != hashes:
            sys.exit(f"{file.name} was recorded with stream format {STREAM_FORMAT} and differs.{CHANGED}")
        lines = [f"{step:3d}  {sha256}\n" for step, sha256 in enumerate(hashes, 1)]
        file.write_text(f"stream format {STREAM_FORMAT}\n" + "".join(lines), "utf-8")
    _, state = global_batches(pipeline_over(folder), 1, SAVED_STEP)
    following, _ = global_batches(pipeline_over(folder), 1, STEPS - SAVED_STEP, state)
    value = {
        "stream": state["stream"].decode(),
        "lane": {name: data.decode() for name, data in state["lane"].items()},
        "next": following,
    }
    (GOLDEN / "checkpoint.json").write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        write_corpus(Path(name))
        record(Path(name))
