"""Waiting for the tokens of a chunk, and what is said when that takes long.

A read may hang for ever (a dead mount), and a tokenizer may take minutes over one document. From here the two look
alike, so nothing is ended: a line says what is waited for after ``SAY_AFTER_S``, and again when the wait has doubled.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from typing import Any, TypeVar

from ..plan.chunking import Chunk
from ..program import Program
from .pool import Pool

T = TypeVar("T")
SAY_AFTER_S = 60.0
logger = logging.getLogger(__name__)


def wait_for(future: Future[T], chunk: Chunk, program: Program, pool: Pool) -> T:
    """What a worker makes of ``chunk``, in work as ``future``."""
    began, after = time.monotonic(), SAY_AFTER_S
    while not future.done():
        try:
            return future.result(began + after - time.monotonic())
        except TimeoutError:
            if not future.done():  # else the error is the chunk's own
                logger.warning("zephon: %s", _wait_text(after, future, chunk, program, pool))
                after *= 2
    return future.result()


def _wait_text(seconds: float, future: Future[Any], chunk: Chunk, program: Program, pool: Pool) -> str:
    """What is waited for: this chunk, or one that keeps a worker from beginning it."""
    busy = sorted(pool.busy(), key=lambda call: call[0])
    why = ""
    if not future.running() and busy:
        since, (chunk, *_) = busy[0]
        why = f", which has kept a worker busy for {time.monotonic() - since:.3g} s"
    return (
        f"the next batch has been held up for {seconds:.3g} s by {program.sources[chunk.source].where(chunk)}{why}. "
        "Either the file system does not answer, or these records take long to filter, map or tokenise (a very long "
        "document). The job waits on."
    )
