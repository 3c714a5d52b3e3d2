"""Which tests are for one generation of TorchTitan only."""

from __future__ import annotations

from torchtitan_zephon.titan import GENERATIONS, installed_version

collect_ignore = [f"test_{module}.py" for version, module in GENERATIONS.items() if version != installed_version()]
