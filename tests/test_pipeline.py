"""A pipeline is a value: each method gives a new one, and only what decides the stream is in its recipe."""

from __future__ import annotations

import functools
import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchtitan_zephon
from tests.scenarios import BOS, EOS, SEQ_LEN, corpus, global_batches, rank_steps, small_pipeline, tokenizer_folder
from torchtitan_zephon import (
    ConfigError,
    Dataset,
    Pipeline,
    RecipeChangedError,
    StaticMixtureWorkSource,
    TokenEstimation,
)

Sources = dict[str, Path]
Record = dict[str, Any]


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return corpus(tmp_path / "data", 120)


def identity(pipeline: Pipeline) -> dict[str, Any]:
    """The recipe as a checkpoint stores it."""
    return pipeline.for_rank(0, 1).program.identity


def test_the_published_example_runs_as_it_is_written(sources: Sources) -> None:
    source = StaticMixtureWorkSource(
        datasets=[
            Dataset.from_path("wiki", str(sources["alpha"])),
            Dataset.from_path("news", str(sources["beta"])),
        ],
        mixture={"wiki": 0.5, "news": 0.5},
        token_estimation=TokenEstimation(),
        seed=42,
    )
    pipeline = (
        Pipeline(source)
        .tokenize(tokenizer_id=str(tokenizer_folder()), field="text", parallelism=4)
        .pack_flat(max_length=64, algorithm="wrap")
        .shuffle(buffer_size=1024, seed=42)
        .batch(microbatch_size=8)
    )
    for number, batch in zip((1, 2, 3), pipeline, strict=False):
        for column in (batch.input, batch.labels, batch.positions):
            assert (column.shape, column.dtype) == ((8, 64), np.int64)
        assert batch.step == number  # without options: one lane, one micro-batch a step
        assert len(batch.sequences) == 8
    pipeline.close()
    pipeline = pipeline.options(lanes=32, global_batch_size=256, workers=4)
    rank = pipeline.for_rank(dp_rank=3, dp_degree=8)
    assert rank.layout.own_lanes == range(12, 16)
    assert rank.layout.local_batches == 4
    assert next(iter(rank)).input.shape == (8, 64)
    rank.close()


def test_without_options_a_global_batch_is_one_micro_batch_a_lane(sources: Sources) -> None:
    bare = Pipeline(StaticMixtureWorkSource(datasets=[Dataset("a", str(sources["alpha"]))], mixture={"a": 1}))
    bare = bare.tokenize(tokenizer_id=str(tokenizer_folder())).pack_flat(max_length=SEQ_LEN).batch(microbatch_size=3)
    assert bare.for_rank(0, 1).layout.global_batch_size == 3
    assert bare.options(lanes=4).for_rank(0, 2).layout.global_batch_size == 12
    recipe = bare.for_rank(0, 1).program.recipe
    assert (recipe.lanes, recipe.shuffle_buffer_sequences, recipe.repeat) == (1, 0, True)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.map(dict, identity="copy"),
        lambda p: p.filter(bool, identity="all"),
        lambda p: p.tokenize(tokenizer_id=str(tokenizer_folder()), add_bos=False),
        lambda p: p.pack_flat(max_length=64),
        lambda p: p.shuffle(buffer_size=3),
        lambda p: p.batch(microbatch_size=4),
        lambda p: p.options(lanes=2, global_batch_size=4, flush_every_sequences=5, workers=1, prefetch_bytes=1),
    ],
    ids=["map", "filter", "tokenize", "pack_flat", "shuffle", "batch", "options"],
)
def test_a_method_gives_a_new_pipeline_and_leaves_the_old_one_alone(
    sources: Sources, change: Callable[[Pipeline], Pipeline]
) -> None:
    old = small_pipeline(sources)
    expected = global_batches(small_pipeline(sources), 1, 3)
    first = next(iter(old)).input.tobytes()
    new = change(old)
    assert new is not old
    assert new.stream is not old.stream, "a changed pipeline must not go on with the old one's stream"
    changed = next(iter(new)).input
    assert global_batches(old, 1, 3) == expected
    again = small_pipeline(sources)
    assert next(iter(again)).input.tobytes() == first
    for pipeline in (old, new, again):
        pipeline.close()
    assert changed.ndim == 2


def test_an_option_that_is_not_given_stays_as_it_was(sources: Sources) -> None:
    pipeline = small_pipeline(sources, lanes=2, global_batch_size=4, flush_every_sequences=9, workers=3)
    once = pipeline.options(prefetch_bytes=5000)
    twice = once.options(global_batch_size=8).options()
    stream = twice.for_rank(0, 1)
    assert (stream.program.recipe.lanes, stream.program.recipe.flush_every_sequences) == (2, 9)
    assert (stream.settings.workers, stream.settings.prefetch_bytes, stream.settings.ledger) == (3, 5000, None)
    assert (stream.layout.global_batch_size, once.for_rank(0, 1).layout.global_batch_size) == (8, 4)


def test_speed_settings_and_layout_are_not_in_the_recipe_and_the_rest_is(sources: Sources) -> None:
    pipeline = small_pipeline(sources)
    recipe = identity(pipeline)
    for same in (
        pipeline.options(workers=7, prefetch_bytes=1, ledger="somewhere", global_batch_size=16),
        pipeline.batch(microbatch_size=1),
        pipeline.tokenize(tokenizer_id=str(tokenizer_folder() / "tokenizer.json"), parallelism=9),
    ):
        assert identity(same) == recipe
    for other in (
        pipeline.options(lanes=8),
        pipeline.options(flush_every_sequences=3),
        pipeline.shuffle(buffer_size=8, seed=8),
        pipeline.shuffle(buffer_size=9),
        pipeline.pack_flat(max_length=SEQ_LEN, algorithm="first_fit"),
        pipeline.tokenize(tokenizer_id=str(tokenizer_folder()), add_eos=False),
        pipeline.map(dict, identity="m"),
    ):
        assert identity(other) != recipe


def test_a_rank_may_take_another_local_batch_size(sources: Sources) -> None:
    pipeline = small_pipeline(sources, local_batch_size=2)
    expected, _ = global_batches(pipeline, 2, 3)
    assert global_batches(pipeline, 2, 3, local_batch_size=1)[0] == expected
    [[batch]] = rank_steps(rank := pipeline.for_rank(0, 2, local_batch_size=4), 1)
    assert batch.input.shape == (4, SEQ_LEN)
    rank.close()


def test_a_pipeline_itself_saves_and_loads_as_one_rank(sources: Sources) -> None:
    straight, first, second = (small_pipeline(sources, local_batch_size=8) for _ in range(3))
    expected = [b.input.tobytes() for _, b in zip(range(9), straight, strict=False)]
    assert [b.input.tobytes() for _, b in zip(range(4), first, strict=False)] == expected[:4]
    second.load_state_dict(first.state_dict())
    assert [b.input.tobytes() for _, b in zip(range(5), second, strict=False)] == expected[4:]
    assert second.state_dict() == straight.state_dict()
    for pipeline in (straight, first, second):
        pipeline.close()


def test_iterating_again_goes_on_where_the_pipeline_stands(sources: Sources) -> None:
    straight, broken = small_pipeline(sources), small_pipeline(sources)
    expected = [b.input.tobytes() for _, b in zip(range(6), straight, strict=False)]
    assert [next(iter(broken)).input.tobytes() for _ in range(6)] == expected
    straight.close()
    broken.close()


def test_a_closed_pipeline_gives_nothing_until_a_state_is_loaded(sources: Sources) -> None:
    pipeline = small_pipeline(sources, local_batch_size=8)
    next(iter(pipeline))
    state = pipeline.state_dict()
    expected = next(iter(pipeline)).input.tobytes()
    pipeline.close()
    pipeline.close()
    with pytest.raises(ConfigError, match="this stream was closed"):
        next(iter(pipeline))
    pipeline.load_state_dict(state)
    assert next(iter(pipeline)).input.tobytes() == expected
    pipeline.close()


def test_nothing_is_opened_before_the_pipeline_is_used(tmp_path: Path) -> None:
    pipeline = small_pipeline({"later": tmp_path / "later"})
    corpus(tmp_path / "later")
    with pytest.raises(torchtitan_zephon.SourceError, match="both jsonl and parquet"):
        pipeline.explain()


def test_explain_says_the_plan_in_words_and_numbers(sources: Sources) -> None:
    weights = {"alpha": 2, "beta": 1, "gamma": 1}
    text = small_pipeline(sources, weights=weights).map(dict, identity="tidy-v1").explain()
    for part in (
        "4 lanes, seed 7, repeating",
        "source 'alpha': 50.0% of tokens; 3 jsonl shards",
        "source 'beta': 25.0% of tokens; 1 parquet shards",
        "map tidy-v1",
        f"a document is read as  {BOS} text {EOS}  (BOS by tokenizer_config.json, EOS by tokenizer_config.json)",
        f"pack wrap to {SEQ_LEN} tokens, labels within each document; flush every 12 sequences",
    ):
        assert part in text


@pytest.mark.parametrize("runner", ["thread", "process"])
def test_a_tokenizer_that_ends_no_document_is_warned_of_once_by_rank_0(
    runner: Any, sources: Sources, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtitan_zephon.program._said", set())
    shutil.copy(tokenizer_folder() / "tokenizer.json", tmp_path)
    pipeline = small_pipeline(sources, tokenizer=tmp_path).options(runner=runner)
    for rank, expected in ((1, 0), (0, 1), (0, 1)):
        stream = pipeline.for_rank(rank, 2)
        next(iter(stream))
        stream.close()
        said = [r.message for r in caplog.records if "nothing ends a document" in r.message]
        assert len(said) == expected


# ---- functions


def upper(record: Record) -> Record:
    return {"text": record["text"].upper()}


def not_short(record: Record) -> bool:
    return len(record["text"]) > 30


def test_functions_run_in_the_order_they_were_given(sources: Sources) -> None:
    def first(record: Record) -> Record:
        return {**record, "text": record["text"][:40]}

    both = small_pipeline(sources).map(first).map(upper)
    assert [f.split()[0] for f in identity(both)["functions"]] == ["map", "map"]
    assert identity(both) != identity(small_pipeline(sources).map(upper).map(first))
    cut = small_pipeline(sources, repeat=False).map(first).filter(lambda r: len(r["text"]) <= 40, identity="le40")
    all_kept, none_kept = cut.stream, small_pipeline(sources, repeat=False).filter(not_short).map(first).stream
    assert list(all_kept)
    assert list(none_kept)
    assert all_kept.balance.read.filtered == 0
    assert 0 < none_kept.balance.read.filtered < none_kept.balance.read.records


def strip_of(folder: Path, body: str) -> Callable[[Record], Record]:
    """The function ``edited.strip`` with this body, as before or after an edit of its file."""
    folder.mkdir()
    (folder / "edited.py").write_text(f"def strip(record):\n    return {body}\n", "utf-8")
    spec = importlib.util.spec_from_file_location("edited", folder / "edited.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    strip: Callable[[Record], Record] = module.strip
    return strip


def test_a_changed_function_is_another_recipe_and_a_named_one_may_change(sources: Sources, tmp_path: Path) -> None:
    original, edited = strip_of(tmp_path / "1", "record"), strip_of(tmp_path / "2", "dict(record)")
    before, after = small_pipeline(sources).map(original), small_pipeline(sources).map(edited)
    _, state = global_batches(before, 1, 2)
    with pytest.raises(RecipeChangedError, match=r"functions: .*edited\.strip .* -> .*edited\.strip ") as error:
        after.for_rank(0, 1).load_state_dict(state)
    assert len(error.value.changes) == 1
    _, state = global_batches(small_pipeline(sources).map(original, identity="v1"), 1, 2)
    assert global_batches(small_pipeline(sources).map(edited, identity="v1"), 2, 1, state)[0]


@pytest.mark.parametrize(
    "function",
    [functools.partial(upper), eval("lambda record: record"), type("Callable", (), {"__call__": upper})()],
    ids=["partial", "eval", "object"],
)
def test_a_function_without_source_text_must_be_named(sources: Sources, function: Callable[[Record], Record]) -> None:
    with pytest.raises(ConfigError, match=r"source text of .* cannot be found.*identity="):
        small_pipeline(sources).map(function)
    assert small_pipeline(sources).map(function, identity="named")


def test_every_public_name_is_listed_and_there() -> None:
    assert sorted(torchtitan_zephon.__all__) == torchtitan_zephon.__all__
    assert all(hasattr(torchtitan_zephon, name) for name in torchtitan_zephon.__all__)
    assert issubclass(torchtitan_zephon.ZephonError, ValueError)


def test_explain_says_which_files_are_read_and_which_are_not(sources: Sources) -> None:
    (sources["alpha"] / "README.md").touch()
    (sources["alpha"] / "latest.jsonl").symlink_to("part-2.jsonl")
    text = small_pipeline({**sources, "again": sources["alpha"] / "part-0.jsonl"}).explain()
    folder = str(sources["alpha"])
    assert f"\n    read from {folder!r}: 'latest.jsonl', 'part-0.jsonl', 'part-1.jsonl'\n" in text
    assert "\n    left out: 1 second name of a file that is read: 'part-2.jsonl' (is 'latest.jsonl'); " in text
    assert "; 1 of another type: 'README.md'\n" in text
    assert f"\n  {folder + '/part-0.jsonl'!r} is read by both 'again' and 'alpha'\n" in text
