"""A forked rank is given what torchrun gives, and a launch of them ends as one of torchrun does."""

from __future__ import annotations

import json
import os
import select
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchtitan")

from tests.titan.forks import ENVIRONMENT, SERVERS, ForkServer, forked
from tests.titan.scenarios import torchrun

pytestmark = pytest.mark.slow
RANKS = 3
OF_A_LAUNCH = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}
"""Variables that are another's at each launch, or the machine's name."""


def ranks(out: Path) -> list[dict[str, Any]]:
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What the ranks of each launcher saw."""
    found = {}
    for launcher in (torchrun, forked):
        out = tmp_path_factory.mktemp(launcher.__name__)
        code, output = launcher(RANKS, "tests.titan.a_rank", out)
        assert code == 0, output
        for rank in range(RANKS):
            assert output.count(f"rank {rank} speaks\n") == output.count(f"rank {rank} complains\n") == 1
            assert (out / f"{rank}.ended").exists(), "Python has not ended in the rank"
        found[launcher.__name__] = ranks(out)
    return found


def test_a_forked_rank_has_the_variables_path_and_folder_of_torchrun_s(seen: dict[str, list[dict[str, Any]]]) -> None:
    for rank, (real, fork) in enumerate(zip(seen["torchrun"], seen["forked"], strict=True)):
        theirs, ours = real["environment"], fork["environment"]
        assert theirs.keys() == ours.keys()
        assert {k: v for k, v in theirs.items() if v != ours[k]}.keys() <= OF_A_LAUNCH
        assert ours["RANK"] == str(rank)
        for name in ("path", "folder", "total", "session", "module", "device"):
            assert real[name] == fork[name], name
        assert real["arguments"][0] == fork["arguments"][0]
        assert fork["total"] == 6 and fork["session"]


def test_a_forked_rank_begins_without_our_package_and_threads_and_hashes_unlike_its_neighbour(
    seen: dict[str, list[dict[str, Any]]],
) -> None:
    for fork in seen["forked"]:
        assert fork["ours"] == []
        assert fork["threads"] == 1
    hashes = [fork["hash"] for fork in seen["forked"]]
    assert hashes[0] != hashes[1]
    assert len(set(hashes)) == SERVERS


@pytest.mark.parametrize("launcher", [torchrun, forked])
def test_a_rank_that_fails_ends_the_others_at_once(tmp_path: Path, launcher: Any) -> None:
    began = time.monotonic()
    code, output = launcher(RANKS, "tests.titan.a_rank", tmp_path, 1)
    assert code == 1, output
    assert time.monotonic() - began < 300, "the others were waited for"


def test_a_launch_that_does_not_end_is_an_error_and_leaves_no_process(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no end in 5 s"):
        forked(2, "tests.titan.a_rank", tmp_path, 5, cwd=tmp_path, timeout_s=5)
    assert not [pid for pid in filter(str.isdigit, os.listdir("/proc")) if works_in(pid, tmp_path)]  # noqa: PTH208
    assert forked(1, "tests.titan.a_rank", tmp_path)[0] == 0, "the servers are still there"


@pytest.mark.parametrize("begun", [True, False])
def test_a_server_whose_caller_is_gone_kills_its_ranks(tmp_path: Path, begun: bool) -> None:
    server, (mine, theirs) = ForkServer(), os.pipe()
    endless = {"module": "http.server", "arguments": ["--bind", "127.0.0.1", "0"]}
    server.fork(theirs, **endless, folder=str(tmp_path), environment=ENVIRONMENT)
    os.close(theirs)
    if begun:
        assert server.answer().keys() == {"forked"}
        assert os.read(mine, 1000)
    server.channel.close()
    ended = False
    while not ended and select.select([mine], [], [], 300)[0]:
        ended = not os.read(mine, 1000)
    assert ended, "somebody still holds its output"
    assert not [pid for pid in filter(str.isdigit, os.listdir("/proc")) if works_in(pid, tmp_path)]  # noqa: PTH208
    os.close(mine)


def works_in(pid: str, folder: Path) -> bool:
    """Whether that process runs, with ``folder`` as its working folder."""
    try:
        return Path(f"/proc/{pid}/cwd").readlink() == folder
    except OSError:  # it has just ended
        return False


def test_a_variable_that_libraries_may_have_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", "elsewhere")
    with pytest.raises(AssertionError, match=r"'HF_HOME'.*use torchrun here"):
        forked(1, "tests.titan.a_rank")


@pytest.mark.parametrize("launcher", [torchrun, forked])
def test_a_launch_beside_other_tests_is_refused(monkeypatch: pytest.MonkeyPatch, launcher: Any) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    with pytest.raises(AssertionError, match="mark it slow"):
        launcher(1, "tests.titan.a_rank")
