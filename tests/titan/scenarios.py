"""What the tests on TorchTitan share: launches, tokenizers of any set-up, our loader as it is built."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torchtitan.components.tokenizer import HuggingFaceTokenizer

from tests.scenarios import BOS, EOS, tokenizer_folder
from tests.titan.forks import ROOT, forked
from tests.titan.launches import alone
from torchtitan_zephon import RunSettings
from torchtitan_zephon.ledger import read_ledger
from torchtitan_zephon.program import Program
from torchtitan_zephon.titan.feed import Feed
from torchtitan_zephon.titan.findings import ask
from torchtitan_zephon.titan.generations import installed
from torchtitan_zephon.titan.loader import StreamLoader, TorchBatch
from torchtitan_zephon.titan.resume import RESUME, Resume

JOB = """
[job]
dump_folder = "{dump}"
[model]
name = "llama3"
flavor = "debugmodel"
hf_assets_path = "{root}/demo/tokenizer"
[training]
seq_len = 32
local_batch_size = 1
global_batch_size = 16
steps = {steps}
[metrics]
log_freq = 1
[checkpoint]
enable = true
interval = 100
last_save_model_only = false
[validation]
enable = {validate}
freq = 2
steps = -1
[zephon]
device = "cpu"
lanes = 16
ledger = true
chunk_bytes = 4096
flush_every_sequences = 8
[zephon.sources.books]
path = "{data}/books"
weight = 0.6
[zephon.sources.docs]
path = "{data}/docs"
weight = 0.4
[zephon.validation.sources.held_out]
path = "{data}/held_out.jsonl"
"""
"""A job of the demo's two sources for the real trainer, as small as it gets."""

VERSION = installed().version
STOCK_RECIPE = installed().stock_recipe
"""Recipe keys that follow the stock text loader of the installed release."""


def torchrun(processes: int, module: str, *arguments: object, cwd: Path = ROOT) -> tuple[int, str]:
    """Exit code and output of ``python -m module arguments`` under torchrun. ``forked`` costs a third of the time."""
    alone()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = subprocess.run(
        [*command, "-m", module, *map(str, arguments)],
        cwd=cwd, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=1200,
    )  # fmt: skip
    return done.returncode, done.stdout


def tokenizer_that_adds(folder: Path, tokens: tuple[str, ...], config: object = None) -> Path:
    """The small tokenizer in ``folder``, with a post-processor that adds ``tokens`` by itself.

    ``config`` is its ``tokenizer_config.json``; by default it names BOS and EOS.
    """
    folder.mkdir(exist_ok=True)
    tokenizer = Tokenizer.from_file(str(tokenizer_folder() / "tokenizer.json"))
    if tokens:
        before, after = (BOS + " " if BOS in tokens else ""), (" " + EOS if EOS in tokens else "")
        tokenizer.post_processor = TemplateProcessing(
            single=f"{before}$A{after}", special_tokens=[(t, tokenizer.token_to_id(t)) for t in tokens]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"bos_token": BOS, "eos_token": EOS} if config is None else config
    (folder / "tokenizer_config.json").write_text(json.dumps(named), "utf-8")
    return folder


def build(
    feed: Feed, tokenizer: HuggingFaceTokenizer, *, seq_len: int, local: int, degree: int = 1, rank: int = 0
) -> StreamLoader:
    """The loader as the installed TorchTitan builds it."""
    loader: Any = installed().load().ZephonDataLoader
    place: dict[str, Any] = {"dp_world_size": degree, "dp_rank": rank, "tokenizer": tokenizer}
    sizes = {"seq_len": seq_len, "local_batch_size": local}
    if VERSION == "0.2.2":
        built: StreamLoader = loader(feed, **place, **sizes)
    else:
        fields = {f.name: getattr(feed, f.name) for f in dataclasses.fields(feed)}
        built = loader.Config(**fields).build(**place, **sizes, snapshot_every_n_steps=1)
    return built


def look_at_checkpoint(
    program: Program, settings: RunSettings, path: Path, global_batch_size: int, *excluded: str
) -> None:
    """Look at the checkpoint at ``path`` as a start does, and raise what is wrong with it."""
    resume = Resume(path, program, settings, global_batch_size=global_batch_size, exclude_from_loading=list(excluded))
    ask(RESUME, resume, nullcontext())


def supervised(batches: list[TorchBatch]) -> int:
    """Labels that are trained on."""
    return sum(int((labels != -100).sum()) for _, labels in batches)


def job_folder(folder: Path) -> Path:
    """``folder`` with a copy of the demo's data in it, and a small held-out set."""
    shutil.copytree(ROOT / "demo" / "data", folder / "data")
    (folder / "data" / "held_out.jsonl").write_text('{"text": "An odd number of words, held out."}\n' * 3)
    return folder


def train(
    folder: Path, dump: Path, processes: int, *overrides: str, steps: int = 8, validate: bool = False,
    launcher: Callable[..., tuple[int, str]] = forked,
) -> tuple[int, str]:  # fmt: skip
    """Exit code and output of one launch; ``launcher`` is ``forked`` or ``torchrun``.

    Unless ``overrides`` say otherwise, up to 8 ranks take the 16 sequences of a step in two local batches each: with
    one sequence a batch most of the time went into batches. It is no part of the stream.
    """
    job = folder / f"{dump.name}.toml"
    job.write_text(JOB.format(dump=dump, root=ROOT, data=folder / "data", steps=steps, validate=str(validate).lower()))
    local = ("--training.local_batch_size", str(max(1, 8 // processes)))
    return launcher(processes, "torchtitan_zephon.train", "--job.config_file", job, *local, *overrides, cwd=folder)


def trained(*arguments: object, **options: object) -> str:
    code, output = train(*arguments, **options)  # type: ignore[arg-type]
    assert code == 0, output[-4000:]
    return output


def refused(*arguments: object, **options: object) -> str:
    """The refusal, unwrapped; it must come with an exit code, before any model is built."""
    code, output = train(*arguments, **options)  # type: ignore[arg-type]
    assert code != 0
    assert "Building llama3" not in output
    assert "torchtitan_zephon.errors" not in output, output[-4000:]
    return re.sub(r"\s+", " ", output)


def hashes(dump: Path) -> dict[int, str]:
    return {step: record.sha256 for step, record in read_ledger(dump / "ledger").items()}
