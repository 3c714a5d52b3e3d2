"""Hypothesis profiles, and which tests are collected where TorchTitan is missing.

``ci`` is the default: the same examples on every machine and every run. To look for new ones:
``pytest --hypothesis-profile explore``. What it finds is written down as an ``@example``.
"""

from __future__ import annotations

from importlib.util import find_spec

from hypothesis import settings

settings.register_profile("ci", derandomize=True, database=None, deadline=None, max_examples=60)
settings.register_profile("explore", derandomize=False, database=None, deadline=None, max_examples=2000)
settings.load_profile("ci")

collect_ignore = [] if find_spec("torchtitan") else ["titan"]
