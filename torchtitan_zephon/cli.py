"""``torchtitan-zephon``: questions about runs and recipes that need no GPU and no process group."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from . import check
from .check.text import check_text
from .config import load_recipe, load_toml
from .errors import ConfigError, ZephonError
from .ledger import read_ledger
from .ops.tokenizer_files import load_tokenizer
from .program import compile_program
from .titan import GENERATIONS, STOCK
from .titan.job import parse_job
from .verify import verify


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Exit code: 0 yes, 1 no (two runs differ, a job does not fit), 2 no answer."""
    words, overrides = _split(sys.argv[1:] if arguments is None else list(arguments))
    options = _parser().parse_args(words)
    options.overrides = overrides
    try:
        code: int = options.run(options)
        return code
    except ZephonError as error:
        print(f"torchtitan-zephon: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torchtitan-zephon", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    sub = commands.add_parser("verify", help="are two ledgers, or two checkpoints, of the same stream?")
    sub.add_argument("a", type=Path, metavar="A", help="ledger folder, dump folder, or checkpoint folder (step-N)")
    sub.add_argument("b", type=Path, metavar="B")
    sub.set_defaults(run=_verify)
    sub = commands.add_parser("ledger", help="print the SHA-256 of every global batch of a run")
    sub.add_argument("folder", type=Path)
    sub.set_defaults(run=_ledger)
    sub = commands.add_parser("explain", help="print the compiled plan of a recipe (configs/*.toml)")
    sub.add_argument("recipe", type=Path)
    sub.add_argument("--tokenizer", required=True, help="folder, tokenizer.json, or hub name")
    sub.add_argument("--seq-len", type=int, default=2048)
    sub.set_defaults(run=_explain)
    sub = commands.add_parser(
        "check",
        help="does a job fit these numbers of GPUs, and can it resume from a checkpoint?",
        description="Does a job fit these numbers of GPUs, and can it resume from a checkpoint? Needs no GPU. "
        "Any key of the job can be overridden, as in training: --section.key value.",
        usage="torchtitan-zephon check JOB.toml [--dp 8,16,32] [--checkpoint DIR] [--section.key value ...]",
        allow_abbrev=False,
    )
    sub.add_argument("job", metavar="JOB.toml", help="job file, as given to torchtitan_zephon.train")
    sub.add_argument("--dp", type=_degrees, metavar="8,16,32", help="data-parallel degrees; all that fit if not given")
    sub.add_argument("--checkpoint", type=Path, metavar="DIR", help="step-N, a folder of them, or a dump folder")
    sub.add_argument("--torchtitan", choices=GENERATIONS, help="release to check for; the installed one if not given")
    sub.set_defaults(run=_check)
    return parser


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """The words of the command itself, and a checked job's overrides (``--section.key value``)."""
    own: list[str] = []
    overrides: list[str] = []
    target = own
    for word in words:
        if word.startswith("--") and words[0] == "check":
            target = overrides if "." in word.partition("=")[0] else own
        target.append(word)
        if not word.startswith("--") or "=" in word:
            target = own
    return own, overrides


def _degrees(text: str) -> list[int]:
    degrees = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if min(degrees) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of data-parallel degrees, such as 8,16,32")
    return sorted(set(degrees))


def _check(options: argparse.Namespace) -> int:
    release = check.find_release(options.torchtitan)
    job = parse_job([f"--job.config_file={options.job}", *options.overrides], STOCK[release.version])
    report = check.check(job, release, options.dp, options.checkpoint)
    print(check_text(report))
    return 0 if report.good else 1


def _verify(options: argparse.Namespace) -> int:
    verdict = verify(options.a, options.b)
    print(verdict.text)
    return 0 if verdict.same else 1


def _ledger(options: argparse.Namespace) -> int:
    folder = options.folder / "ledger" if (options.folder / "ledger").is_dir() else options.folder
    for step, record in read_ledger(folder).items():
        print(f"{step:8d}  {record.sha256}")
    return 0


def _explain(options: argparse.Namespace) -> int:
    if "zephon" in load_toml(options.recipe):
        raise ConfigError(f"{str(options.recipe)!r} is a job, not a recipe; use: torchtitan-zephon check JOB.toml.")
    recipe = load_recipe(options.recipe)
    tokenizer = load_tokenizer(
        options.tokenizer,
        add_bos=recipe.add_bos,
        add_eos=recipe.add_eos,
        special_tokens_in_text=recipe.special_tokens_in_text,
    )
    print(compile_program(recipe, options.seq_len, tokenizer).explain())
    return 0


if __name__ == "__main__":
    sys.exit(main())
