"""For the tests of streams and processes: more data than elsewhere, and that no loader's process outlives its test."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.run.processes import Sources, children
from tests.scenarios import corpus


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return corpus(tmp_path / "data", 240)


@pytest.fixture
def nothing_is_left_behind() -> Iterator[None]:
    yield
    gc.collect()
    assert children() == []
