"""The shape of the code: imports go one way, randomness has one source, and nothing grows unnoticed.

Every check is a function from source texts to complaints, so the last tests can feed it bad ones.
An exception is listed with its number today; it may shrink or go, not grow.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "torchtitan_zephon"
ROOT = Path(__file__).resolve().parent.parent / PACKAGE
MOST_LINES, MOST_FUNCTION_LINES, MOST_PARAMETERS, MOST_ATTRIBUTES = 350, 50, 8, 12
LONGEST_CHAIN = 8
"""Of folders and single files, from the public pipeline down."""

# What a module, or the modules of a folder, may import of this package; the longest key that fits counts.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "balance": set(),
    "records": {"balance"},
    "text_of": {"records", "errors"},
    "bad_records": {"balance", "records", "settings", "errors"},
    "paths": set(),
    "settings": {"errors"},
    "toml_files": {"paths", "errors"},
    "config": {
        "paths",
        "toml_files",
        "settings",
        "bad_records",
        "ops",
        "plan",
        "read.settings",
        "read.stores.settings",
        "errors",
    },
    "changes": set(),
    "cache": set(),
    "progress": set(),
    "plan": {"plan", "settings", "errors"},
    "ops": {"ops", "settings", "text_of", "bad_records", "records", "cache", "plan.keyed", "errors"},
    "read": {
        "read",
        "cache",
        "progress",
        "settings",
        "text_of",
        "bad_records",
        "records",
        "errors",
        "plan.chunking",
        "plan.cursor",
        "plan.slices",
    },
    "documents": {"bad_records", "balance", "ops", "read", "plan.chunking", "records", "errors"},
    "sealed": {"errors"},
    "state": {"bad_records", "changes", "plan", "sealed", "records", "errors"},
    "lane": {"lane", "bad_records", "balance", "plan", "ops", "sealed", "state", "records", "errors"},
    "ledger": {"plan.layout", "errors"},
    "estimate": {"balance", "plan", "read", "errors"},
    "identity": {"ops", "plan.mixture", "read", "settings", "state"},
    "program": {
        "balance",
        "identity",
        "cache",
        "config",
        "settings",
        "documents",
        "paths",
        "estimate",
        "plan",
        "ops",
        "read",
        "lane",
        "state",
        "records",
        "errors",
    },
    "run": {
        "run",
        "balance",
        "changes",
        "config",
        "settings",
        "ops.carried",
        "ops.pack",
        "ops.render",
        "ops.tokenize",
        "ops.functions",
        "read.files",
        "read.formats",
        "read.one_list",
        "read.settings",
        "read.stores",  # how files are reached; a resume reads the commit of its checkpoint
        "read.source",
        "read.retry",  # a worker that waits to read again must know when its pool ends
        "plan",
        "program",
        "progress",
        "lane",
        "ledger",
        "sealed",
        "state",
        "records",
        "errors",
    },
    # What the loader's process is told, and the script that it starts from.
    "run.messages": {
        "balance",
        "read.files",
        "config",
        "ops.tokenize",
        "ops.functions",
        "plan.layout",
        "state",
        "records",
        "errors",
    },
    "run.boot": {"run.child"},
    "pipeline": {"config", "settings", "plan", "ops", "read", "program", "run", "records", "errors"},
    "__init__": {"config", "pipeline", "run", "records", "errors"},
    "metrics": {"run", "balance", "records"},
    # The module that stock TorchTitan 0.3.0 looks for in a package of configurations.
    "config_registry": {"titan"},
    "reference": {"config"},
    # A checkpoint is read through torch, and only where one is compared.
    "verify": {"ledger", "state", "errors", "titan.checkpoint"},
    "cli": {
        "identity",
        "__version__",
        "config",
        "settings",
        "toml_files",
        "program",
        "ops",
        "ledger",
        "verify",
        "state",
        "errors",
        "titan",
    },
    "torch_dataset": {"pipeline", "run", "errors"},
    "torch_exchange": {"errors"},
    "launch": {"errors"},
    "train": {"launch", "titan", "errors"},
    "titan": {
        "titan",
        "changes",
        "metrics",
        "torch_exchange",
        "config",
        "settings",
        "paths",
        "toml_files",
        "estimate",
        "plan",
        "read.files",
        "read.sequential",
        "read.source",
        "ops",
        "program",
        "run",
        "state",
        "records",
        "errors",
    },
    # A job is checked against TorchTitan where it is installed; a checkpoint is read through torch.
    "titan.check": {
        "identity",
        "titan",
        "documents",
        "__version__",
        "changes",
        "config",
        "settings",
        "estimate",
        "plan.layout",
        "plan.chunking",
        "ops",
        "program",
        "read.files",
        "read.records",
        "run",
        "state",
        "errors",
    },
}
TORCH = {"torch", "torchtitan", "torchdata", "tyro", "spmd_types"}
# `torch_dataset` and `torch_exchange` adapt to torch without TorchTitan; `__init__` imports neither.
MAY_IMPORT_TORCH = ("titan", "torch_dataset", "torch_exchange")
PURE = ("plan", "ops", "lane", "sealed", "state", "balance", "bad_records", "records")
IMPURE_MODULES = {"random", "time", "datetime", "secrets", "uuid", "threading", "socket", "multiprocessing"}

# file or function or class: its number today
LONG_FILES: dict[str, int] = {}
LONG_FUNCTIONS: dict[str, int] = {}
MANY_PARAMETERS: dict[str, int] = {
    "titan.v022.ZephonValidator": 12,  # what TorchTitan 0.2.2 calls its validator with
}


def sources() -> dict[str, str]:
    """Module name within the package to source text."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text("utf-8")
        for path in sorted(ROOT.rglob("*.py"))
    }


def imports(module: str, tree: ast.AST) -> Iterator[str]:
    """Full names of the modules imported anywhere in ``tree``, inside functions too."""
    folder = [PACKAGE, *module.split(".")[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            # `from . import keyed` imports a module, `from .keyed import key` a name in one.
            yield from (f"{name}.{alias.name}" if is_folder(name) else name for alias in node.names)


def is_folder(name: str) -> bool:
    parts = name.split(".")
    return parts[0] == PACKAGE and (ROOT.parent / Path(*parts)).is_dir()


def within(module: str, folders: set[str] | tuple[str, ...]) -> bool:
    return any(module == f or module.startswith(f + ".") for f in folders)


def import_complaints(code: dict[str, str]) -> list[str]:
    found = []
    for module, text in code.items():
        allowed = max((key for key in ALLOWED if within(module, {key})), key=len, default=None)
        if allowed is None:
            found.append(f"{module} has no place in ALLOWED")
            continue
        for name in imports(module, ast.parse(text)):
            top = name.split(".")[0]
            if top == PACKAGE and not within(name.removeprefix(f"{PACKAGE}."), ALLOWED[allowed]):
                found.append(f"{module} imports {name}")
            if top in TORCH and not within(module, MAY_IMPORT_TORCH):
                found.append(f"{module} imports {name}")
    return found


def purity_complaints(code: dict[str, str]) -> list[str]:
    """Randomness, clocks, threads and built-in hashes where the stream is decided."""
    found = []
    for module, text in code.items():
        if not within(module, PURE):
            continue
        tree = ast.parse(text)
        found += [f"{module} imports {name}" for name in imports(module, tree) if name.split(".")[0] in IMPURE_MODULES]
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("hash", "id", "open")
            ):
                found.append(f"{module}:{node.lineno} calls {node.func.id}()")
            if isinstance(node, ast.Attribute) and node.attr == "random":
                found.append(f"{module}:{node.lineno} uses {ast.unparse(node)}")
    return found


def size_complaints(code: dict[str, str]) -> list[str]:
    found = []
    for module, text in code.items():
        found += over(module, len(text.splitlines()), MOST_LINES, LONG_FILES, "lines")
        for name, node in named(ast.parse(text)):
            full = f"{module}.{name}"
            if isinstance(node, ast.ClassDef):
                found += over(full, parameters(node), MOST_PARAMETERS, MANY_PARAMETERS, "constructor parameters")
                found += over(full, len(attributes(node)), MOST_ATTRIBUTES, {}, "attributes")
            else:
                lines = (node.end_lineno or 0) - node.lineno + 1
                found += over(full, lines, MOST_FUNCTION_LINES, LONG_FUNCTIONS, "lines")
    return found


def over(name: str, size: int, most: int, exceptions: dict[str, int], unit: str) -> list[str]:
    limit = exceptions.get(name, most)
    return [f"{name} has {size} {unit}, more than {limit}"] if size > limit else []


Named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def named(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Named]]:
    """Every class and function in ``tree`` with its qualified name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Named):
            yield prefix + node.name, node
            yield from named(node, f"{prefix}{node.name}.")
        else:
            yield from named(node, prefix)


def parameters(node: ast.ClassDef) -> int:
    """Parameters of ``__init__``, or the fields of a class that has none."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            arguments = item.args
            return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - 1
    return sum(isinstance(item, ast.AnnAssign) for item in node.body)


def attributes(node: ast.ClassDef) -> set[str]:
    """What an object of a class holds: its fields, and what is assigned to ``self``."""
    fields = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
    return {target.id for target in fields if isinstance(target, ast.Name)} | {
        inner.attr
        for inner in ast.walk(node)
        if isinstance(inner, ast.Attribute)
        and isinstance(inner.ctx, ast.Store)
        and isinstance(inner.value, ast.Name)
        and inner.value.id == "self"
    }


def chain(room: str, code: dict[str, str]) -> list[str]:
    """The longest chain of imports from ``room`` down; a room is a folder, or a file that is in none."""
    below: dict[str, set[str]] = {}
    for module, text in code.items():
        own = module.split(".")[0]
        others = {n.split(".")[1] for n in imports(module, ast.parse(text)) if n.startswith(f"{PACKAGE}.")}
        below[own] = below.get(own, set()) | {other for other in others if other != own}

    @functools.cache
    def longest(room: str) -> list[str]:
        return [room, *max((longest(other) for other in sorted(below.get(room, ()))), key=len, default=[])]

    return longest(room)


def test_the_chain_of_imports_of_the_engine_is_short() -> None:
    assert len(chain("pipeline", sources())) <= LONGEST_CHAIN, " -> ".join(chain("pipeline", sources()))


def test_imports_go_one_way() -> None:
    assert import_complaints(sources()) == []


def test_what_decides_the_stream_uses_no_clock_thread_or_foreign_randomness() -> None:
    assert purity_complaints(sources()) == []


def test_no_file_function_or_constructor_grows_past_its_limit() -> None:
    assert size_complaints(sources()) == []


def test_every_exception_is_still_needed_and_as_large_as_listed() -> None:
    code = sources()
    sizes = {module: len(text.splitlines()) for module, text in code.items()}
    functions, classes = {}, {}
    for module, text in code.items():
        for name, node in named(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                classes[f"{module}.{name}"] = parameters(node)
            else:
                functions[f"{module}.{name}"] = (node.end_lineno or 0) - node.lineno + 1
    for listed, today in ((LONG_FILES, sizes), (LONG_FUNCTIONS, functions), (MANY_PARAMETERS, classes)):
        assert listed == {name: today.get(name) for name in listed}


def test_no_module_imports_itself_through_others() -> None:
    names = {module: set(imports(module, ast.parse(text))) for module, text in sources().items()}
    graph = {
        module: {other for other in names if other != module and f"{PACKAGE}.{other}" in wanted}
        for module, wanted in names.items()
    }
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module not in done:
            for other in sorted(graph[module]):
                visit(other, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


@pytest.mark.parametrize(
    ("module", "text", "complaint"),
    [
        ("plan.mixture", "from ..state import LaneState", "plan.mixture imports torchtitan_zephon.state"),
        ("plan.layout", "from ..config import Recipe", "plan.layout imports torchtitan_zephon.config"),
        ("ops.pack", "from ..plan import mixture", "ops.pack imports torchtitan_zephon.plan.mixture"),
        ("ops.pack", "def f():\n    import torch", "ops.pack imports torch"),
        ("read.jsonl", "import torchtitan_zephon.lane", "read.jsonl imports torchtitan_zephon.lane"),
        ("lane.machine", "from ..run.pool import Pool", "lane.machine imports torchtitan_zephon.run.pool"),
        ("run.stream", "from torch.utils import data", "run.stream imports torch.utils"),
        ("pipeline", "from .titan.loader import x", "pipeline imports torchtitan_zephon.titan.loader"),
        ("verify", "from .titan import loader", "verify imports torchtitan_zephon.titan.loader"),
        ("__init__", "from .torch_dataset import TorchDataset", "__init__ imports torchtitan_zephon.torch_dataset"),
        ("brand_new", "", "brand_new has no place in ALLOWED"),
    ],
)
def test_the_import_check_can_fail(module: str, text: str, complaint: str) -> None:
    assert complaint in import_complaints({module: text})


@pytest.mark.parametrize(
    "text",
    [
        "import random",
        "from random import shuffle",
        "import time",
        "from datetime import datetime",
        "import threading",
        "import numpy as np\nx = np.random.default_rng(1)",
        "x = hash('a')",
        "x = {id(a): a}",
    ],
)
@pytest.mark.parametrize("module", ["plan.keyed", "ops.shuffle", "lane.machine", "state"])
def test_the_purity_check_can_fail(module: str, text: str) -> None:
    assert purity_complaints({module: text})
    assert not purity_complaints({"run.stream": text})


def test_the_size_check_can_fail() -> None:
    long_file = "x = 1\n" * (MOST_LINES + 1)
    long_function = "class A:\n    def f(self):\n" + "        x = 1\n" * MOST_FUNCTION_LINES
    many = "class A:\n    def __init__(self, a, b, c, d, e, f, g, *, h, i): ..."
    fields = "class ZephonValidator:\n" + "".join(f"    f{n}: int\n" for n in range(13))
    assert size_complaints({"m": long_file}) == ["m has 351 lines, more than 350"]
    assert size_complaints({"m": long_function}) == ["m.A.f has 51 lines, more than 50"]
    held = "class A:\n    def f(self):\n" + "".join(f"        self.x{n} = 1\n" for n in range(13))
    assert size_complaints({"m": held}) == ["m.A has 13 attributes, more than 12"]
    assert size_complaints({"m": many}) == ["m.A has 9 constructor parameters, more than 8"]
    assert size_complaints({"titan.v022": fields}) == [
        "titan.v022.ZephonValidator has 13 constructor parameters, more than 12",
        "titan.v022.ZephonValidator has 13 attributes, more than 12",
    ]


@pytest.mark.parametrize(
    ("statement", "absent"), [("import {}", {"numpy", "pyarrow"}), ("from {} import Pipeline", set())]
)
def test_importing_the_package_brings_no_torch_and_little_else(statement: str, absent: set[str]) -> None:
    heavy = absent | TORCH | {"orjson", "tokenizers", "fastokens", "datasets", "transformers"}
    found = f"sorted({heavy!r} & {{m.split('.')[0] for m in sys.modules}})"
    script = f"import sys; {statement.format(PACKAGE)}; sys.exit(str({found}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stderr == "[]\n"


def test_every_public_name_is_there_and_no_other() -> None:
    import torchtitan_zephon

    for name in torchtitan_zephon.__all__:
        assert getattr(torchtitan_zephon, name).__name__ == name
        assert name in dir(torchtitan_zephon)
    with pytest.raises(AttributeError, match="'torchtitan_zephon' has no attribute 'Pipelime'"):
        _ = torchtitan_zephon.Pipelime


@pytest.mark.parametrize("module", ["cli", "verify", "ledger", "reference", "titan.check", "titan.generations"])
def test_the_commands_load_without_torch(module: str) -> None:
    script = f"import sys, {PACKAGE}.{module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)
