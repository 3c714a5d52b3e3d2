"""A job on TorchTitan 0.2.2: its sections in the real ``JobConfig``, our builders in the real ``TrainSpec``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchtitan")

from torchtitan.config import JobConfig as StockJobConfig
from torchtitan.protocols.train_spec import get_train_spec, register_train_spec

from tests.titan.scenarios import ROOT
from torchtitan_zephon import ConfigError
from torchtitan_zephon.titan import cpu, v022
from torchtitan_zephon.titan.generations import GENERATIONS
from torchtitan_zephon.titan.job import Job, parse_job

RELEASE = GENERATIONS["0.2.2"]
DEBUG_CPU = str(ROOT / "train_configs" / "debug_cpu.toml")


def job(*args: str) -> Job:
    return parse_job(["--job.config_file", DEBUG_CPU, *args], RELEASE.stock_recipe)


def config(*args: str) -> Any:
    return v022.build_config(job(*args))


def test_every_key_of_the_job_arrives_and_the_rest_are_torchtitan_s_defaults() -> None:
    ours, stock = config(), StockJobConfig()
    assert (ours.model.name, ours.training.global_batch_size, ours.checkpoint.interval) == ("llama3", 16, 5)
    assert ours.lr_scheduler.decay_ratio == 0.8
    assert ours.parallelism == stock.parallelism
    assert (ours.validation.seq_len, ours.validation.local_batch_size) == (256, 2), "as in 0.3.0, those of [training]"
    assert config("--model.tokenizer_path", "elsewhere").model.hf_assets_path == "elsewhere"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--training.stepz 3", "training.stepz: TorchTitan 0.2.2 has no such key. Did you mean 'steps'"),
        ("--training.steps many", "training.steps = 'many' is a str; expected int"),
        ("--checkpoint.async_mode sync", "checkpoint.async_mode = 'sync': not one of 'disabled'"),
        ("--parallelism.spmd_backend partial_dtensor", "parallelism.spmd_backend: TorchTitan 0.2.2 has no such key"),
        ("--training.dataloader.num_wokers 3", "training.dataloader.num_wokers: .*Did you mean 'num_workers'"),
        ("--loss.x 3", r"\[loss\] is not in TorchTitan 0.2.2"),
        ("--override.imports my.f", r"\[override\] is not in TorchTitan 0.2.2"),
        ("--validation.steps 0", "TorchTitan refuses it: validation steps must be positive"),
    ],
)
def test_what_0_2_2_cannot_do_is_an_error_and_never_ignored(args: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(*args.split())


def test_all_that_0_2_2_cannot_do_is_told_at_once() -> None:
    args = "--training.stepz 3 --training.steps many --loss.x 3 --training.dataloader.num_wokers 3 --metrics.log_frq 1"
    with pytest.raises(ConfigError) as refusal:
        config(*args.split())
    told = [text.replace(" = ", ": ").split(": ")[0] for text in refusal.value.args]
    assert sorted(told) == sorted(
        ["training.stepz", "training.steps", "[loss] is not in TorchTitan 0.2.2. Remove the section.",
         "training.dataloader.num_wokers", "metrics.log_frq"]
    )  # fmt: skip


def test_a_job_labels_as_0_2_2_does_unless_it_says_so_or_packs_otherwise() -> None:
    assert job().recipe.label_shift == "sequence"
    assert job("--zephon.label_shift", "document").recipe.label_shift == "document"
    assert job("--zephon.pack", "first_fit").recipe.label_shift == "document"


@pytest.mark.parametrize("name", ["deepseek_v3", "gpt_oss", "llama3", "llama3_ft", "llama4", "qwen3"])
def test_every_text_model_has_our_loader_and_is_otherwise_as_it_was(name: str) -> None:
    import importlib

    ours = get_train_spec(name)
    stock = importlib.import_module(f"torchtitan.models.{name}").get_train_spec()
    assert ours is v022.SPECS[name]
    exchanged = {"build_dataloader_fn", "build_validator_fn", "build_metrics_processor_fn"}
    for field in dataclasses.fields(stock):
        if field.name not in exchanged:
            assert getattr(ours, field.name) == getattr(stock, field.name) or field.name == "model_args"
    assert (ours.build_validator_fn is None) == (stock.build_validator_fn is None)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--model.name lama3", "model.name = 'lama3': TorchTitan 0.2.2 has no such model. Did you mean 'llama3'"),
        ("--model.flavor 8C", "model.flavor = '8C': llama3 has no such flavor. Valid: 405B, 70B, 8B"),
        ("--model.flavor 8B_flex --zephon.label_shift document", "leaves the EOS token out of the inputs"),
        ("--model.flavor debugmodel_flex_attn", "uses flex attention, which no CPU can train"),
        ("--parallelism.tensor_parallel_degree 3", r"\[parallelism\]: TorchTitan refuses it on 2 processes"),
    ],
)
def test_a_model_that_cannot_be_fed_is_refused_before_it_is_built(
    args: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.chdir(ROOT)
    with pytest.raises(ConfigError, match=message):
        v022.run(job(*args.split()), on_cpu=True)


def test_a_spec_of_one_s_own_needs_our_data_too(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    stock = importlib.import_module("torchtitan.models.llama3").get_train_spec()
    register_train_spec("mine", stock)
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(ConfigError, match=r"register torchtitan_zephon\.titan\.v022\.with_our_data\(spec\)"):
        v022.run(job("--model.name", "mine"), on_cpu=True)
    register_train_spec("mine_with_data", v022.with_our_data(stock))
    assert v022.spec_of(config("--model.name", "mine_with_data")).model_cls is stock.model_cls


def test_the_zephon_table_as_torchtitan_parses_it_is_the_job_s(tmp_path: Path) -> None:
    from torchtitan.config import ConfigManager

    text = (ROOT / "train_configs" / "debug_cpu.toml").read_text()
    text = text.replace("[job]\n", '[job]\ncustom_config_module = "torchtitan_zephon.titan.v022"\n')
    path = ROOT / "train_configs" / "debug_cpu.toml"
    (tmp_path / "train_configs").mkdir()
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    path = tmp_path / "train_configs" / "job.toml"
    path.write_text(text)
    flags = ["--zephon.seed", "7", "--zephon.workers", "3", "--zephon.shared_lanes", "True"]
    parsed = ConfigManager().parse_args(["--job.config_file", str(path), *flags])
    theirs = v022.job_of(parsed)
    ours = parse_job(["--job.config_file", str(path), *flags[:4], "--zephon.shared_lanes"], RELEASE.stock_recipe)
    assert dataclasses.replace(theirs.recipe, sources={}) == dataclasses.replace(ours.recipe, sources={})
    assert theirs.settings == ours.settings
    assert v022.job_of(parsed) is theirs


def test_cpu_mode_sets_what_0_2_2_has_and_says_so() -> None:
    said: list[str] = []
    ours = v022.build_config(cpu.adjusted(job(), RELEASE.cpu_defaults, said.append))
    assert (ours.training.mixed_precision_param, ours.activation_checkpoint.mode) == ("float32", "none")
    assert "spmd_backend" not in said[0]
