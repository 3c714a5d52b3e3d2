"""``torchtitan-zephon``: questions about runs and recipes that need no GPU and no process group."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .config import load_recipe
from .errors import ZephonError
from .ledger import read_ledger
from .ops.tokenize import load_tokenizer
from .program import compile_program
from .verify import verify


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Exit code: 0 yes, 1 no (two runs differ), 2 the question cannot be answered."""
    options = _parser().parse_args(arguments)
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
    return parser


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
