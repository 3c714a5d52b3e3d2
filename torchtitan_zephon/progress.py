"""How far long work is: a bar on a terminal, a line every few seconds in a log, and nothing for what is done in 2 s.

Used by all that a person may have to wait for: listing, sampling, footers, counting, restoring. Only the first process
of a job shows it, as the launcher numbers them, so that the bars of many ranks do not mix.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any

SILENT_S = 2.0
EVERY_S = 5.0
logger = logging.getLogger(__name__)


class Progress:
    """``with Progress("sampling", 100, "files") as progress: progress.done(1)``. Owner: one thread.

    ``total``: None where it is not known.
    """

    def __init__(self, what: str, total: int | None, unit: str) -> None:
        self._what, self._total, self._unit, self._done = what, total, unit, 0
        self._show = time.monotonic() + SILENT_S
        self._is_first = os.environ.get("RANK", "0") == "0"
        self._bar: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def done(self, more: int = 1) -> None:
        """So much more is done."""
        self._done += more
        if self._bar is not None:
            self._bar.update(more)
        elif self._is_first and time.monotonic() > self._show:
            self._show += EVERY_S
            self._say()

    def _say(self) -> None:
        if sys.stderr.isatty():
            from tqdm import tqdm

            how = {"total": self._total, "initial": self._done, "unit": f" {self._unit}", "leave": False}
            self._bar = tqdm(desc=self._what, file=sys.stderr, dynamic_ncols=True, **how)
        elif self._total is None:
            logger.info("%s: %s %s", self._what, f"{self._done:,}", self._unit)
        else:
            logger.info("%s: %s of %s %s", self._what, f"{self._done:,}", f"{self._total:,}", self._unit)
