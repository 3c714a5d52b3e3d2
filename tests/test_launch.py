"""What a launcher leaves unsaid, or says wrongly, is one sentence before anything is built."""

from __future__ import annotations

import pytest

from tests.scenarios import says
from torchtitan_zephon import ConfigError
from torchtitan_zephon.launch import check_launch, local_rank

TORCHRUN = {
    "WORLD_SIZE": "8",
    "RANK": "5",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}
SLURM = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8"}


def refused(environ: dict[str, str], *parts: str) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        check_launch(environ)
    says(error, *parts)
    return error.value


@pytest.mark.parametrize("more", [{}, SLURM, {"SLURM_PROCID": "0"}], ids=["alone", "under srun", "in a batch script"])
def test_what_torchrun_sets_is_enough(more: dict[str, str]) -> None:
    check_launch(TORCHRUN | more)


def test_what_another_launcher_sets_is_enough_without_the_size_of_a_node() -> None:
    check_launch({name: value for name, value in TORCHRUN.items() if name != "LOCAL_WORLD_SIZE"})


def test_a_process_that_nobody_launched_is_told_how() -> None:
    error = refused({}, "not started by torchrun: WORLD_SIZE, RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT are not set",
                    "torchrun --standalone --nproc-per-node 1")  # fmt: skip
    assert error.of_all_ranks


def test_srun_without_torchrun_is_told_both_ways_out() -> None:
    error = refused(SLURM, "started by srun (SLURM_PROCID = 5)", "Let srun start one torchrun on each node",
                    "LOCAL_RANK=$SLURM_LOCALID")  # fmt: skip
    assert error.of_all_ranks
    refused(SLURM | {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}, "WORLD_SIZE, RANK, LOCAL_RANK are not set")


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT"])
def test_one_variable_that_is_missing_is_named_beside_those_that_are_there(name: str) -> None:
    environ = {k: v for k, v in TORCHRUN.items() if k != name}
    error = refused(environ, f"{name} not set, though ", "MASTER_ADDR = 'localhost'", "Start it with torchrun")
    assert not error.of_all_ranks


@pytest.mark.parametrize("value", ["", "one", "-1", "1.0", "²"])
@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE"])
def test_a_place_that_is_no_number_is_shown(name: str, value: str) -> None:
    refused(TORCHRUN | {name: value}, f"{name} = {value!r} is no whole number")
    refused(TORCHRUN | SLURM | {name: value}, "Let srun start one torchrun")


@pytest.mark.parametrize(
    "change",
    [{"RANK": "8"}, {"LOCAL_RANK": "4"}, {"WORLD_SIZE": "2"}, {"LOCAL_WORLD_SIZE": "16"}],
    ids=lambda change: "".join(change),
)
def test_numbers_that_contradict_each_other_are_shown(change: dict[str, str]) -> None:
    refused(TORCHRUN | change, "contradict each other", *(f"{k} = {v}" for k, v in change.items()))


@pytest.mark.parametrize(
    ("environ", "place"),
    [({}, 0), ({"LOCAL_RANK": "3"}, 3), ({"LOCAL_RANK": ""}, 0), ({"LOCAL_RANK": "", "SLURM_LOCALID": "2"}, 2),
     ({"LOCAL_RANK": "x"}, 0), ({"LOCAL_RANK": "1", "SLURM_LOCALID": "2"}, 1)],
)  # fmt: skip
def test_who_speaks_on_a_node_is_known_whatever_the_launcher_said(environ: dict[str, str], place: int) -> None:
    assert local_rank(environ) == place
