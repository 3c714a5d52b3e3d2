"""The real trainer on 16 processes, resumed from its checkpoint on 8 and on 32: each global batch is the same bytes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("torchtitan")

from tests.titan.scenarios import hashes, job_folder, trained

pytestmark = pytest.mark.slow
STEPS, SAVED_AT = 6, 3
WIDE = ("--zephon.lanes", "32", "--training.global_batch_size", "32", "--checkpoint.interval", str(SAVED_AT))


@pytest.fixture(scope="module")
def sixteen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, str]]:
    """The job's folder with a run of 16 ranks, and that run's global batches."""
    folder = job_folder(tmp_path_factory.mktemp("resize"))
    trained(folder, folder / "sixteen", 16, *WIDE, steps=STEPS)
    return folder, hashes(folder / "sixteen")


@pytest.mark.parametrize("processes", [8, 32])
def test_16_ranks_go_on_as_8_and_as_32(sixteen: tuple[Path, dict[int, str]], processes: int) -> None:
    folder, straight = sixteen
    assert sorted(straight) == list(range(1, STEPS + 1))
    dump = folder / f"resumed-{processes}"
    checkpoint = f"step-{SAVED_AT}"
    shutil.copytree(folder / "sixteen" / "checkpoint" / checkpoint, dump / "checkpoint" / checkpoint)
    output = trained(folder, dump, processes, *WIDE, steps=STEPS)
    assert f"Training starts at step {SAVED_AT + 1}" in output
    assert hashes(dump) == {step: straight[step] for step in range(SAVED_AT + 1, STEPS + 1)}
