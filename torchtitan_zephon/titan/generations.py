"""What differs between generations of TorchTitan, one row for each, and which of them is installed.

Only what is true of one generation's own classes stands elsewhere, in the module that its row names. Neither torch nor
TorchTitan is imported before ``Generation.load``.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import ConfigError

PLAIN_ON_CPU = {("training", "mixed_precision_param"): "float32", ("activation_checkpoint", "mode"): "none"}
SPMD_ON_CPU = {
    **PLAIN_ON_CPU,
    ("training", "disable_cuda_graphs"): True,
    ("parallelism", "spmd_backend"): "partial_dtensor",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """One generation of TorchTitan.

    ``module``: in this package, with ``run``, ``build_config``, ``model_vocab_size`` and ``ZephonDataLoader``; None for
    a generation that is not supported yet. ``stock_recipe``: recipe keys that follow its stock text loader where a job
    does not state them. ``columns``: what that loader gives a model, beside the labels. ``validation_sizes``: whether
    ``[validation]`` has its own ``seq_len`` and ``local_batch_size``. ``pipeline_batch``: the key of ``[parallelism]``
    with the sequences a loader is asked for at a time under pipeline parallelism; None: the local batch.
    ``initial_load_if_no_folder``: as in ``checkpoint.Restart``. ``cpu_defaults``: keys that CPU mode sets where a job
    does not state them.
    """

    version: str
    module: str | None
    stock_recipe: Mapping[str, Any]
    columns: tuple[str, ...]
    validation_sizes: bool
    pipeline_batch: str | None
    initial_load_if_no_folder: bool
    cpu_defaults: Mapping[tuple[str, str], Any]

    def load(self) -> ModuleType:
        """Import and return the module that runs a ``Job`` on it."""
        assert self.module is not None
        return importlib.import_module(f".{self.module}", __package__)


ROWS = (
    Generation(
        version="0.2.2",
        module="v022",
        stock_recipe={"label_shift": "sequence"},
        columns=("input",),  # its models find the borders between documents by the EOS token
        validation_sizes=True,
        pipeline_batch=None,
        initial_load_if_no_folder=True,
        cpu_defaults=PLAIN_ON_CPU,
    ),
    Generation(
        version="0.3.0",
        module="v030_job",
        stock_recipe={"label_shift": "document"},
        columns=("input", "positions"),
        validation_sizes=False,
        pipeline_batch="pipeline_parallel_microbatch_size",
        initial_load_if_no_folder=False,
        cpu_defaults=SPMD_ON_CPU,
    ),
    Generation(
        version="main",  # unreleased; sizes are stated in tokens, and a batch is flat
        module=None,
        stock_recipe={"label_shift": "document"},
        columns=("input", "positions"),
        validation_sizes=False,
        pipeline_batch=None,
        initial_load_if_no_folder=False,
        cpu_defaults=SPMD_ON_CPU,
    ),
)
GENERATIONS = {row.version: row for row in ROWS}
SUPPORTED = {version: row for version, row in GENERATIONS.items() if row.module is not None}
NEWEST = list(SUPPORTED.values())[-1]

ONLY_IN_MAIN = Path("components", "data")
"""A folder of the package that tells main from a release: main's own version is that of an older release."""


def version_here() -> str | None:
    """The TorchTitan installed here, a release without its local part or "main"; None if there is none."""
    try:
        version = metadata.version("torchtitan").partition("+")[0]
    except metadata.PackageNotFoundError:
        return None
    package = importlib.util.find_spec("torchtitan")
    folders = [] if package is None else package.submodule_search_locations or []
    return "main" if any((Path(folder) / ONLY_IN_MAIN).is_dir() for folder in folders) else version


def installed() -> Generation:
    """The generation installed here; ``ConfigError`` if there is none, or it is not supported."""
    version, supported = version_here(), ", ".join(SUPPORTED)
    if version is None:
        raise ConfigError(
            f"TorchTitan is not installed; supported: {supported}. Install it with: "
            f"pip install torchtitan=={NEWEST.version}"
        )
    if version not in SUPPORTED:
        raise ConfigError(
            f"TorchTitan {version} is installed; supported: {supported}. Each release "
            "changes the trainer's contract, so none is tried untested."
        )
    return SUPPORTED[version]
