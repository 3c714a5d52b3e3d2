"""How far a restore is, said in the log every ``SHOW_S`` seconds, and a line when it is done."""

from __future__ import annotations

import logging
import time

SHOW_S = 2.0
logger = logging.getLogger(__name__)


class Progress:
    """Counts the sequences read again, of ``sequences`` in all."""

    def __init__(self, *, lanes: int, sequences: int) -> None:
        self._lanes, self._sequences, self._done = lanes, sequences, 0
        self._began = time.monotonic()
        self._show = self._began + SHOW_S

    def done(self, sequences: int) -> None:
        """So many more were read."""
        self._done += sequences
        if time.monotonic() > self._show:
            self._show += SHOW_S
            said = f"{self._done:,}", f"{self._sequences:,}", self._lanes
            logger.info("restoring: %s of %s sequences of %d lanes read again", *said)

    def end(self) -> None:
        """All were read, and are those that were trained on."""
        said = f"{self._done:,}", self._lanes, time.monotonic() - self._began
        logger.info("restored: %s sequences of %d lanes read again in %.1f s", *said)
