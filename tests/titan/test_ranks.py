"""Ranks that see different data do not train: the real trainer, and processes without TorchTitan."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torchtitan")

import torch.distributed as dist

from tests.titan.scenarios import JOB, ROOT, job_folder, torchrun
from torchtitan_zephon import ConfigError
from torchtitan_zephon.plan.layout import Layout
from torchtitan_zephon.run.agree import alone
from torchtitan_zephon.titan.ranks import StoreBoard, exchange_of_job
from torchtitan_zephon.torch_exchange import SHORT_BYTES, torch_exchange

slow = pytest.mark.slow


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_every_rank_reads_the_last_note_of_each_and_waits_for_none() -> None:
    boards = [
        StoreBoard(Layout(lanes=2, global_batch_size=2, dp_degree=2, dp_rank=rank, local_batch_size=1))
        for rank in range(2)
    ]
    assert boards[0].notes() == [b"", b""]
    boards[1].post(b"first")
    boards[1].post(b"second")
    for board in boards:
        assert board.notes() == [b"", b"second"]


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("size", [0, 1, SHORT_BYTES, SHORT_BYTES + 1, 3_000_000])
def test_what_is_exchanged_is_what_was_said_short_or_long(size: int) -> None:
    said = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    assert torch_exchange(said) == [said]


@pytest.mark.usefixtures("group")
def test_a_process_alone_has_nobody_to_compare_with() -> None:
    assert torch_exchange(b"a") == [b"a"]
    assert exchange_of_job() is alone


def test_an_exchange_without_a_process_group_says_what_to_call() -> None:
    assert exchange_of_job() is alone
    with pytest.raises(ConfigError, match=r"before torch\.distributed\.init_process_group"):
        torch_exchange(b"a")


def test_the_fake_backend_of_torchtitan_has_no_other_rank() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        assert exchange_of_job() is alone
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What rank 0 sees, what rank 1 sees, and ``job.toml`` in the former, with paths relative to the working folder."""
    here = job_folder(tmp_path_factory.mktemp("ranks"))
    (here / "job.toml").write_text(JOB.format(dump=here / "dump", root=ROOT, data="data", steps=2, validate="false"))
    return [here, tmp_path_factory.mktemp("odd")]


def refused(folders: list[Path], *overrides: str) -> str:
    """What two ranks say that work in ``folders``; they must end by themselves, without a model or a checkpoint."""
    sources = [f"--zephon.sources.{name}.path=data/{name}" for name in ("books", "docs")]
    job = ("--job.config_file", folders[0] / "job.toml", *sources, *overrides)
    code, output = torchrun(2, "tests.titan.odd_rank", *folders, "--", *job)
    assert code != 0
    assert "Building llama3" not in output
    assert not (folders[0] / "dump" / "checkpoint").exists()
    assert len(re.findall("(?m)^torchtitan_zephon: (?!CPU mode)", output)) == 1, output[-6000:]
    table = output[output.index(" FAILED\n") :]
    assert "<NO_OTHER_FAILURES>" in table, "of the node's first rank only"
    assert "traceback : torchtitan_zephon: " in table
    assert "torchtitan_zephon.errors" not in output
    return re.sub(r"\s+", " ", output)


@slow
def test_a_file_that_one_rank_does_not_see_stops_both_before_a_model_is_built(folders: list[Path]) -> None:
    shutil.copytree(folders[0] / "data", folders[1] / "data")
    (folders[1] / "data" / "books" / "persuasion-1.jsonl").unlink()
    text = refused(folders)
    assert re.search(r"rank 1 of 2 \(on \S+\) cannot read its data, so no rank begins: source 'books': ", text)
    assert "books/persuasion-1.jsonl' on rank 1 of 2 is not there; rank 0, which lists the files of all ranks" in text


@slow
def test_a_tensor_parallel_peer_that_cannot_list_a_source_tells_the_others(folders: list[Path]) -> None:
    shutil.rmtree(folders[1])
    shutil.copytree(folders[0] / "data", folders[1] / "data")
    shutil.rmtree(folders[1] / "data" / "docs")
    text = refused(folders, "--parallelism.tensor_parallel_degree", "2")
    assert re.search(
        r"rank 1 of 2 \(on \S+\) cannot read its data, so no rank begins: source 'docs': there is no", text
    )


@slow
def test_the_snippet_of_the_docs_compares_two_processes(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-it-works.md").read_text("utf-8")
    [snippet] = re.findall(r"```python\n(.*?torch_exchange.*?)```", page, re.DOTALL)
    script = tmp_path / "snippet.py"
    script.write_text(
        "import os, sys\nos.chdir(sys.argv[1 + int(os.environ['RANK'])])\n"
        + snippet.replace("dist.destroy_process_group()", "print('trained', batch.step)\ndist.destroy_process_group()")
    )
    odd = tmp_path / "odd"
    shutil.copytree(ROOT / "demo", odd / "demo", ignore=shutil.ignore_patterns("*.py"))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]

    def run(*folders: Path) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        return subprocess.run([*command, *map(str, folders)], env=environ, capture_output=True, text=True, timeout=600)

    alike = run(ROOT, odd)
    assert alike.returncode == 0, alike.stderr[-3000:]
    assert alike.stdout.count("trained") == 2
    (odd / "demo" / "data" / "books" / "persuasion-1.jsonl").unlink()
    different = run(ROOT, odd)
    assert different.returncode != 0
    assert "trained" not in different.stdout
    assert different.stderr.count("rank 1 of 2") >= 1
    assert "books/persuasion-1.jsonl' on rank 1 of 2 is not there; rank 0, which" in different.stderr
