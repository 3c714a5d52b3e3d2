"""A restore ends with a line that says what it read again, and for how long."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios import rank_steps, small_pipeline


def restored(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines about a restore that has ended; none may be louder than INFO."""
    lines = [record for record in caplog.records if "restored" in record.getMessage()]
    assert all(record.levelno == logging.INFO and record.name.startswith("torchtitan_zephon.") for record in lines)
    return [record.getMessage() for record in lines]


@pytest.mark.parametrize(("steps", "runner"), [(1, "thread"), (3, "thread"), (8, "thread"), (3, "process")])
def test_a_restore_ends_with_a_line_of_sequences_lanes_and_seconds(
    steps: int, runner: Any, sources: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="torchtitan_zephon")
    stream = small_pipeline(sources).for_rank(0, 1)
    rank_steps(stream, steps)
    state = stream.state_dict()
    stream.close()
    assert restored(caplog) == []  # a stream that begins has nothing to restore

    again = small_pipeline(sources).options(runner=runner).for_rank(1, 2)
    again.load_state_dict(state)
    rank_steps(again, 2)
    again.close()
    own = [json.loads(state["lane"][key])["delivered"] for key in ("00002", "00003")]
    [line] = restored(caplog)
    assert re.fullmatch(rf"restored: {sum(own)} sequences of 2 lanes read again in \d+\.\d s", line), line
    assert sum(own) or not steps % 6


def test_a_state_of_step_0_has_nothing_to_restore(sources: dict[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="torchtitan_zephon")
    stream = small_pipeline(sources).for_rank(0, 1)
    stream.load_state_dict(stream.state_dict())
    rank_steps(stream, 2)
    stream.close()
    assert restored(caplog) == []
