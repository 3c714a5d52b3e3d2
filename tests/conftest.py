"""Hypothesis profiles, and which tests are collected where TorchTitan is missing.

``ci`` is the default: the same examples on every machine and every run. To look for new ones:
``pytest --hypothesis-profile explore``. What it finds is written down as an ``@example``.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from tests.scenarios import texts_of, write_jsonl

# What this machine has kept from other runs must not decide a test; processes that tests start inherit it.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="zephon-cache-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

settings.register_profile("ci", derandomize=True, database=None, deadline=None, max_examples=60)
settings.register_profile("explore", derandomize=False, database=None, deadline=None, max_examples=2000)
settings.load_profile("ci")

collect_ignore = [] if find_spec("torchtitan") else ["titan"]


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Path]:
    """Two sources of two JSONL shards each; modules with other needs have a fixture of the same name."""
    for name in ("news", "wiki"):
        for k in range(2):
            write_jsonl(tmp_path / name / f"{k}.jsonl", texts_of(80, first=1000 * k + len(name)))
    return {"news": tmp_path / "news", "wiki": tmp_path / "wiki"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=3, help="how often tests/titan/test_kill.py kills the trainer")
