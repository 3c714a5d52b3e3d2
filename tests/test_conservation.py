"""Nothing lost, nothing doubled: finite passes, epochs, balances, and shares of tokens."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios import corpus, rank_steps, small_pipeline, text_of, texts_of, tokenizer_folder, write_jsonl
from torchtitan_zephon import Batch, Pipeline, RankStream
from torchtitan_zephon.balance import Balance

Documents = dict[tuple[int, int, int], list[int]]
END = 1
"""The small tokenizer's EOS: the last label of a document, and of nothing else."""


def whole_pass(pipeline: Pipeline, degree: int) -> tuple[list[list[list[Batch]]], list[RankStream]]:
    """All steps of all ranks of a finite pipeline."""
    ranks = [pipeline.for_rank(r, degree) for r in range(degree)]
    return [rank_steps(rank, 10**6) for rank in ranks], ranks


def documents_in(batches: list[Batch]) -> Documents:
    """Label tokens by (source, shard, record, part); with provenance, so that nothing is guessed from a token."""
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
                tokens, k = program.work(chunk).documents, k + 1
                for d, origin in enumerate(tokens.origin.tolist()):
                    expected[tuple(origin)] = tokens.ids[tokens.offsets[d] + 1 : tokens.offsets[d + 1]].tolist()
    return expected  # type: ignore[return-value]


@pytest.mark.parametrize("pack", ["wrap", "first_fit"])
@pytest.mark.parametrize("degree", [1, 2, 4, 8])
def test_a_finite_pass_gives_every_record_exactly_once_on_ranks_in_step(tmp_path: Path, pack: str, degree: int) -> None:
    def make() -> Pipeline:
        options: dict[str, Any] = {"lanes": 8, "global_batch_size": 16, "buffer_size": 0}
        return small_pipeline(corpus(tmp_path / "data"), algorithm=pack, repeat=False, **options)

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
    assert total.read.records == total.read.documents + total.read.empty + total.read.filtered
    assert total.tokens_held == 0
    assert total.read.tokens == total.tokens_out + total.last_tokens
    assert total.padded + total.tokens_out == 32 * total.sequences
    assert "0 not delivered" in str(total)


@pytest.mark.parametrize(("degree", "shared"), [(1, False), (2, False), (4, False), (8, False), (1, True), (16, True)])
def test_a_finite_pass_with_labels_across_documents_uses_every_token_once(
    tmp_path: Path, degree: int, shared: bool
) -> None:
    def make() -> Pipeline:
        options: dict[str, Any] = {"lanes": 8, "global_batch_size": 16, "local_batch_size": 1, "buffer_size": 0}
        pipeline = small_pipeline(corpus(tmp_path / "data"), label_shift="sequence", repeat=False, **options)
        return pipeline.options(shared_lanes=shared)

    taken, ranks = whole_pass(make(), degree)
    assert len({len(steps) for steps in taken}) == 1
    streams: list[list[int]] = [[] for _ in range(8)]
    for step in range(len(taken[0])):
        rows = [(b, s) for rank in taken for b in rank[step] for s in b.sequences]
        for i, (batch, sequence) in enumerate(rows):
            if n := sequence.filled:  # a row and its last label are neighbours in the lane
                streams[i // 2] += [*batch.input[0, :n].tolist(), int(batch.labels[0, n - 1])]
                assert (batch.labels[0, : n - 1] == batch.input[0, 1:n]).all()
    whole = [stream + [END] * (stream[-1] != END) for stream in streams]  # a single last token has no label
    found = [document for stream in whole for document in split(stream)]
    assert Counter(found) == Counter(map(tuple, tokens_of(make()).values()))
    total = Balance()
    for rank in ranks:
        total.add(rank.balance)
        assert rank.balance.tokens_held == 0
    assert total.padded + total.tokens_out == 32 * total.sequences
    if degree <= 8:  # else lanes are shared and counted by each of their ranks
        assert total.read.tokens == sum(map(len, found)) + len(found)
        assert total.last_tokens + total.unused_tokens == total.read.tokens - total.tokens_out


def lane_sequences(taken: list[list[list[Batch]]]) -> list[int]:
    """Filled positions of every sequence of all ranks."""
    return [s.filled for rank in taken for step in rank for b in step for s in b.sequences]


def split(stream: list[int]) -> list[tuple[int, ...]]:
    """The documents of a stream of tokens, without their BOS, which is 0."""
    text = [i for i, token in enumerate(stream) if token == 0]
    assert text[0] == 0
    return [tuple(stream[a + 1 : b]) for a, b in zip(text, [*text[1:], len(stream)], strict=True)]


@pytest.mark.parametrize("texts", [["a"], ["a"] * 200, ["", "a", ""] * 60, [*texts_of(3), *["a"] * 90, ""]], ids=len)
def test_one_token_and_empty_documents_make_rows_where_labels_go_across(tmp_path: Path, texts: list[str]) -> None:
    path = write_jsonl(tmp_path / "s.jsonl", texts)
    options: dict[str, Any] = {"lanes": 2, "global_batch_size": 4, "buffer_size": 0, "label_shift": "sequence"}
    pipeline = small_pipeline({"s": path}, repeat=False, **options)
    pipeline = pipeline.tokenize(tokenizer_id=str(tokenizer_folder()), add_bos=False, add_eos=False)
    taken, ranks = whole_pass(pipeline, 2)
    total = Balance()
    for rank in ranks:
        total.add(rank.balance)
    assert (total.read.records, total.read.empty) == (len(texts), texts.count(""))
    assert total.tokens_held == 0
    assert total.read.tokens >= len(texts) - texts.count("")
    labels = sum(int((b.labels != -100).sum()) for rank in taken for step in rank for b in step)
    inputs_or_labels = labels + sum(n > 0 for n in lane_sequences(taken))  # each row's first input, and its labels
    assert total.read.tokens - total.unused_tokens == inputs_or_labels
    assert total.tokens_out == sum(s.filled for rank in taken for step in rank for b in step for s in b.sequences)
    for batch in (b for rank in taken for step in rank for b in step):
        for row, sequence in enumerate(batch.sequences):
            restarts = [piece[0] for piece in sequence.pieces.tolist()]
            assert [i for i in range(sequence.filled) if batch.positions[row, i] == 0] == restarts


def test_shuffling_a_finite_pass_loses_and_doubles_nothing(tmp_path: Path) -> None:
    plain, _ = whole_pass(small_pipeline(corpus(tmp_path), repeat=False, buffer_size=0), 1)
    mixed, _ = whole_pass(small_pipeline(corpus(tmp_path), repeat=False, buffer_size=16), 2)

    def rows(ranks: list[list[list[Batch]]]) -> Counter[bytes]:
        return Counter(
            s.rows.columns["input"][s.row].tobytes()
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
    assert rank.balance.read.filtered == 90 - len(kept)
    assert rank.balance.read.empty == sum(i % 3 == 0 for i in kept)
    assert rank.balance.read.documents == len(documents_in([b for step in taken[0] for b in step]))


def test_records_behind_the_last_sequence_of_a_pass_are_counted(tmp_path: Path) -> None:
    texts = [*texts_of(40), *(f"no {text_of(n, 60)}" for n in range(40))]
    path = write_jsonl(tmp_path / "some.jsonl", texts)
    options: dict[str, Any] = {"lanes": 1, "global_batch_size": 1, "local_batch_size": 1, "buffer_size": 0}
    pipeline = small_pipeline({"some": path}, repeat=False, shuffle_chunks=False, algorithm="first_fit", **options)
    pipeline = pipeline.options(flush_every_sequences=1, prefetch_bytes=1)
    _, [rank] = whole_pass(pipeline.filter(lambda r: not r["text"].startswith("no"), identity="no no"), 1)
    assert (rank.balance.read.records, rank.balance.read.documents, rank.balance.read.filtered) == (80, 40, 40)


@pytest.mark.parametrize("dropped", [0, 1])
def test_a_filter_that_drops_all_that_one_rank_would_read_keeps_the_ranks_in_step(tmp_path: Path, dropped: int) -> None:
    for k in range(2):  # of one record each, and so of one lane
        write_jsonl(tmp_path / "s" / f"{k}.jsonl", [f"{k + 1} {text_of(7, 60)}"])
    options: dict[str, Any] = {"lanes": 2, "global_batch_size": 4, "buffer_size": 0}
    pipeline = small_pipeline({"s": tmp_path / "s"}, repeat=False, **options)
    pipeline = pipeline.filter(lambda r: not r["text"].startswith(str(dropped + 1)), identity=f"no {dropped + 1}")
    taken, ranks = whole_pass(pipeline, 2)
    assert len(taken[0]) == len(taken[1]) > 0
    assert sorted(rank.balance.read.filtered for rank in ranks) == [0, 1]
    found = documents_in([b for rank in taken for step in rank for b in step])
    assert [shard for _, shard, *_ in found] == [1 - dropped]


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


def documents_in_order(batches: list[Batch]) -> list[tuple[int, ...]]:
    """(source, shard, record, part) of each document, once where it goes on in the next row."""
    order: list[tuple[int, ...]] = []
    left = False
    for batch in batches:
        for row, sequence in enumerate(batch.sequences):
            for start, *origin in sequence.pieces.tolist():
                if not (left and start == 0 and order[-1] == tuple(origin)):
                    order.append(tuple(origin))
            left = batch.labels[row, -1] != END  # the last document of the row is cut
    return order


@pytest.mark.parametrize("degree", [1, 4])
def test_every_record_comes_once_an_epoch_in_each_of_five_epochs_across_resumes(tmp_path: Path, degree: int) -> None:
    """Each lane owns the same whole chunks in every epoch here, so its epochs can be told apart."""
    lanes = degree
    for k in range(lanes):
        assert write_jsonl(tmp_path / "s" / f"{k}.jsonl", texts_of(25, first=100 * k)).stat().st_size < 4096
    options: dict[str, Any] = {"lanes": lanes, "global_batch_size": lanes, "local_batch_size": 1, "buffer_size": 0}
    pipeline = small_pipeline({"s": tmp_path / "s"}, shuffle_chunks=False, **options)
    expected = tokens_of(pipeline)
    epoch_steps = sum(map(len, expected.values())) / 32 / lanes
    taken: list[list[list[Batch]]] = [[] for _ in range(lanes)]
    states: list[Any] = [None] * lanes
    for epochs in (0.9, 1.2, 0.9, 3.5):  # resumes at 90 %, 210 % and 300 %
        for r in range(lanes):
            rank = pipeline.for_rank(r, degree)
            if states[r] is not None:
                rank.load_state_dict(states[r])
            taken[r] += rank_steps(rank, round(epochs * epoch_steps))
            states[r] = rank.state_dict()
            rank.close()
    seen: set[tuple[int, ...]] = set()
    for steps in taken:
        order = documents_in_order([b for step in steps for b in step])
        own = set(order)
        assert not own & seen
        seen |= own
        epochs_of = [order[i : i + len(own)] for i in range(0, len(order), len(own))]
        assert len(epochs_of) >= 5
        assert all(len(set(epoch)) == len(own) for epoch in epochs_of[:-1])
        assert len(set(map(tuple, epochs_of[:-1]))) == len(epochs_of) - 1, "two epochs had the same order"
    assert seen == expected.keys()


@pytest.mark.parametrize("short_weight", [0.5, 0.8])
def test_weights_are_shares_of_tokens_whatever_the_length_of_documents(tmp_path: Path, short_weight: float) -> None:
    write_jsonl(tmp_path / "short.jsonl", [text_of(i, 20) for i in range(800)])
    write_jsonl(tmp_path / "long.jsonl", [" ".join(texts_of(90, first=1000 * i)) for i in range(20)])
    sources = {"short": tmp_path / "short.jsonl", "long": tmp_path / "long.jsonl"}
    weights = {"short": short_weight, "long": 1 - short_weight}
    pipeline = small_pipeline(sources, weights=weights, lanes=8, global_batch_size=16, seq_len=512)
    assert all(20 < n < 60 or 3000 < n < 6000 for n in map(len, tokens_of(pipeline).values()))
    stream = pipeline.for_rank(0, 1)
    tokens: Counter[int] = Counter()
    for step in rank_steps(stream, 125):
        for origin, labels in documents_in(step).items():
            tokens[origin[0]] += len(labels)
    short = stream.program.names.index("short")
    assert tokens[short] / sum(tokens.values()) == pytest.approx(short_weight, abs=0.02)
    stream.close()


def test_more_than_255_sources_all_arrive(tmp_path: Path) -> None:
    sources = {f"s{k:03d}": write_jsonl(tmp_path / f"s{k:03d}.jsonl", texts_of(2, first=10 * k)) for k in range(300)}
    pipeline = small_pipeline(sources, repeat=False, lanes=4)
    taken, _ = whole_pass(pipeline, 1)
    found = documents_in([b for step in taken[0] for b in step])
    assert {origin[0] for origin in found} == set(range(300))
