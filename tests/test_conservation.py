"""Nothing lost, nothing doubled: finite passes, epochs, balances, and shares of tokens."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios import corpus, rank_steps, small_pipeline, texts_of, write_jsonl
from torchtitan_zephon import Batch, Pipeline, RankStream
from torchtitan_zephon.records import Balance

Documents = dict[tuple[int, int, int], list[int]]


def whole_pass(pipeline: Pipeline, degree: int) -> tuple[list[list[list[Batch]]], list[RankStream]]:
    """All steps of all ranks of a finite pipeline."""
    ranks = [pipeline.for_rank(r, degree) for r in range(degree)]
    return [rank_steps(rank, 10**6) for rank in ranks], ranks


def documents_in(batches: list[Batch]) -> Documents:
    """Label tokens by (source, shard, record); with provenance, so that nothing is guessed from a token."""
    found: Documents = {}
    for batch in batches:
        for row, sequence in enumerate(batch.sequences):
            pieces = [tuple(p) for p in sequence.pieces.tolist()]
            ends = [*(p[0] for p in pieces[1:]), sequence.filled] if pieces else []  # a row may be all padding
            for (start, *origin), end in zip(pieces, ends, strict=True):
                found.setdefault(tuple(origin), []).extend(batch.labels[row, start:end].tolist())  # type: ignore[arg-type]
    return found


def tokens_of(pipeline: Pipeline) -> Documents:
    """What each record should give: its tokens but the first, straight from the compiled program."""
    program, expected = pipeline.for_rank(0, 1).program, {}
    for table in program.tables:
        for run in range(table.num_runs):
            k, last = 0, False
            while not last:
                chunk, last = table.chunk(0, run, k)
                tokens, k = program.work(chunk), k + 1
                for d, origin in enumerate(tokens.origin.tolist()):
                    expected[tuple(origin)] = tokens.ids[tokens.offsets[d] + 1 : tokens.offsets[d + 1]].tolist()
    return expected  # type: ignore[return-value]


@pytest.mark.parametrize("pack", ["wrap", "first_fit"])
@pytest.mark.parametrize("degree", [1, 2, 4])
def test_a_finite_pass_gives_every_record_exactly_once_on_ranks_in_step(tmp_path: Path, pack: str, degree: int) -> None:
    def make() -> Pipeline:
        return small_pipeline(corpus(tmp_path / "data"), algorithm=pack, repeat=False, buffer_size=0)

    taken, ranks = whole_pass(make(), degree)
    assert len({len(steps) for steps in taken}) == 1
    assert all(b.input.shape == (2, 32) for steps in taken for step in steps for b in step)
    found: dict[Any, list[int]] = {}
    for rank in taken:
        for origin, labels in documents_in([b for step in rank for b in step]).items():
            assert origin not in found, "a record was split over two ranks"
            found[origin] = labels
    assert found == {k: v for k, v in tokens_of(make()).items() if v}
    total = Balance()
    for rank in ranks:
        total.add(rank.balance)
    assert total.records == total.documents + total.empty + total.filtered
    assert total.tokens_held == 0
    assert total.tokens_in == total.tokens_out + total.last_tokens
    assert total.padded + total.tokens_out == 32 * total.sequences
    assert "0 not delivered" in str(total)


def test_shuffling_a_finite_pass_loses_and_doubles_nothing(tmp_path: Path) -> None:
    plain, _ = whole_pass(small_pipeline(corpus(tmp_path), repeat=False, buffer_size=0), 1)
    mixed, _ = whole_pass(small_pipeline(corpus(tmp_path), repeat=False, buffer_size=16), 2)

    def rows(ranks: list[list[list[Batch]]]) -> Counter[bytes]:
        return Counter(
            s.rows.inputs[s.row].tobytes()
            for rank in ranks
            for step in rank
            for b in step
            for s in b.sequences
            if s.filled
        )

    assert rows(plain) == rows(mixed)


def test_padding_is_labelled_minus_100_and_begins_at_position_0(tmp_path: Path) -> None:
    taken, _ = whole_pass(small_pipeline(corpus(tmp_path), algorithm="first_fit", repeat=False), 1)
    padded = 0
    for batch in (b for step in taken[0] for b in step):
        for row, sequence in enumerate(batch.sequences):
            assert (batch.labels[row, sequence.filled :] == -100).all()
            assert (batch.labels[row, : sequence.filled] >= 0).all()
            assert batch.positions[row, sequence.filled :].tolist() == list(range(32 - sequence.filled))
            padded += 32 - sequence.filled
    assert padded


def test_empty_and_filtered_records_are_counted_and_leave_no_token(tmp_path: Path) -> None:
    texts = [t if i % 3 else "" for i, t in enumerate(texts_of(90))]
    path = write_jsonl(tmp_path / "some.jsonl", texts)
    pipeline = small_pipeline({"some": path}, repeat=False).filter(lambda r: r["id"] % 5 != 1, identity="not 1 mod 5")
    taken, [rank] = whole_pass(pipeline, 1)
    kept = [i for i in range(90) if i % 5 != 1]
    assert rank.balance.filtered == 90 - len(kept)
    assert rank.balance.empty == sum(i % 3 == 0 for i in kept)
    assert rank.balance.documents == len(documents_in([b for step in taken[0] for b in step]))


def test_a_filter_that_drops_all_of_one_shard_keeps_the_ranks_in_step(tmp_path: Path) -> None:
    for k in range(2):
        write_jsonl(tmp_path / "s" / f"{k}.jsonl", texts_of(60, first=1000 * k))
    pipeline = small_pipeline({"s": tmp_path / "s"}, repeat=False, lanes=2, global_batch_size=4)
    taken, _ = whole_pass(pipeline.filter(lambda r: not r["text"].startswith("1"), identity="no 1"), 2)
    assert len(taken[0]) == len(taken[1]) > 0


def test_iterating_a_finite_stream_again_gives_the_same_pass(tmp_path: Path) -> None:
    stream = small_pipeline(corpus(tmp_path), repeat=False).for_rank(1, 2)
    first = [b.input.tobytes() for b in stream]
    assert [b.input.tobytes() for b in stream] == first


def test_a_finished_pass_that_is_resumed_gives_nothing_more(tmp_path: Path) -> None:
    pipeline = small_pipeline(corpus(tmp_path), repeat=False)
    stream, resumed = pipeline.for_rank(0, 1), pipeline.for_rank(0, 1)
    assert list(stream)
    resumed.load_state_dict(stream.state_dict())
    assert list(resumed) == []


def test_every_record_is_read_once_an_epoch_also_across_a_resume(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "one.jsonl", texts_of(50))
    pipeline = small_pipeline({"one": path}, lanes=1, global_batch_size=1, local_batch_size=1, buffer_size=0)
    expected = tokens_of(pipeline)
    epoch_tokens = sum(map(len, expected.values()))
    first = pipeline.for_rank(0, 1)
    steps = rank_steps(first, int(0.9 * epoch_tokens / 32))
    second = pipeline.for_rank(0, 1)
    second.load_state_dict(first.state_dict())
    steps += rank_steps(second, int(2.3 * epoch_tokens / 32))
    found = documents_in([b for step in steps for b in step])
    for origin, labels in found.items():
        times = len(labels) / len(expected[origin])
        assert times + 1e-9 >= 3 or times > 2, (origin, times)
        assert labels[: len(expected[origin])] == expected[origin]
    assert found.keys() == expected.keys()
    first.close()
    second.close()


def test_weights_are_shares_of_tokens_whatever_the_length_of_documents(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "short.jsonl", [" ".join(texts_of(1, first=i)) for i in range(400)])
    write_jsonl(tmp_path / "long.jsonl", [" ".join(texts_of(90, first=1000 * i)) for i in range(20)])
    sources = {"short": tmp_path / "short.jsonl", "long": tmp_path / "long.jsonl"}
    stream = small_pipeline(sources, weights={"short": 1, "long": 1}, lanes=8, global_batch_size=16).for_rank(0, 1)
    tokens: Counter[int] = Counter()
    for step in rank_steps(stream, 125):
        for origin, labels in documents_in(step).items():
            tokens[origin[0]] += len(labels)
    share = tokens[0] / sum(tokens.values())
    assert share == pytest.approx(0.5, abs=0.02)
    stream.close()


def test_more_than_255_sources_all_arrive(tmp_path: Path) -> None:
    sources = {f"s{k:03d}": write_jsonl(tmp_path / f"s{k:03d}.jsonl", texts_of(2, first=10 * k)) for k in range(300)}
    pipeline = small_pipeline(sources, repeat=False, lanes=4)
    taken, _ = whole_pass(pipeline, 1)
    found = documents_in([b for step in taken[0] for b in step])
    assert {origin[0] for origin in found} == set(range(300))
