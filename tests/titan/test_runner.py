"""TorchTitan's loader and the torch dataset with ``runner = "process"``: as in threads, and without torch in it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchtitan")

import torch
from torchtitan.components.tokenizer import HuggingFaceTokenizer

from tests.run.processes import children
from tests.scenarios import small_pipeline, tokenizer_folder
from tests.titan.scenarios import build
from torchtitan_zephon import Recipe, RunSettings, SourceConfig
from torchtitan_zephon.titan.feed import Feed
from torchtitan_zephon.titan.loader import StreamLoader
from torchtitan_zephon.torch_dataset import TorchDataset


def loader(sources: dict[str, Path], runner: Any, **feed: Any) -> StreamLoader:
    named = {name: SourceConfig(path=str(path)) for name, path in sources.items()}
    recipe = Recipe(sources=named, lanes=4, chunk_bytes=4096, flush_every_sequences=8)
    tokenizer = HuggingFaceTokenizer(tokenizer_path=str(tokenizer_folder()))
    made = Feed(recipe=recipe, settings=RunSettings(runner=runner), global_batch_size=8, **feed)
    return build(made, tokenizer, seq_len=32, local=2, degree=2, rank=1)


def equal(a: Any, b: Any) -> bool:
    (ours, labels), (threads, expected) = a, b
    return torch.equal(labels, expected) and all(torch.equal(ours[name], threads[name]) for name in threads)


def test_the_loader_gives_the_same_tensors_states_and_figures_and_its_process_has_no_torch(
    sources: dict[str, Path],
) -> None:
    threads, ours = loader(sources, "thread"), loader(sources, "process")
    for _ in range(2):
        for pair in itertools.islice(zip(ours, threads, strict=True), 6):
            assert equal(*pair)
        assert ours.state_dict() == threads.state_dict()
        figures, expected = ours.gauges.read(), threads.gauges.read()
        timed = {"zephon/data_wait_seconds", "zephon/tokens_per_second", "zephon/restore_seconds"}
        assert {n: v for n, v in figures.items() if n not in timed} == {
            n: v for n, v in expected.items() if n not in timed
        }
        assert (figures["zephon/restore_seconds"] > 0) == (expected["zephon/restore_seconds"] > 0)
        [pid] = children()
        assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()
        assert "libtorch" in Path("/proc/self/maps").read_text()
        state = ours.state_dict()
        for each in (ours, threads):
            each.load_state_dict(state)
    ours.stream.close()
    threads.stream.close()
    assert children() == []


def test_a_validation_pass_ends_alike_and_leaves_no_process(sources: dict[str, Path]) -> None:
    expected = list(loader(sources, "thread", infinite=False))
    for _ in range(2):  # the validator builds a loader for each pass
        taken = list(loader(sources, "process", infinite=False))
        assert children() == []
        assert len(taken) == len(expected)
        assert all(map(equal, taken, expected))


def test_a_torch_dataset_gives_the_same_tensors(sources: dict[str, Path]) -> None:
    threads = small_pipeline(sources)
    ours = TorchDataset(small_pipeline(sources).options(runner="process"))
    for batch, expected in itertools.islice(zip(ours, TorchDataset(threads), strict=True), 8):
        assert all(torch.equal(batch[name], expected[name]) for name in expected)
    assert ours.state_dict() == threads.state_dict()
    threads.close()
    ours._pipeline.close()
