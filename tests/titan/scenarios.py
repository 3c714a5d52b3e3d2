"""What the tests on TorchTitan share: launches under torchrun, tokenizers of any set-up, our loader as it is built."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torchtitan.components.tokenizer import HuggingFaceTokenizer

from tests.scenarios import BOS, EOS, tokenizer_folder
from torchtitan_zephon.titan import STOCK, generation, installed_version
from torchtitan_zephon.titan.loader import Feed, StreamLoader, TorchBatch

ROOT = Path(__file__).parents[2]
VERSION = installed_version()
STOCK_RECIPE = STOCK[VERSION]
"""Recipe keys that follow the stock text loader of the installed release."""


def torchrun(processes: int, module: str, *arguments: object, cwd: Path = ROOT) -> tuple[int, str]:
    """Exit code and output of ``python -m module arguments`` in ``processes`` processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = subprocess.run(
        [*command, "-m", module, *map(str, arguments)],
        cwd=cwd, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=300,
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
    loader: Any = generation().ZephonDataLoader
    place: dict[str, Any] = {"dp_world_size": degree, "dp_rank": rank, "tokenizer": tokenizer}
    sizes = {"seq_len": seq_len, "local_batch_size": local}
    if VERSION == "0.2.2":
        built: StreamLoader = loader(feed, **place, **sizes)
    else:
        fields = {f.name: getattr(feed, f.name) for f in dataclasses.fields(feed)}
        built = loader.Config(**fields).build(**place, **sizes, snapshot_every_n_steps=1)
    return built


def supervised(batches: list[TorchBatch]) -> int:
    """Labels that are trained on."""
    return sum(int((labels != -100).sum()) for _, labels in batches)
