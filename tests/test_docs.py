"""Every snippet and TOML file in the documentation runs, or parses, as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torchtitan_zephon import load_recipe
from torchtitan_zephon.reference import reference
from torchtitan_zephon.titan.job import parse_job
from torchtitan_zephon.toml_files import load_toml

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def snippets(language: str) -> list[pytest.ParameterSet]:
    found = []
    for page in PAGES:
        for number, text in enumerate(re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), re.DOTALL), 1):
            found.append(pytest.param(text, id=f"{page.name}-{number}"))
    return found


@pytest.mark.parametrize("text", snippets("python"))
def test_a_python_snippet_runs_in_the_repository(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    if "torch.distributed" in text:  # a job of one process, as torchrun would start it
        pytest.importorskip("torch")
        place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
        for name, value in place.items():
            monkeypatch.setenv(name, value)
    exec(compile(text, "snippet", "exec"), {"__name__": "snippet"})


@pytest.mark.parametrize("text", snippets("toml"))
def test_a_toml_snippet_is_a_job(text: str, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(text, "utf-8")
    job = parse_job(["--job.config_file", str(tmp_path / "job.toml")], {})
    assert job.recipe.sources


@pytest.mark.parametrize("path", sorted((ROOT / "train_configs").glob("*.toml")), ids=lambda p: p.name)
def test_a_job_file_parses(path: Path) -> None:
    assert parse_job(["--job.config_file", str(path)], {}).recipe.sources


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda p: p.name)
def test_a_recipe_file_loads_and_names_sources_that_exist(path: Path) -> None:
    for source in load_recipe(path).sources.values():
        assert Path(source.path).exists()


def test_the_configuration_reference_is_that_of_the_code() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text("utf-8") == reference(), (
        "run: python -m torchtitan_zephon.reference > docs/configuration.md"
    )


def test_the_tests_that_a_page_names_exist() -> None:
    code = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for page in PAGES:
        for name in re.findall(r"`(test_\w+)`", page.read_text("utf-8")):
            assert f"def {name}(" in code, f"{page.name}: {name}"


def test_every_relative_link_leads_to_a_file() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_version_is_the_same_everywhere() -> None:
    import torchtitan_zephon

    version = load_toml(ROOT / "pyproject.toml")["project"]["version"]
    assert torchtitan_zephon.__version__ == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
