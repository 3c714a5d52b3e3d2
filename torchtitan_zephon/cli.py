"""``torchtitan-zephon``: questions about runs and recipes that need no GPU and no process group."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from . import __version__
from .config import RunSettings, is_job, load_recipe
from .errors import ConfigError, Problems, ZephonError
from .identity import STREAM_FORMAT
from .ledger import read_ledger
from .ops.tokenizer_files import load_tokenizer
from .program import Program, compile_program
from .state import FORMAT
from .titan.check import check, find_release
from .titan.check.sources import checked_seq_len, tokenizer_of
from .titan.check.text import check_text
from .titan.generations import SUPPORTED
from .titan.job import parse_job, read_job
from .toml_files import load_toml
from .verify import verify

VERSION = f"torchtitan-zephon {__version__} (stream format {STREAM_FORMAT}, state format {FORMAT})"


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
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    sub = commands.add_parser("verify", help="are two ledgers, or two checkpoints, of the same stream?")
    sub.add_argument("a", type=Path, metavar="A", help="ledger folder, dump folder, or checkpoint folder (step-N)")
    sub.add_argument("b", type=Path, metavar="B")
    sub.set_defaults(run=_verify)
    sub = commands.add_parser("ledger", help="print the SHA-256 of every global batch of a run")
    sub.add_argument("folder", type=Path)
    sub.set_defaults(run=_ledger)
    sub = commands.add_parser(
        "explain",
        help="print the compiled plan of a job or a recipe, and which tokenizer back-end it is on",
        usage="torchtitan-zephon explain JOB.toml [--section.key value ...]\n"
        "       torchtitan-zephon explain RECIPE.toml --tokenizer FOLDER [--seq-len 2048]",
        allow_abbrev=False,
    )
    sub.add_argument("file", metavar="FILE.toml", help="job (train_configs/*.toml) or recipe (configs/*.toml)")
    sub.add_argument("--tokenizer", help="of a recipe: folder, tokenizer.json, or hub name")
    sub.add_argument("--seq-len", type=int, help="of a recipe: tokens of a sequence; 2048 if not given")
    sub.add_argument("--torchtitan", choices=SUPPORTED, help="release of a job; the installed one if not given")
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
    sub.add_argument("--torchtitan", choices=SUPPORTED, help="release to check for; the installed one if not given")
    sub.set_defaults(run=_check)
    return parser


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """The words of the command itself, and a job's overrides (``--section.key value``)."""
    own: list[str] = []
    overrides: list[str] = []
    target = own
    for word in words:
        if word.startswith("--") and words[0] in ("check", "explain"):
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
    release = find_release(options.torchtitan)
    problems = Problems()
    job = read_job([f"--job.config_file={options.job}", *options.overrides], release.generation.stock_recipe, problems)
    report = check(job, release, options.dp, options.checkpoint, problems)
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
    program = _job_program(options) if is_job(load_toml(options.file)) else _recipe_program(options)
    print(program.explain())
    return 0


def _job_program(options: argparse.Namespace) -> Program:
    if options.tokenizer is not None or options.seq_len is not None:
        raise ConfigError(
            f"{options.file!r} is a job, which names its tokenizer and its sequence length itself; --tokenizer and "
            "--seq-len are for recipes. To try others: --model.hf_assets_path FOLDER, --training.seq_len 2048."
        )
    generation = find_release(options.torchtitan).generation
    job = parse_job([f"--job.config_file={options.file}", *options.overrides], generation.stock_recipe)
    tokenizer = tokenizer_of(job, job.recipe)
    seq_len = checked_seq_len(job, generation, training=True)
    return compile_program(job.recipe, seq_len, tokenizer, backend=job.settings.tokenizer_backend, storage=job.settings)


def _recipe_program(options: argparse.Namespace) -> Program:
    recipe = load_recipe(options.file)
    if options.overrides:
        raise ConfigError(f"{options.overrides[0]} is for a job, and {options.file!r} is a recipe; edit it instead.")
    if options.tokenizer is None:
        raise ConfigError(
            f"{options.file!r} is a recipe, which names no tokenizer: add --tokenizer FOLDER. Or explain the job that "
            "reads it: torchtitan-zephon explain JOB.toml."
        )
    tokenizer = load_tokenizer(
        options.tokenizer,
        add_bos=recipe.add_bos,
        add_eos=recipe.add_eos,
        special_tokens_in_text=recipe.special_tokens_in_text,
    )
    seq_len = 2048 if options.seq_len is None else options.seq_len
    return compile_program(recipe, seq_len, tokenizer, backend=RunSettings().tokenizer_backend)


if __name__ == "__main__":
    sys.exit(main())
