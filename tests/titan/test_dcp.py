"""The loader in DCP: 16 ranks save, 8 and 64 load; every global batch is the one of an unbroken run."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchtitan")

import torch
import torch.distributed.checkpoint as dcp

from tests.scenarios import corpus, small_pipeline, tokenizer_folder, write_jsonl
from tests.titan.dcp_rank import BATCH, LANES, sources_in
from tests.titan.scenarios import forked, look_at_checkpoint, torchrun
from torchtitan_zephon import RecipeChangedError, StateError
from torchtitan_zephon.run.stream import RankStream
from torchtitan_zephon.titan.checkpoint import check_files, read_loader_state, read_trainer_step
from torchtitan_zephon.titan.preflight import warn_of_repeats
from torchtitan_zephon.verify import verify

pytestmark = pytest.mark.slow
SAVED_AT, STEPS = 3, 6


def look(stream: RankStream, path: Path) -> None:
    """Whether ``stream`` could continue from the checkpoint at ``path``, which has no trainer's state."""
    look_at_checkpoint(stream.program, stream.settings, path, stream.layout.global_batch_size, "train_state")


def run(processes: int, folder: Path, name: str, *arguments: object) -> list[list[str]]:
    """Hashes of the sequences of each global batch, in canonical order, of one launch; that of 2 is torchrun's."""
    out = folder / name
    out.mkdir()
    launcher = torchrun if processes == 2 else forked
    code, output = launcher(processes, "tests.titan.dcp_rank", folder / "data", tokenizer_folder(), out, *arguments)
    assert code == 0, output[-3000:]
    ranks = [json.loads(file.read_text()) for file in sorted(out.glob("*.json"))]
    assert len(ranks) == processes
    coordinates = {rank["coordinate"]: rank["steps"] for rank in ranks}
    assert all(coordinates[rank["coordinate"]] == rank["steps"] for rank in ranks), "peers were given different data"
    ordered = [coordinates[c] for c in sorted(coordinates)]
    return [[h for steps in ordered for h in steps[t]] for t in range(len(ordered[0]))]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[str]]]:
    """A folder with the checkpoint of 16 ranks at step 3, and the global batches of an unbroken run."""
    folder = tmp_path_factory.mktemp("dcp")
    corpus(folder / "data", 600)
    straight = run(1, folder, "straight", STEPS)
    before = run(16, folder, "sixteen", SAVED_AT, "--save", folder / "checkpoint")
    assert before == straight[:SAVED_AT]
    return folder, straight


@pytest.mark.parametrize("processes", [8, 64])  # 32 is in test_resize, with the real trainer
def test_a_checkpoint_of_16_ranks_continues_on_another_number(
    saved: tuple[Path, list[list[str]]], processes: int
) -> None:
    folder, straight = saved
    arguments = (STEPS - SAVED_AT, "--load", folder / "checkpoint", "--save", folder / f"again-{processes}")
    assert run(processes, folder, str(processes), *arguments) == straight[SAVED_AT:]


KEYS = sorted({"dataloader.stream", *(f"dataloader.lane.{n:05d}" for n in range(LANES))})


def keys_of(checkpoint: Path) -> list[str]:
    return sorted(dcp.FileSystemReader(str(checkpoint)).read_metadata().state_dict_metadata)


def test_every_lane_is_in_the_checkpoint_once_though_each_rank_saves_only_its_own(
    saved: tuple[Path, list[list[str]]],
) -> None:
    folder, _ = saved
    assert keys_of(folder / "checkpoint") == KEYS
    assert len(list((folder / "checkpoint").glob("*.distcp"))) == 16


def test_two_peers_of_a_data_coordinate_get_the_same_and_save_it_once(saved: tuple[Path, list[list[str]]]) -> None:
    folder, straight = saved
    arguments = (STEPS - SAVED_AT, "--load", folder / "checkpoint", "--save", folder / "peers", "--peers", 2)
    assert run(8, folder, "peers-out", *arguments) == straight[SAVED_AT:]
    assert keys_of(folder / "peers") == KEYS


def test_checkpoints_of_two_runs_are_compared_without_data(saved: tuple[Path, list[list[str]]]) -> None:
    folder, _ = saved
    run(2, folder, "two", STEPS - SAVED_AT, "--load", folder / "checkpoint", "--save", folder / "end-2")
    run(4, folder, "four", STEPS - SAVED_AT, "--load", folder / "checkpoint", "--save", folder / "end-4")
    assert verify(folder / "end-2", folder / "end-4").same
    assert "step 3 against step 6" in verify(folder / "checkpoint", folder / "end-4").text


def test_the_state_of_all_lanes_is_read_by_one_process(saved: tuple[Path, list[list[str]]]) -> None:
    folder, _ = saved
    state = read_loader_state(folder / "checkpoint")
    assert len(state["lane"]) == 64
    assert all(json.loads(v)["sequences"] == SAVED_AT for v in state["lane"].values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lanes": 32}, "lanes: 64 -> 32"),
        ({"lanes": 128, "global_batch_size": 128}, "lanes: 64 -> 128"),
        ({"seed": 8}, "seed: 7 -> 8"),
        ({"global_batch_size": 128}, "global_batch_size: 64 -> 128"),
    ],
    ids=["fewer lanes", "more lanes", "seed", "global batch"],
)
def test_a_checkpoint_that_does_not_fit_is_refused_before_the_trainer_sees_it(
    saved: tuple[Path, list[list[str]]], options: dict[str, int], message: str
) -> None:
    folder, _ = saved
    shape = {"lanes": LANES, "global_batch_size": BATCH, "local_batch_size": 1}
    fits = small_pipeline(sources_in(folder / "data"), **shape).for_rank(0, 1)  # type: ignore[arg-type]
    look(fits, folder / "checkpoint")
    other = small_pipeline(sources_in(folder / "data"), **{**shape, **options}).for_rank(0, 1)  # type: ignore[arg-type]
    with pytest.raises(RecipeChangedError, match=re.escape(message)):
        look(other, folder / "checkpoint")


def test_a_checkpoint_of_changed_data_is_refused_by_shard(saved: tuple[Path, list[list[str]]], tmp_path: Path) -> None:
    folder, _ = saved
    sources = corpus(tmp_path, 600)
    write_jsonl(sources["alpha"] / "part-1.jsonl", ["another text"] * 200)
    stream = small_pipeline(sources, lanes=LANES, global_batch_size=BATCH, local_batch_size=1).for_rank(0, 1)
    with pytest.raises(RecipeChangedError) as error:
        look(stream, folder / "checkpoint")
    assert [change.split(":")[0] for change in error.value.changes] == ["sources.alpha.shards.part-1.jsonl"]


def test_a_checkpoint_without_metadata_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "step-3").mkdir()
    with pytest.raises(StateError, match=r"step-3' cannot be read: .*\.metadata.*--checkpoint.load_step N"):
        read_loader_state(tmp_path / "step-3")


@pytest.mark.parametrize("spoil", [lambda f: f.write_bytes(f.read_bytes()[:100]), lambda f: f.unlink()])
def test_a_checkpoint_whose_files_are_damaged_or_gone_is_refused_with_the_way_out(
    saved: tuple[Path, list[list[str]]], tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    folder, _ = saved
    shutil.copytree(folder / "checkpoint", tmp_path / "damaged")
    spoil(tmp_path / "damaged" / "__5_0.distcp")
    with pytest.raises(StateError, match=r"loader state in '.*damaged' is damaged: .*--checkpoint.load_step N"):
        read_loader_state(tmp_path / "damaged")


def save(state: dict[str, object], folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        dcp.save(state, checkpoint_id=folder, no_dist=True)


def test_a_checkpoint_without_loader_state_is_refused_with_the_way_out(tmp_path: Path) -> None:
    save({"model": {"w": 1}}, tmp_path / "model-only")
    with pytest.raises(StateError, match=r"no loader state.*exclude_from_loading dataloader"):
        read_loader_state(tmp_path / "model-only")


def test_a_checkpoint_of_another_loader_is_refused_with_the_way_out(tmp_path: Path) -> None:
    save({"dataloader": {"dp_rank_0": b"x", "world_size": 4}}, tmp_path / "stock")
    with pytest.raises(StateError, match=r"another data loader.*exclude_from_loading dataloader"):
        read_loader_state(tmp_path / "stock")


def test_a_checkpoint_with_a_lane_too_few_or_too_many_is_refused(
    saved: tuple[Path, list[list[str]]], tmp_path: Path
) -> None:
    folder, _ = saved
    pipeline = small_pipeline(sources_in(folder / "data"), lanes=LANES, global_batch_size=BATCH, local_batch_size=1)
    stream = pipeline.for_rank(0, 1)
    state = read_loader_state(folder / "checkpoint")
    lanes = state["lane"]
    fewer, more = {k: v for k, v in lanes.items() if k != "00063"}, {**lanes, "00064": lanes["00063"]}
    for changed, said in ((fewer, "holds no state of lane 63"), (more, "holds lane '00064', which is none of")):
        save({"dataloader": {"stream": state["stream"], "lane": changed}}, tmp_path / str(len(changed)))
        with pytest.raises(StateError, match=said):
            look(stream, tmp_path / str(len(changed)))


def test_a_new_stream_that_would_repeat_what_was_trained_on_is_told(
    saved: tuple[Path, list[list[str]]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, _ = saved

    def warning(sources: dict[str, Path], path: Path = folder / "checkpoint", **changes: object) -> str:
        shape = {"lanes": LANES, "global_batch_size": BATCH, "local_batch_size": 1, **changes}
        caplog.clear()
        warn_of_repeats(small_pipeline(sources, **shape).for_rank(0, 1).program, path)  # type: ignore[arg-type]
        return "".join(r.getMessage() for r in caplog.records if r.levelname == "WARNING")

    sources = sources_in(folder / "data")
    same = warning(sources)
    assert f"is in step {SAVED_AT} of this very recipe" in same and "Leave the key out to continue" in same
    other = warning(sources, lanes=LANES * 2, global_batch_size=BATCH * 2, seq_len=64)
    assert f"is in step {SAVED_AT} of a recipe with the same seed" in other and "first change zephon.seed" in other
    for name in sources:
        assert f"{name} (" in same and f"{name} (" in other
    first, *rest = sources
    write_jsonl(tmp_path / "new" / "a.jsonl", ["all of this is new"] * 9)
    part = warning({"renamed": sources[first], "new": tmp_path / "new"})
    assert "comes again, from: renamed (" in part and "new (" not in part and not any(f"{n} (" in part for n in rest)

    save({"dataloader": {"dp_rank_0": b"x"}}, tmp_path / "stock")
    assert warning(sources, seed=8) == warning({"new": tmp_path / "new"}) == ""
    assert warning(sources, tmp_path / "stock") == ""


# ---- checkpoints of any content


def hostile_checkpoint(folder: Path, **values: object) -> Path:
    save({"dataloader": values}, folder)
    return folder


def refusal(path: Path, pipeline_folder: Path) -> str:
    shape = {"lanes": LANES, "global_batch_size": BATCH, "local_batch_size": 1}
    stream = small_pipeline(sources_in(pipeline_folder), **shape).for_rank(0, 1)  # type: ignore[arg-type]
    check_files(path)
    with pytest.raises(StateError) as error:
        look(stream, path)
    assert re.search(r"--checkpoint\.|Install the version", str(error.value)), error.value
    return str(error.value)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: {**s, "stream": torch.zeros(4)}, "is a Tensor, not bytes|is damaged: ValueError: Inval"),
        (lambda s: {**s, "stream": 7}, "the loader state is a int, not bytes"),
        (lambda s: {**s, "stream": "text"}, "the loader state is a str, not bytes"),
        (lambda s: {**s, "stream": b"[" * 10_000}, "none that a state is written in"),
        (lambda s: {**s, "extra": b""}, r"another data loader \(keys: dataloader.extra\)"),
        (lambda s: {**s, "lane": b""}, r"another data loader \(keys: dataloader.lane\)"),
        (lambda s: {**s, "lane": {"0": s["lane"]["00000"]}}, "holds lane '0', which is none of"),
        (lambda s: {**s, "lane": {"00000": {"a": b""}}}, "holds lane '00000.a', which is none of"),
        (lambda s: {**s, "lane": {**s["lane"], "00003": [1, {"a": 2}]}}, "holds lane '00003.0'|is a list, not bytes"),
        (
            lambda s: {**s, "lane": {**s["lane"], "00003": torch.ones(2, 2)}},
            "is a Tensor|is damaged: ValueError: Inval",
        ),
        (lambda s: {**s, "lane": {**s["lane"], "00003": None}}, "the state of lane 3 is a NoneType"),
    ],
    ids=range(11),
)
def test_a_checkpoint_of_hostile_values_is_refused_with_the_way_out(
    saved: tuple[Path, list[list[str]]],
    tmp_path: Path,
    spoil: Callable[[dict[str, Any]], dict[str, object]],
    message: str,
) -> None:
    folder, _ = saved
    state = read_loader_state(folder / "checkpoint")
    assert re.search(message, refusal(hostile_checkpoint(tmp_path / "x", **spoil(state)), folder / "data"))


@pytest.mark.parametrize("step", [-1, 2**70, 1.5, float("nan"), "three", [3], None, torch.ones(2)], ids=repr)
def test_a_step_of_the_trainer_that_cannot_be_is_refused_with_the_way_out(tmp_path: Path, step: object) -> None:
    save({"train_state": {"step": step}}, tmp_path / "x")
    with pytest.raises(StateError, match=r"the trainer's step in '.*' cannot be read: .*--checkpoint.load_step N"):
        read_trainer_step(tmp_path / "x")


def opened(path: Path) -> dict[str, Any]:
    check_files(path)
    return read_loader_state(path)


class _Listed:
    """What a ``.metadata`` may hold instead of what DCP wrote."""

    def __init__(self, state_dict_metadata: object, storage_data: object) -> None:
        self.state_dict_metadata, self.storage_data = state_dict_metadata, storage_data


@pytest.mark.parametrize(
    "listed",
    [None, 7, [], {}, _Listed(None, None), _Listed({7: 1}, {}), _Listed({"model": 1}, {"a": 1}), _Listed({}, [1])],
    ids=range(8),
)
def test_a_metadata_file_of_another_content_is_refused_with_the_way_out(tmp_path: Path, listed: object) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(listed))
    with pytest.raises(StateError, match=r"--checkpoint\."):
        opened(tmp_path)
