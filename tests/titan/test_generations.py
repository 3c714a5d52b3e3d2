"""Which generation of TorchTitan is installed, and what each row of the table promises."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from torchtitan_zephon import ConfigError
from torchtitan_zephon.titan.generations import GENERATIONS, ONLY_IN_MAIN, SUPPORTED, installed


def test_a_release_that_is_not_supported_is_refused_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "0.1.0")
    with pytest.raises(ConfigError, match=r"TorchTitan 0\.1\.0 is installed; supported: 0\.2\.2, 0\.3\.0\."):
        installed()


def test_main_is_told_from_the_release_whose_version_it_has_and_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "0.2.2+cpu")
    package = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: package)
    assert installed() is GENERATIONS["0.2.2"]
    (tmp_path / ONLY_IN_MAIN).mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"TorchTitan main is installed; supported: 0\.2\.2, 0\.3\.0\."):
        installed()


def test_main_has_a_row_and_is_not_supported_yet() -> None:
    assert GENERATIONS.keys() - SUPPORTED.keys() == {"main"}


def test_the_module_of_the_installed_generation_has_what_the_table_says() -> None:
    pytest.importorskip("torchtitan")
    module = installed().load()
    for name in ("run", "build_config", "model_vocab_size"):
        assert callable(getattr(module, name))
    assert module.ZephonDataLoader.columns == installed().columns
