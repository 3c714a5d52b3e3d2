"""A format of another package: a real one, in a folder of its own, read through a pipeline in a new interpreter."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios import says
from torchtitan_zephon import SourceError
from torchtitan_zephon.read import formats
from torchtitan_zephon.read.settings import SourceConfig
from torchtitan_zephon.read.source import open_source

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT.joinpath("docs", "formats.md").read_text("utf-8").split("```python\n")[1].split("```")[0]
"""The example in the docs."""
DATA = [f"{n}: " + "a fact of so many words, " * (n % 9) for n in range(200)]


def install(folder: Path, code: str = PACKAGE, entry: str = "fixed = fixed_records:FORMAT") -> Path:
    """What ``pip install --target`` makes of a package of one module."""
    folder.mkdir(exist_ok=True)
    (folder / "fixed_records.py").write_text(code, "utf-8")
    info = folder / "fixed_records-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fixed-records\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{formats.ENTRY_POINTS}]\n{entry}\n")
    return folder


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder for packages; what is known of formats is forgotten before and after."""
    known = (formats.formats, formats.suffixes, formats.named_suffixes)
    for function in known:
        function.cache_clear()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "fixed_records", raising=False)
    yield tmp_path / "site"
    for function in known:
        function.cache_clear()


def write_fixed(path: Path) -> Path:
    path.write_bytes(b"".join(text.encode().ljust(256) for text in DATA))
    return path


def test_a_format_of_another_package_is_found_by_its_suffix(fresh: Path, tmp_path: Path) -> None:
    install(fresh)
    importlib.invalidate_caches()
    write_fixed(tmp_path / "a.fixed")
    source = open_source("s", SourceConfig(path=str(tmp_path / "a.fixed")))
    assert source.reader.manifest.format == "fixed"


def test_it_is_read_by_a_pipeline_and_its_records_survive_a_resume(tmp_path: Path) -> None:
    install(tmp_path / "site")
    write_fixed(tmp_path / "a.fixed")
    script = (
        "from tests.scenarios import global_batches, small_pipeline\n"
        f"pipeline = small_pipeline({{'s': {str(tmp_path / 'a.fixed')!r}}})\n"
        "straight, _ = global_batches(pipeline, 1, 8)\n"
        "first, state = global_batches(pipeline, 2, 3)\n"
        "rest, _ = global_batches(pipeline, 4, 5, state)\n"
        "assert first + rest == straight and len(set(straight)) == 8\n"
        "print('fixed shards' in pipeline.explain())"
    )
    command = [sys.executable, "-W", "ignore", "-c", script]
    path = f"{tmp_path / 'site'}:{ROOT}"
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={"PYTHONPATH": path}, check=False)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize(
    ("code", "entry", "parts"),
    [
        ("import no_such_package", "fixed = fixed_records:FORMAT", ["'fixed'", "ModuleNotFoundError", "uninstall"]),
        ("FORMAT = 5", "fixed = fixed_records:FORMAT", ["'fixed'", "must be a Format"]),
        (PACKAGE, "jsonl = fixed_records:FORMAT", ["'jsonl'", "a name and suffixes of its own"]),
        (
            PACKAGE.replace('".fixed"', '".jsonl"'),
            "x = fixed_records:FORMAT",
            ["'x'", "a name and suffixes of its own"],
        ),
    ],
)
def test_a_format_that_cannot_be_added_is_told(
    code: str, entry: str, parts: list[str], fresh: Path, tmp_path: Path
) -> None:
    install(fresh, code, entry)
    importlib.invalidate_caches()
    with pytest.raises(SourceError) as error:
        open_source("s", SourceConfig(path=str(tmp_path)))
    says(error, *parts)


def test_a_format_that_there_is_none_of_is_told_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"format = 'parket' is none of 'jsonl', .* Did you mean 'parquet'\?"):
        open_source("s", SourceConfig(path=str(tmp_path), format="parket"))
