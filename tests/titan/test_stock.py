"""TorchTitan's own entry point with our data, and one TOML on both generations: the same global batches everywhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torchtitan")

import torch

from tests.titan.scenarios import JOB, ROOT, STOCK_RECIPE, VERSION, forked, hashes, job_folder, torchrun, trained

pytestmark = pytest.mark.slow
STEPS, STOP = 6, 3
LEDGER = Path(__file__).parent / "ledger.json"
"""SHA-256 of global batches 1 to 6 of ``scenarios.JOB`` for each ``label_shift``, equal on both generations."""
only_022 = pytest.mark.skipif(VERSION != "0.2.2", reason="0.2.2's way in")
only_030 = pytest.mark.skipif(VERSION != "0.3.0", reason="0.3.0's way in")


def recorded(label_shift: str) -> dict[int, str]:
    """The first global batches of the job, the same in every environment."""
    return dict(enumerate(json.loads(LEDGER.read_text())[label_shift], start=1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return job_folder(tmp_path_factory.mktemp("stock"))


@pytest.mark.parametrize("label_shift", ["document", "sequence"])
def test_one_toml_gives_the_recorded_batches_stopped_and_resumed_on_this_generation(
    folder: Path, label_shift: str
) -> None:
    dump = folder / label_shift
    chosen = () if label_shift == STOCK_RECIPE["label_shift"] else ("--zephon.label_shift", label_shift)
    trained(folder, dump, 2, *chosen, steps=STOP)
    output = trained(folder, dump, 4, *chosen, steps=STEPS)
    assert f"Training starts at step {STOP + 1}" in output
    assert hashes(dump) == recorded(label_shift)


def test_the_label_conventions_of_the_generations_are_two_streams() -> None:
    document, sequence = recorded("document"), recorded("sequence")
    assert not set(document.values()) & set(sequence.values())


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_the_stock_entry_point_without_an_accelerator_names_the_one_that_needs_none(folder: Path) -> None:
    ours = ("--module", "torchtitan_zephon", "--config", "llama3_debugmodel")
    if VERSION == "0.2.2":
        ours = ("--job.config_file", str(stock_job(folder, folder / "no-device", 1)))
    done = subprocess.run(
        [sys.executable, "-m", "torchtitan.train", *ours], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert (
        "-m torchtitan.train, needs an accelerator" in said and "-m torchtitan_zephon.train --job.config_file" in said
    )


# ---- 0.2.2


def stock_job(folder: Path, dump: Path, steps: int) -> Path:
    """The job as a user of 0.2.2's stock entry point writes it: our module is named twice."""
    text = JOB.format(dump=dump, root=ROOT, data=folder / "data", steps=steps, validate="true")
    module = "torchtitan_zephon.titan.v022"
    text = text.replace("[job]\n", f'[job]\ncustom_config_module = "{module}"\n')
    text = text.replace("[training]\n", '[training]\nmixed_precision_param = "float32"\n')
    text = text.replace("[validation]\n", "[validation]\nlocal_batch_size = 1\nseq_len = 32\n")
    text += f'[experimental]\ncustom_import = "{module}"\n[activation_checkpoint]\nmode = "none"\n'
    path = folder / f"{dump.name}.toml"
    path.write_text(text)
    return path


def stock(processes: int, *arguments: object, launcher: Callable[..., tuple[int, str]] = forked) -> tuple[int, str]:
    """Exit code and output of the stock entry point. 0.2.2 reads its command line as it is imported: not in a fork."""
    launcher = torchrun if VERSION == "0.2.2" else launcher
    return launcher(processes, "tests.titan.stock_on_cpu", *arguments)


@only_022
def test_the_stock_entry_point_of_0_2_2_reads_the_zephon_table_and_resumes_on_other_ranks(folder: Path) -> None:
    dump = folder / "stock-022"
    code, output = stock(2, "--job.config_file", stock_job(folder, dump, STOP))
    assert code == 0, output[-4000:]
    assert "validate step:" in output
    code, output = stock(4, "--job.config_file", stock_job(folder, dump, STEPS), "--zephon.workers", "1")
    assert code == 0, output[-4000:]
    assert f"Training starts at step {STOP + 1}" in output
    assert hashes(dump) == recorded("sequence")


@only_022
def test_a_zephon_flag_of_the_stock_entry_point_changes_the_recipe_and_is_refused_at_resume(folder: Path) -> None:
    dump = folder / "stock-022-flag"
    code, output = stock(1, "--job.config_file", stock_job(folder, dump, 1))
    assert code == 0, output[-4000:]
    code, output = stock(1, "--job.config_file", stock_job(folder, dump, 2), "--zephon.sources.docs.weight", "0.9")
    assert code != 0
    assert "sources.books.weight: 60 % of tokens -> 40 %" in output, output[-3000:]
    assert "sources.docs.weight: 40 % of tokens -> 60 %" in output
    assert "Building llama3" not in output


@only_022
def test_a_stock_job_without_the_config_module_says_what_is_missing(folder: Path) -> None:
    job = stock_job(folder, folder / "stock-022-half", 1)
    lines = [line for line in job.read_text().splitlines() if "custom_config_module" not in line]
    half = [*lines[: lines.index("[zephon]")], "[experimental]", 'custom_import = "torchtitan_zephon.titan.v022"']
    job.write_text("\n".join(half))
    code, output = stock(1, "--job.config_file", job)
    assert code != 0
    assert "set job.custom_config_module = 'torchtitan_zephon.titan.v022'" in output


# ---- 0.3.0

RECIPE = """
lanes = 16
chunk_bytes = 4096
flush_every_sequences = 8
[sources.books]
path = "{data}/books"
weight = 0.6
[sources.docs]
path = "{data}/docs"
weight = 0.4
"""
FLAGS = """
    --hf_assets_path {root}/demo/tokenizer --dump_folder {dump} --training.steps {steps}
    --training.global_batch_size 16 --training.local_batch_size 1 --training.seq_len 32
    --training.mixed_precision_param float32 --training.disable_cuda_graphs
    --parallelism.spmd_backend partial_dtensor --metrics.log_freq 1
    --checkpoint.enable --checkpoint.interval 100 --checkpoint.no-last-save-model-only
"""


def flags(dump: Path, steps: int) -> list[str]:
    return FLAGS.format(root=ROOT, dump=dump, steps=steps).split()


def recipe_file(folder: Path) -> Path:
    path = folder / "recipe.toml"
    path.write_text(textwrap.dedent(RECIPE.format(data=folder / "data")))
    return path


@only_030
@pytest.mark.parametrize("name", ["llama3_debugmodel", "qwen3_debugmodel", "deepseek_v3_debugmodel"])
def test_the_stock_entry_point_of_0_3_0_takes_any_of_its_own_configurations_with_our_data(
    folder: Path, name: str
) -> None:
    dump, steps = folder / name, STOP
    ours = ("--module", "torchtitan_zephon", "--config", name, "--dataloader.recipe_file", recipe_file(folder))
    ledger = ("--dataloader.settings.ledger", dump / "ledger")
    launcher = torchrun if name.startswith("llama3") else forked
    code, output = stock(2, *ours, *ledger, *flags(dump, STOP), launcher=launcher)
    assert code == 0, output[-4000:]
    if name.startswith("llama3"):
        steps = STEPS
        code, output = stock(4, *ours, *ledger, *flags(dump, steps))
        assert code == 0, output[-4000:]
    assert hashes(dump) == {step: recorded("document")[step] for step in range(1, steps + 1)}


@only_030
def test_an_override_puts_our_loader_into_an_existing_configuration(folder: Path) -> None:
    dump = folder / "override"
    settings = {"recipe_file": str(recipe_file(folder)), "global_batch_size": 16, "ledger": str(dump / "ledger")}
    entry = f"torchtitan_zephon.titan.v030.data={json.dumps(settings)}"
    ours = ("--module", "tests.titan.stock_on_cpu", "--config", "llama3", "--override.imports", entry)
    code, output = stock(2, *ours, *flags(dump, STOP))
    assert code == 0, output[-4000:]
    code, output = stock(4, *ours, *flags(dump, STEPS))
    assert code == 0, output[-4000:]
    assert hashes(dump) == recorded("document")


@only_030
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--config", "llama3_9b"), "--config llama3_9b: TorchTitan has no such configuration. Did you mean"),
        (("--config", "sft_qwen3_8b_math"), "only configurations that train on plain text can be used"),
        (("--config", "llama3_debugmodel"), "name one with --dataloader.recipe_file"),
        (("--config", "llama3_debugmodel", "--dataloader.recipe_file", "none.toml"), "no such TOML file: 'none.toml'"),
    ],
)
def test_a_wrong_name_in_the_stock_entry_point_is_answered_with_the_right_ones(
    folder: Path, arguments: tuple[str, ...], said: str
) -> None:
    code, output = stock(1, "--module", "torchtitan_zephon", *arguments, *flags(folder / "wrong", 1))
    assert code != 0
    assert said in re.sub(r"\s+", " ", output), output[-3000:]
