"""The page on TorchTitan and the jobs to start from, held to what the installed TorchTitan has."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torchtitan")

from tests.titan.scenarios import ROOT, STOCK_RECIPE, VERSION
from torchtitan_zephon import metrics
from torchtitan_zephon.titan.generations import installed
from torchtitan_zephon.titan.job import parse_job

PAGE = (ROOT / "docs" / "torchtitan.md").read_text("utf-8")


@pytest.mark.parametrize("path", sorted((ROOT / "train_configs").glob("*.toml")), ids=lambda p: p.name)
def test_a_job_to_start_from_maps_onto_the_installed_torchtitan(path: object) -> None:
    job = parse_job(["--job.config_file", str(path)], STOCK_RECIPE)
    config = installed().load().build_config(job)
    assert config.training.global_batch_size == job.global_batch_size
    assert config.training.steps == job.sections["training"]["steps"]


@pytest.mark.skipif(VERSION != "0.3.0", reason="the table is of 0.3.0's keys")
def test_the_page_names_every_key_that_is_mapped_or_refused() -> None:
    from torchtitan_zephon.titan import v030_job as mapping

    keys = {*mapping.MOVED, *mapping.MOVED.values(), *mapping.FIXED, *mapping.SAME}
    missing = [f"{s}.{k}" for s, k in sorted(keys) if not re.search(rf"`{s}\.{k}`", PAGE)]
    assert not missing
    assert not [section for section in mapping.GONE if f"`{section}`" not in PAGE]
    assert not [k for s, k in mapping.REFUSED if s == "training" and f"`training.{k}`" not in PAGE]


def test_the_page_lists_the_metrics_as_they_are() -> None:
    listed = dict(re.findall(rf"^\| `{metrics.PREFIX}/(\S+)` \| (.*) \|$", PAGE, re.MULTILINE))
    assert listed == {name: text[0].lower() + text[1:].rstrip(".") for name, text in metrics.NAMES.items()}
