"""The ledger is the same for every rank count, survives kills and restarts, and `verify` finds where two runs part."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios import corpus, global_batches, small_pipeline, texts_of, write_jsonl
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
    pipeline: Pipeline = small_pipeline(sources, **options).options(ledger=str(folder / "ledger"))
    return global_batches(pipeline, degree, steps, state)[1]


def lines_of(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.jsonl"))


def test_the_ledger_is_the_same_on_every_number_of_ranks_and_through_a_resume(sources: Sources, tmp_path: Path) -> None:
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
    file.write_text(file.read_text().replace('"sha256": "', '"sha256": "00', 1))
    with pytest.raises(ZephonError, match="was written twice with different content"):
        read_ledger(tmp_path / "a" / "ledger")


def test_a_step_that_a_killed_run_left_unfinished_is_left_out(sources: Sources, tmp_path: Path) -> None:
    run(sources, tmp_path / "a", 2, 5)
    for file in lines_of(tmp_path / "a")[:1]:
        kept = [line for line in file.read_text().splitlines() if json.loads(line)["step"] < 5]
        file.write_text("\n".join(kept) + '\n{"step": 5, "lane": 0, "la')
    assert list(read_ledger(tmp_path / "a" / "ledger")) == [1, 2, 3, 4]


def test_a_new_stream_in_the_same_folder_is_told_apart(sources: Sources, tmp_path: Path) -> None:
    run(sources, tmp_path / "a", 1, 3)
    run(sources, tmp_path / "a", 1, 3, seed=8)
    with pytest.raises(ZephonError, match="holds the ledgers of 2 streams"):
        read_ledger(tmp_path / "a" / "ledger")
    first, second = sorted((tmp_path / "a" / "ledger").iterdir())
    assert not verify(first, second).same


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
    assert "source 'books': 60.0% of tokens" in capsys.readouterr().out
