"""Which tests are for one generation of TorchTitan only."""

from __future__ import annotations

from torchtitan_zephon.titan.generations import installed

OF_ONE = {"0.2.2": "test_v022.py", "0.3.0": "test_v030.py"}
collect_ignore = [file for version, file in OF_ONE.items() if version != installed().version]
