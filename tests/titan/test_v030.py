"""A job in 0.2's dialect becomes a real 0.3.0 ``Trainer.Config``; CPU mode; the command under torchrun."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchtitan")

import torchtitan.train
from torchtitan.config import ConfigManager
from torchtitan.distributed.activation_checkpoint import FullAC, MemoryBudgetAC, SelectiveAC
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention, VarlenAttention
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.trainer import Trainer

from tests.titan.scenarios import ROOT, torchrun
from torchtitan_zephon import ConfigError
from torchtitan_zephon.titan import cpu, v030, v030_job
from torchtitan_zephon.titan.generations import GENERATIONS
from torchtitan_zephon.titan.job import Job, parse_job
from torchtitan_zephon.titan.v030 import ZephonDataLoader

RELEASE = GENERATIONS["0.3.0"]
DEBUG_CPU = str(ROOT / "train_configs" / "debug_cpu.toml")


def job(*args: str, toml: str = "", folder: Path | None = None) -> Job:
    """A job that states the least it may, with the overrides ``args`` and the sections ``toml``."""
    if folder is None:
        return parse_job(["--job.config_file", DEBUG_CPU, *args], RELEASE.stock_recipe)
    path = folder / "job.toml"
    path.write_text("[zephon.sources.a]\npath = 'a.jsonl'\n" + toml, "utf-8")
    return parse_job(["--job.config_file", str(path), "--training.global_batch_size", "8", *args], RELEASE.stock_recipe)


def config(*args: str, **options: Any) -> v030.ZephonTrainer.Config:
    return v030_job.build_config(job(*args, **options))


def test_all_that_0_3_0_cannot_do_is_told_at_once() -> None:
    wrong = {
        "training.stepz": "3",
        "training.steps": "many",
        "training.dataset": "c4",
        "model.flavor": "8C",
        "optimizer.lrr": "1",
        "optimizer.lr": "high",
        "optimizer.early_step_in_backward": "true",
        "profiling.x": "1",
        "activation_checkpoint.mode": "some",
        "validation.frequency": "3",
        "validation.seq_len": "7",
        "metrics.log_frq": "1",
        "quantize.x": "1",
    }
    with pytest.raises(ConfigError) as refusal:
        config(*(word for key, value in wrong.items() for word in (f"--{key}", value)))
    text = "\n".join(refusal.value.args)
    missing = [key for key in wrong if key not in text and key != "quantize.x"]
    assert not missing and "[quantize] is not in TorchTitan 0.3.0" in text
    assert len(refusal.value.args) == len(wrong), text


def test_the_debug_job_is_the_stock_debug_job_with_our_loader() -> None:
    """Against 0.3.0's own registry function: what differs is what debug_cpu.toml says."""
    ours, stock = config(), llama3_debugmodel()
    assert ours.model_spec is not None and stock.model_spec is not None
    models = [re.sub(r" at 0x\w+", "", str(spec.model.to_dict())) for spec in (ours.model_spec, stock.model_spec)]
    assert models[0] == models[1]
    for part in ("loss", "optimizer", "lr_scheduler", "metrics", "tokenizer", "activation_checkpoint", "compile"):
        assert getattr(ours, part) == getattr(stock, part), part
    assert dataclasses.replace(ours.checkpoint, interval=10) == stock.checkpoint
    assert (ours.dump_folder, ours.hf_assets_path) == ("./outputs/debug_cpu", "./demo/tokenizer")
    assert (ours.training.steps, ours.training.global_batch_size) == (10, 16)
    assert isinstance(ours.dataloader, ZephonDataLoader.Config)
    assert ours.dataloader.recipe == job().recipe
    assert ours.dataloader.settings.ledger == "outputs/debug_cpu/ledger"


def test_what_no_section_states_is_torchtitans_default(tmp_path: Path) -> None:
    ours, stock = config(folder=tmp_path), Trainer.Config()
    for part in ("profiler", "lr_scheduler", "metrics", "parallelism", "checkpoint", "compile", "comm", "debug"):
        assert getattr(ours, part) == getattr(stock, part), part
    assert dataclasses.replace(ours.training, global_batch_size=-1) == stock.training
    assert isinstance(ours.validator.dataloader, HuggingFaceTextDataLoader.Config)


def test_a_config_builds_our_trainer_and_tells_the_loader_the_global_batch_size(tmp_path: Path) -> None:
    ours = config(folder=tmp_path)
    assert type(ours)._owner is v030.ZephonTrainer
    assert isinstance(ours.dataloader, ZephonDataLoader.Config)
    assert ours.dataloader.global_batch_size == 8
    ours.training.global_batch_size = 24
    changed = dataclasses.replace(ours)
    assert isinstance(changed.dataloader, ZephonDataLoader.Config)
    assert changed.dataloader.global_batch_size == 24


def test_stock_mains_own_parser_hands_the_config_on_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = config("--optimizer.lr", "0.01", "--parallelism.data_parallel_replicate_degree", "2")
    parsed: list[Any] = []
    monkeypatch.setattr(torchtitan.train, "main", lambda: parsed.append(ConfigManager().parse_args()))
    monkeypatch.setattr(sys, "argv", ["train"])
    v030_job.launch(ours)
    assert parsed == [ours]
    assert type(parsed[0]) is v030.ZephonTrainer.Config


@pytest.mark.parametrize("model", [("qwen3", "debugmodel"), ("deepseek_v3", "debugmodel"), ("gpt_oss", "debugmodel")])
def test_other_models_by_the_same_rule(model: tuple[str, str]) -> None:
    spec = config("--model.name", model[0], "--model.flavor", model[1]).model_spec
    assert spec is not None
    assert (spec.name, spec.flavor) == model


def test_arguments_of_the_models_registry_are_keys_of_its_section() -> None:
    spec = config("--model.attn_backend", "varlen").model_spec
    assert spec is not None
    assert any(spec.model.traverse(VarlenAttention.Config))


@pytest.mark.parametrize(
    ("args", "place", "value"),
    [
        ("--optimizer.lr 0.1", "optimizer.param_groups.0.optimizer_kwargs.lr", 0.1),
        ("--optimizer.name Adam", "optimizer.param_groups.0.optimizer_name", "Adam"),
        ("--optimizer.beta2 0.99", "optimizer.param_groups.0.optimizer_kwargs.betas", (0.9, 0.99)),
        ("--optimizer.implementation foreach", "optimizer.implementation", "foreach"),
        ("--job.print_config", "debug.print_config", True),
        ("--job.save_config_file c.json", "debug.save_config_file", "c.json"),
        ("--parallelism.enable_async_tensor_parallel --compile.enable", "compile.enable_async_tensor_parallel", True),
        ("--profiling.profile_freq 7", "profiler.profile_freq", 7),
        ("--profiler.profile_freq 7", "profiler.profile_freq", 7),
        ("--validation.freq 3", "validator.freq", 3),
        ("--training.max_norm 2", "training.max_norm", 2.0),
        ("--loss.num_chunks 4", "loss.num_chunks", 4),
        ("--checkpoint.exclude_from_loading dataloader,optimizer", "checkpoint.exclude_from_loading",
         ["dataloader", "optimizer"]),
        ("--parallelism.context_parallel_load_balancer None", "parallelism.context_parallel_load_balancer", None),
        ("--activation_checkpoint.selective_ac_option op", "activation_checkpoint.debug", False),
        ("--parallelism.expert_tensor_parallel_degree 1", "parallelism.expert_parallel_degree", 1),
        ("--training.disable_cuda_graphs", "training.disable_cuda_graphs", True),
        ("--override.imports my.f,my.g", "override.imports", ["my.f", "my.g"]),
        ('--override.imports my.f={"a":1}', "override.imports", [("my.f", {"a": 1})]),
    ],
)  # fmt: skip
def test_a_key_lands_where_0_3_0_has_it(args: str, place: str, value: Any) -> None:
    node: Any = config(*args.split())
    for part in place.split("."):
        node = node[int(part)] if part.isdigit() else node[part] if isinstance(node, dict) else getattr(node, part)
    assert node == value
    assert type(node) is type(value)


@pytest.mark.parametrize(
    ("args", "policy"),
    [
        ("--activation_checkpoint.mode none", None),
        ("--activation_checkpoint.mode full --activation_checkpoint.preserve_rng_state false",
         FullAC.Config(preserve_rng_state=False)),
        ("--activation_checkpoint.mode memory_budget --activation_checkpoint.memory_budget 0.3 --compile.enable",
         MemoryBudgetAC.Config(memory_budget=0.3)),
        ("--activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns a,b",
         SelectiveAC.Config(force_recompute_mm_shapes_by_fqns=["a", "b"])),
    ],
)  # fmt: skip
def test_activation_checkpointing_by_mode(args: str, policy: Any) -> None:
    assert config(*args.split()).activation_checkpoint == policy


def test_parameter_groups_in_0_3_0s_own_form(tmp_path: Path) -> None:
    toml = "[[optimizer.param_groups]]\npattern = '.*'\noptimizer_name = 'AdamW'\noptimizer_kwargs = {lr = 0.5}\n"
    (group,) = config(folder=tmp_path, toml=toml).optimizer.param_groups
    assert (group.pattern, group.optimizer_name, group.optimizer_kwargs) == (".*", "AdamW", {"lr": 0.5})


def test_validation_reads_its_own_recipe_and_writes_no_ledger() -> None:
    ours = config("--validation.enable", "--validation.steps", "4", "--zephon.validation.sources.v.path", "v.jsonl")
    data = ours.validator.dataloader
    assert isinstance(data, ZephonDataLoader.Config)
    assert data.recipe is not None
    assert list(data.recipe.sources) == ["v"]
    assert (data.global_batch_size, data.settings.ledger) == (16, None)
    assert (ours.validator.enable, ours.validator.steps) == (True, 4)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--training.stepz 3", "training.stepz: TorchTitan 0.3.0 has no such key. Did you mean 'steps'"),
        ("--training.steps many", "training.steps = 'many' is a str; expected int"),
        ("--training.steps 1.5", "training.steps = 1.5 is a float; expected int"),
        ("--training.dtype float16", "training.dtype = 'float16': not one of"),
        ("--training.dataset c4", r"training.dataset = 'c4' is not used: name the data in \[zephon.sources\]"),
        ("--validation.seq_len 64", "0.3.0 validates with training.seq_len"),
        ("--training._owner 3", "training._owner: TorchTitan 0.3.0 has no such key"),
        ("--metrics._owner 3", "metrics._owner: TorchTitan 0.3.0 has no such key"),
        ("--optimizer.learning_rate 1", "optimizer.learning_rate: TorchTitan 0.3.0 has no such key"),
        ("--optimizer.lr fast", "optimizer.lr = 'fast' is a str; expected float"),
        ("--optimizer.name SGD", "optimizer.name = 'SGD': not one of 'AdamW', 'Adam'"),
        ("--optimizer.early_step_in_backward", "always does what False meant in 0.2"),
        ("--activation_checkpoint.selective_ac_option 2", "always does what 'op' meant"),
        ("--activation_checkpoint.mode half", "not one of 'selective', 'full'"),
        ("--activation_checkpoint.memory_budget 0.3", "no such key with mode = 'selective'"),
        ("--activation_checkpoint.mode none --activation_checkpoint.debug", "no such key with mode = 'none'"),
        ("--activation_checkpoint.mode memory_budget", "TorchTitan refuses it: Memory budget"),
        ("--model.name llama4", "model.name = 'llama4': TorchTitan 0.3.0 has no such model. Did you mean 'llama3'"),
        ("--model.flavor 80B", "model.flavor = '80B': llama3 has no such flavor. Did you mean '8B'"),
        ("--model.flavor 8", "model.flavor = 8 is a int; expected str"),
        ("--model.attn_backend 3", "model.attn_backend = 3 is a int"),
        ("--model.atn_backend flex", "model.atn_backend: .*Did you mean 'attn_backend'"),
        ('--model.converters ["float8"]', r"model.converters = \['float8'\]: TorchTitan 0.3.0 has no such key"),
        ("--model.tokenizer_path x", "model.tokenizer_path is model.hf_assets_path in TorchTitan 0.3.0, and both"),
        ("--job.dumpfolder x", "job.dumpfolder: .*Did you mean 'dump_folder'"),
        ("--job.dump_folder 3", "job.dump_folder = 3 is a int"),
        ("--quantize.linear.float8.emulate", r"\[quantize\] is not in TorchTitan 0.3.0"),
        ("--experimental.custom_import x", "experimental.custom_import = 'x': TorchTitan 0.3.0 has no such key"),
        ("--experimental.other x", r"\[experimental\] is not in TorchTitan 0.3.0"),
        ("--checkpoint.keep_latest_k 1", r"\[checkpoint\]: TorchTitan refuses it: We need to maintain at least 2"),
        ("--validation.steps 0", "TorchTitan refuses it: validation steps must be positive"),
        ("--parallelism.pipeline_parallel_degree 2", "TorchTitan refuses it: CUDA graphs do not support pipeline"),
        ("--comm.mode gloo", "comm.mode = 'gloo': not one of"),
        ("--override.imports my.f=3", "TorchTitan refuses it: override.imports kwargs"),
        ("--override.import my.f", "override.import: .*Did you mean 'imports'"),
        ("--tokenizer.path x", "tokenizer.path: TorchTitan 0.3.0 has no such key"),
    ],
)
def test_what_0_3_0_cannot_do_is_an_error_and_never_ignored(args: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(*args.split())


def test_two_forms_of_one_optimizer_are_refused(tmp_path: Path) -> None:
    toml = "[optimizer]\nlr = 1.0\n[[optimizer.param_groups]]\npattern = '.*'\noptimizer_name = 'AdamW'\n"
    with pytest.raises(ConfigError, match="param_groups is set beside lr"):
        config(folder=tmp_path, toml=toml)


def test_cpu_mode_changes_what_the_job_leaves_open_and_says_so() -> None:
    said: list[str] = []
    ours = v030_job.build_config(cpu.adjusted(job(), RELEASE.cpu_defaults, said.append))
    assert ours.training.mixed_precision_param == "float32"
    assert ours.training.disable_cuda_graphs
    assert ours.parallelism.spmd_backend == "partial_dtensor"
    assert ours.activation_checkpoint is None
    (line,) = said
    assert "\n" not in line
    assert "spmd_backend = 'partial_dtensor'" in line


def test_cpu_mode_does_what_the_job_states_and_warns_that_it_is_slow() -> None:
    said: list[str] = []
    asked = job("--training.mixed_precision_param", "bfloat16", "--activation_checkpoint.mode", "full")
    ours = v030_job.build_config(cpu.adjusted(asked, RELEASE.cpu_defaults, said.append))
    assert ours.training.mixed_precision_param == "bfloat16"
    assert isinstance(ours.activation_checkpoint, FullAC.Config)
    assert len(said) == 3
    assert "13 times slower" in said[1]


@pytest.mark.parametrize(
    "override",
    [
        "--parallelism.spmd_backend=spmd_types", "--training.disable_cuda_graphs=false",
        "--parallelism.context_parallel_degree=2", "--checkpoint.async_mode=async_with_pinned_mem",
        "--training.enable_cpu_offload",
    ],
)  # fmt: skip
def test_cpu_mode_refuses_what_a_cpu_cannot_do(override: str) -> None:
    with pytest.raises(ConfigError, match="cannot work on a CPU"):
        cpu.adjusted(job(override), RELEASE.cpu_defaults, lambda line: None)


@pytest.mark.parametrize("args", [(), ("--model.name", "gpt_oss"), ("--model.name", "deepseek_v3")])
def test_cpu_mode_swaps_every_attention_kernel(args: tuple[str, ...]) -> None:
    ours = config(*args)
    cpu.adapt_model(ours)
    assert ours.model_spec is not None
    model = ours.model_spec.model
    assert any(model.traverse(ScaledDotProductAttention.Config))
    assert not any(model.traverse(FlexAttention.Config))
    assert not any(model.traverse(VarlenAttention.Config))


def test_cpu_mode_is_off_where_there_is_an_accelerator_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._utils._get_available_device_type", lambda: "cuda")
    assert not cpu.wanted("auto")
    assert cpu.wanted("cpu")
    monkeypatch.setattr("torch._utils._get_available_device_type", lambda: None)
    assert cpu.wanted("auto")


@pytest.mark.slow
def test_the_debug_job_trains_on_two_ranks(tmp_path: Path) -> None:
    job = ("--job.config_file", "train_configs/debug_cpu.toml", "--job.dump_folder", tmp_path)
    settings = ("--training.steps", 2, "--training.seq_len", 64)
    code, output = torchrun(2, "torchtitan_zephon.train", *job, *settings)
    assert code == 0, output[-4000:]
    assert output.count("torchtitan_zephon: CPU mode") == 1
    assert output.count("Starting job: Llama 3 debug model on the demo recipe") == 2
    assert output.count("Training completed") == 2
    assert (tmp_path / "ledger").is_dir()


@pytest.mark.parametrize(
    ("name", "dim"),
    [("llama3_1b", 2048), ("llama3_3B", 3072), ("qwen3_4b", 2560), ("qwen3_30b_a3b", 2048), ("deepseek_v3_236b", 5120)],
)
def test_the_stock_entry_point_finds_every_family_by_name_and_flavor(name: str, dim: int) -> None:
    from torchtitan_zephon import config_registry

    ours = getattr(config_registry, name)()
    assert isinstance(ours, v030.ZephonTrainer.Config)
    assert isinstance(ours.dataloader, ZephonDataLoader.Config)
    assert ours.model_spec.model.dim == dim
