"""The ledger is the same for every rank count, survives kills and restarts, and `verify` finds where two runs part."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios import (
    corpus,
    global_batches,
    rank_steps,
    small_pipeline,
    texts_of,
    tokenizer_folder,
    write_jsonl,
)
from torchtitan_zephon import Pipeline, ZephonError
from torchtitan_zephon.cli import main
from torchtitan_zephon.ledger import read_ledger
from torchtitan_zephon.verify import verify

Sources = Mapping[str, Path]


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return corpus(tmp_path / "data", 120)


def run(sources: Sources, folder: Path, degree: int, steps: int, state: Any = None, **options: Any) -> Any:
    """Run with a ledger in ``folder``/ledger, as a job with that dump folder does; returns the state."""
    run_settings = {name: options.pop(name) for name in ("shared_lanes", "allow_changes") if name in options}
    pipeline: Pipeline = small_pipeline(sources, **options).options(ledger=str(folder / "ledger"), **run_settings)
    return global_batches(pipeline, degree, steps, state)[1]


def lines_of(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.jsonl"))


@pytest.mark.parametrize("degree", [1, 2, 4, 8])
def test_the_ledger_is_the_same_on_every_number_of_ranks(sources: Sources, tmp_path: Path, degree: int) -> None:
    shape = {"lanes": 8, "global_batch_size": 16}
    run(sources, tmp_path / "one", 1, 5, local_batch_size=16, **shape)
    run(sources, tmp_path / "many", degree, 5, local_batch_size=1, workers=1, **shape)
    one, many = (read_ledger(tmp_path / name / "ledger") for name in ("one", "many"))
    assert one == many
    assert len({record.sha256 for record in one.values()}) == 5
    assert len(lines_of(tmp_path / "many")) == degree


@pytest.mark.parametrize("degree", [3, 6, 12, 24])
def test_ranks_that_share_a_lane_write_the_same_ledger(sources: Sources, tmp_path: Path, degree: int) -> None:
    shape = {"lanes": 4, "global_batch_size": 24, "local_batch_size": 1}
    run(sources, tmp_path / "one", 1, 4, **shape)
    run(sources, tmp_path / "shared", degree, 4, shared_lanes=True, **shape)
    one, shared = (read_ledger(tmp_path / name / "ledger") for name in ("one", "shared"))
    assert one == shared
    lines = [line for file in lines_of(tmp_path / "shared") for line in file.read_text().splitlines()]
    assert len(lines) > 4 * 4, "no lane was written by two ranks"


def test_a_shared_lane_of_which_one_rank_had_other_data_is_refused(sources: Sources, tmp_path: Path) -> None:
    run(sources, tmp_path / "a", 3, 4, shared_lanes=True, lanes=4, global_batch_size=24)
    file = lines_of(tmp_path / "a")[1]
    line, *rest = map(json.loads, file.read_text().splitlines())
    spoilt = [{**line, "sha256": line["sha256"][::-1]}, *rest]
    file.write_text("".join(json.dumps(each) + "\n" for each in spoilt))
    with pytest.raises(ZephonError, match=rf"step 1, lane {line['lane']} was written twice"):
        read_ledger(tmp_path / "a" / "ledger")


def test_a_steps_hash_is_that_of_its_sequences_hashes_lane_by_lane(sources: Sources, tmp_path: Path) -> None:
    stream = small_pipeline(sources).options(ledger=str(tmp_path / "ledger")).for_rank(0, 1)
    [batches] = rank_steps(stream, 1)
    stream.close()
    rows = [
        hashlib.sha256(
            b"".join(c[r].astype("<i4").tobytes() for c in (batch.input, batch.labels, batch.positions))
        ).digest()
        for batch in batches
        for r in range(len(batch.input))
    ]
    lanes = [hashlib.sha256(b"".join(rows[i : i + 2])) for i in range(0, 8, 2)]
    record = read_ledger(tmp_path / "ledger")[1]
    assert [lane.sha256 for lane in record.lanes] == [h.hexdigest() for h in lanes]
    assert record.sha256 == hashlib.sha256(b"".join(h.digest() for h in lanes)).hexdigest()


def test_the_ledger_is_the_same_through_a_resume_on_other_ranks(sources: Sources, tmp_path: Path) -> None:
    run(sources, tmp_path / "one", 1, 10)
    state = run(sources, tmp_path / "resumed", 4, 6)
    run(sources, tmp_path / "resumed", 2, 4, state)
    one, resumed = (read_ledger(tmp_path / name / "ledger") for name in ("one", "resumed"))
    assert one == resumed
    assert list(one) == list(range(1, 11))
    assert verify(tmp_path / "one", tmp_path / "resumed").text == "identical: 10 global batches, steps 1 to 10."


def test_a_stretch_that_was_run_again_must_agree_with_itself(sources: Sources, tmp_path: Path) -> None:
    run(sources, tmp_path / "a", 2, 5)
    run(sources, tmp_path / "a", 4, 7)
    assert list(read_ledger(tmp_path / "a" / "ledger")) == list(range(1, 8))
    file = lines_of(tmp_path / "a")[0]
    line, *rest = map(json.loads, file.read_text().splitlines())
    spoilt = [{**line, "sha256": line["sha256"][::-1]}, *rest]
    file.write_text("".join(json.dumps(each) + "\n" for each in spoilt))
    with pytest.raises(ZephonError, match="was written twice with different content"):
        read_ledger(tmp_path / "a" / "ledger")


def test_a_step_that_a_killed_run_left_unfinished_is_left_out(sources: Sources, tmp_path: Path) -> None:
    run(sources, tmp_path / "a", 2, 5)
    for file in lines_of(tmp_path / "a")[:1]:
        kept = [line for line in file.read_text().splitlines() if json.loads(line)["step"] < 5]
        file.write_text("\n".join(kept) + '\n{"step": 5, "lane": 0, "la')
    assert list(read_ledger(tmp_path / "a" / "ledger")) == [1, 2, 3, 4]


ENDLESS = """
import sys
from pathlib import Path
from tests.scenarios import small_pipeline
root = Path(sys.argv[1])
sources = {"alpha": root / "alpha", "beta": root / "beta", "gamma": root / "gamma.jsonl"}
rank = small_pipeline(sources, tokenizer=sys.argv[2]).options(ledger=sys.argv[3]).for_rank(int(sys.argv[4]), 2)
for batch in rank:
    print(batch.step, flush=True)
"""


def test_a_run_that_was_killed_and_began_again_on_other_ranks_leaves_a_whole_ledger(
    sources: Sources, tmp_path: Path
) -> None:
    arguments = [str(tmp_path / "data"), str(tokenizer_folder()), str(tmp_path / "a" / "ledger")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", ENDLESS, *arguments, str(rank)], env=environment, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    for rank, steps in zip(ranks, (5, 8), strict=True):
        assert rank.stdout is not None
        while int(rank.stdout.readline()) < steps:
            pass
        rank.kill()
        rank.communicate()
        assert rank.returncode == -signal.SIGKILL
    run(sources, tmp_path / "a", 4, 10)
    run(sources, tmp_path / "straight", 1, 10)
    killed, straight = (read_ledger(tmp_path / name / "ledger") for name in ("a", "straight"))
    assert {step: killed[step] for step in straight} == straight
    assert verify(tmp_path / "a", tmp_path / "straight").same


def test_two_writers_with_other_data_are_refused_by_step_and_lane(sources: Sources, tmp_path: Path) -> None:
    run(sources, tmp_path / "a", 1, 4)
    [file] = lines_of(tmp_path / "a")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if (line["step"], line["lane"]) == (3, 2):
            line["sha256"] = line["sha256"][::-1]
    (file.parent / "dp9-of-9.other.1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ZephonError, match=r"step 3, lane 2 was written twice .* in dp9-of-9\.other\.1\.jsonl"):
        read_ledger(tmp_path / "a" / "ledger")


@pytest.mark.parametrize("text", ['{"step": 1, "la', '{"text": "a data file"}\n', "\n"])
def test_a_ledger_without_one_whole_line_is_an_error_in_words(tmp_path: Path, text: str) -> None:
    (tmp_path / "dp0-of-1.host.1.jsonl").write_text(text)
    with pytest.raises(ZephonError):
        read_ledger(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        b"[1, 2]",
        b"5",
        b'{"step": 1, "lane": 0, "lanes": 4, "sha256": 7, "sources": {}}',
        b'{"step": "1", "lane": 0, "lanes": 4, "sha256": "00", "sources": {}}',
        b"\xff",
    ],
    ids=repr,
)
def test_a_file_that_is_no_ledger_is_left_out_or_refused_by_name(sources: Sources, tmp_path: Path, line: bytes) -> None:
    run(sources, tmp_path / "a", 1, 3)
    [file] = lines_of(tmp_path / "a")
    (file.parent / "a-note.jsonl").write_bytes(line + b"\n")
    said: object
    try:
        said = list(read_ledger(tmp_path / "a" / "ledger"))
    except ZephonError as error:
        said = "a-note.jsonl" in str(error)
    assert said in ([1, 2, 3], True)


def test_a_process_of_the_same_name_as_the_killed_one_leaves_no_gap(sources: Sources, tmp_path: Path) -> None:
    state = run(sources, tmp_path / "a", 1, 4)
    [file] = lines_of(tmp_path / "a")
    with file.open("a") as f:  # in a container the host and the process number are the same at every start
        f.write('{"step": 5, "lane": 0, "la')
    run(sources, tmp_path / "a", 1, 4, state)
    assert list(read_ledger(tmp_path / "a" / "ledger")) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_ledger_that_cannot_be_written_is_an_error_in_words(sources: Sources, tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("a file")
    with pytest.raises(ZephonError):
        run(sources, tmp_path, 1, 1)


def test_a_new_stream_in_the_same_folder_is_told_apart(sources: Sources, tmp_path: Path) -> None:
    run(sources, tmp_path / "a", 1, 3)
    run(sources, tmp_path / "a", 1, 3, seed=8)
    with pytest.raises(ZephonError, match="holds the ledgers of 2 streams"):
        read_ledger(tmp_path / "a" / "ledger")
    first, second = sorted((tmp_path / "a" / "ledger").iterdir())
    assert not verify(first, second).same


def test_global_batches_of_another_size_and_those_after_them_are_told_apart(sources: Sources, tmp_path: Path) -> None:
    def go_on(size: int, steps: int, state: Any) -> Any:
        return run(
            sources, tmp_path / "a", 1, steps, state, global_batch_size=size, allow_changes=["global_batch_size"]
        )

    def steps_in_ledger() -> list[list[int]]:
        return sorted(list(read_ledger(folder)) for folder in (tmp_path / "a" / "ledger").iterdir())

    state = go_on(8, 4, None)
    go_on(8, 6, state)
    larger = go_on(16, 2, state)
    assert steps_in_ledger() == [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [5, 6]]
    go_on(8, 3, larger)  # its step 7 begins two steps further on in the lanes than the first one's
    assert steps_in_ledger() == [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [5, 6], [7, 8, 9]]


def test_verify_names_step_lane_and_source_where_two_runs_part(
    sources: Sources, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(sources, tmp_path / "before", 1, 12)
    write_jsonl(sources["gamma"], [t.replace("the", "teh") for t in texts_of(6, first=200_000)])
    run(sources, tmp_path / "after", 2, 12)
    assert main(["verify", str(tmp_path / "before"), str(tmp_path / "after")]) == 1
    said = capsys.readouterr().out
    assert "different from step" in said
    assert "in lane" in said
    assert "'gamma'" in said
    assert "'beta'" not in said


def test_verify_tells_another_order_from_other_data(sources: Sources, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        pipeline = small_pipeline(sources).shuffle(buffer_size=8, seed=seed)
        global_batches(pipeline.options(ledger=str(tmp_path / name / "ledger")), 1, 4)
    text = verify(tmp_path / "a", tmp_path / "b").text
    assert "the same tokens were read, but packed or ordered in another way" in text


def test_the_command_line_answers_yes_no_or_cannot_tell(
    sources: Sources, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(sources, tmp_path / "a", 1, 3)
    assert main(["verify", str(tmp_path / "a"), str(tmp_path / "a" / "ledger")]) == 0
    (tmp_path / "empty").mkdir()
    assert main(["verify", str(tmp_path / "a"), str(tmp_path / "empty")]) == 2
    assert "is neither a checkpoint" in capsys.readouterr().err
    assert main(["ledger", str(tmp_path / "a")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in printed] == [r.sha256 for r in read_ledger(tmp_path / "a" / "ledger").values()]
    assert main(["explain", "configs/demo.toml", "--tokenizer", "demo/tokenizer"]) == 0
    assert main(["explain", "train_configs/demo.toml", "--tokenizer", "demo/tokenizer"]) == 2
    assert "source 'books': 60.0% of tokens" in capsys.readouterr().out
