"""A checkpoint that does not fit, or is damaged, is refused by name, and nothing changes."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios import global_batches, says, small_pipeline, texts_of, tokenizer_folder, write_jsonl
from torchtitan_zephon import (
    Pipeline,
    RankStream,
    Recipe,
    RecipeChangedError,
    RunSettings,
    SourceConfig,
    StateError,
    ZephonError,
)  # fmt: skip
from torchtitan_zephon.errors import ReplayError
from torchtitan_zephon.ops.tokenizer_files import load_tokenizer
from torchtitan_zephon.plan.layout import Layout
from torchtitan_zephon.program import compile_program
from torchtitan_zephon.read import sample

Sources = dict[str, Path]


@pytest.fixture
def state(sources: Sources) -> dict[str, Any]:
    return global_batches(small_pipeline(sources), 2, 9)[1]


def change_shard(change: Callable[[Path], object]) -> Callable[[Sources], Pipeline]:
    def apply(sources: Sources) -> Pipeline:
        change(sources["wiki"])
        return small_pipeline(sources)

    return apply


def flip(folder: Path) -> None:
    content = (folder / "1.jsonl").read_bytes()
    (folder / "1.jsonl").write_bytes(content.replace(b"the", b"thE", 1))


def append(folder: Path) -> None:
    with (folder / "0.jsonl").open("a") as file:
        file.write('{"text": "more"}\n')


def changed_tokenizer(sources: Sources) -> Path:
    folder = sources["wiki"].parent / "tokenizer"
    shutil.copytree(tokenizer_folder(), folder)
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    content["pre_tokenizer"]["add_prefix_space"] = True
    (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    return folder


def swap(folder: Path) -> None:
    (folder / "0.jsonl").rename(folder / "x")
    (folder / "1.jsonl").rename(folder / "0.jsonl")
    (folder / "x").rename(folder / "1.jsonl")


ONE_CHANGE: dict[str, tuple[Any, str]] = {
    "lanes": (8, "lanes"),
    "seed": (8, "seed"),
    "pack": ("first_fit", "pack"),
    "label_shift": ("sequence", "label_shift"),
    "shuffle_chunks": (False, "shuffle_chunks"),
    "shuffle_records": (False, "shuffle_records"),
    "shuffle_buffer_sequences": (9, "shuffle_buffer_sequences"),
    "shuffle_seed": (8, "shuffle_seed"),
    "flush_every_sequences": (13, "flush_every_sequences"),
    "chunk_bytes": (8192, "chunk_bytes"),
    "estimate_bytes": (1000, "estimate_bytes"),
    "shares": ("estimated", "shares"),
    "repeat": (False, "repeat"),
    "add_bos": (False, "tokenizer.add_bos"),
    "add_eos": (False, "tokenizer.add_eos"),
    "special_tokens_in_text": ("parse", "tokenizer.special_tokens_in_text"),
    "max_record_bytes": (10**6, "max_record_bytes"),
}
"""A field of the recipe, another value, and the field that a refusal must name, alone."""


def recipe_stream(sources: Sources, seq_len: int = 32, **changes: Any) -> RankStream:
    tables = {name: SourceConfig(path=str(path)) for name, path in sources.items()}
    recipe = Recipe(**{"sources": tables, "lanes": 4, "seed": 7, "shuffle_seed": 7, "chunk_bytes": 4096, **changes})
    added = ("add_bos", "add_eos", "special_tokens_in_text")
    spec = load_tokenizer(str(tokenizer_folder()), **{name: getattr(recipe, name) for name in added})
    layout = Layout(lanes=recipe.lanes, global_batch_size=8, local_batch_size=2)
    return RankStream(compile_program(recipe, seq_len, spec), layout, RunSettings())


def test_every_field_of_a_recipe_is_in_the_list_of_changes() -> None:
    free = {"on_bad_record", "max_bad_fraction"}  # a resume may change them
    assert {*ONE_CHANGE, "sources"} == {f.name for f in dataclasses.fields(Recipe)} - free


@pytest.mark.parametrize("field", ONE_CHANGE)
def test_one_changed_field_of_the_recipe_is_named_alone_with_both_values(sources: Sources, field: str) -> None:
    value, named = ONE_CHANGE[field]
    state = recipe_stream(sources).state_dict()
    with pytest.raises(RecipeChangedError) as error:
        recipe_stream(sources, **{field: value}).load_state_dict(state)
    [change] = error.value.changes
    assert change.startswith(f"{named}: ")
    after = "null" if named in ("tokenizer.add_bos", "tokenizer.add_eos") else json.dumps(value)
    assert change.endswith(f" -> {after}")
    says(error, change, "(field: checkpoint -> now)", "Put these back", "exclude_from_loading dataloader")


def test_the_seed_of_the_buffer_follows_the_seed_unless_it_is_stated(sources: Sources) -> None:
    state = recipe_stream(sources, shuffle_seed=None).state_dict()
    with pytest.raises(RecipeChangedError) as error:
        recipe_stream(sources, shuffle_seed=None, seed=8).load_state_dict(state)
    assert error.value.changes == ["seed: 7 -> 8", "shuffle_seed: 7 -> 8"]


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda s: small_pipeline(s, seq_len=64), ["seq_len: 32 -> 64"]),
        (
            lambda s: small_pipeline(s, weights={"news": 3, "wiki": 1}),
            ["sources.news.weight: 50 % of tokens -> 75 %", "sources.wiki.weight: 50 % of tokens -> 25 %"],
        ),
        (lambda s: small_pipeline(s).map(dict, identity="copy"), ['functions: [] -> ["map copy"]']),
        (
            lambda s: small_pipeline({"news": s["news"]}, weights={"news": 1}),
            ["sources.wiki.field", "sources.wiki.format", "sources.wiki.shards.0.jsonl",
             "sources.wiki.shards.1.jsonl", "sources.wiki.weight: 50 % of tokens -> (absent)"],
        ),
        (
            lambda s: small_pipeline(s).tokenize(tokenizer_id=str(tokenizer_folder()), field="id"),
            ['sources.news.field: "text" -> "id"', "sources.wiki.field"],
        ),
        (lambda s: small_pipeline(s, tokenizer=changed_tokenizer(s)), ["tokenizer.sha256"]),
        (change_shard(flip), ["sources.wiki.shards.1.jsonl"]),
        (
            change_shard(lambda f: (f / "0.jsonl").rename(f / "3.jsonl")),
            ["sources.wiki.shards.0.jsonl", "sources.wiki.shards.3.jsonl: (absent)"],
        ),
        (change_shard(lambda f: write_jsonl(f / "2.jsonl", texts_of(3))), ["sources.wiki.shards.2.jsonl: (absent) ->"]),
        (change_shard(lambda f: (f / "1.jsonl").unlink()), ["sources.wiki.shards.1.jsonl"]),
        (change_shard(append), ["sources.wiki.shards.0.jsonl"]),
        (change_shard(swap), ["sources.wiki.shards.0.jsonl", "sources.wiki.shards.1.jsonl"]),
    ],
    ids=["seq_len", "weights", "map", "source left out", "field", "tokenizer", "one byte", "renamed", "added",
         "removed", "appended", "swapped"],
)  # fmt: skip
def test_a_checkpoint_of_another_recipe_is_refused_by_exactly_what_changed(
    sources: Sources, state: dict[str, Any], make: Callable[[Sources], Pipeline], named: list[str]
) -> None:
    with pytest.raises(RecipeChangedError) as error:
        make(sources).for_rank(0, 1).load_state_dict(state)
    changes = error.value.changes
    assert len(changes) == len(named), changes
    for change, start in zip(changes, named, strict=True):
        assert change.startswith(start)
        assert change in str(error.value)
    says(error, "Put these back", "exclude_from_loading dataloader")


def edited(state: dict[str, Any], lane: int, **changes: Any) -> dict[str, Any]:
    """``state`` with raw bytes in place of a lane's state."""
    return {**state, "lane": {**state["lane"], f"{lane:05d}": changes["raw"]}}


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda s: {}, "no stream and lanes"),
        (lambda s: {"dp_rank_0": b"pickle", "world_size": 4}, "it has: 'dp_rank_0', 'world_size'"),
        (lambda s: {**s, "lane": {k: v for k, v in s["lane"].items() if k != "00002"}}, "no state of lane 2"),
        (lambda s: edited(s, 1, raw=s["lane"]["00001"][:-9]), "state of lane 1 in the checkpoint is damaged"),
        (lambda s: edited(s, 1, raw=b""), "is damaged: it is not JSON"),
        (lambda s: edited(s, 1, raw=b"\x80\x04\x95pickle"), "is damaged: it is not JSON"),
        (lambda s: edited(s, 1, raw=s["lane"]["00001"].replace(b'"delivered":', b'"delivered":1')), "check sum"),
        (lambda s: edited(s, 1, raw=s["lane"]["00002"]), "says it belongs to lane 2"),
        (lambda s: edited(s, 1, raw=7), "is a int, not bytes"),
        (
            lambda s: {**s, "stream": s["stream"].replace(b'"format":5', b'"format":9')},
            "the loader state has format 9; .* reads format 5",
        ),
        (
            lambda s: edited(s, 1, raw=s["lane"]["00001"].replace(b'"format":5', b'"format":4')),
            "the state of lane 1 has format 4; .* reads format 5",
        ),
    ],
)
def test_a_spoilt_state_is_refused_by_name_and_changes_nothing(
    sources: Sources, state: dict[str, Any], spoil: Callable[[dict[str, Any]], dict[str, Any]], match: str
) -> None:
    rank = small_pipeline(sources).for_rank(0, 1)
    rank.load_state_dict(state)
    with pytest.raises(StateError, match=match):
        rank.load_state_dict(spoil(state))
    assert rank.state_dict() == state


def test_parts_of_two_steps_are_never_mixed(sources: Sources, state: dict[str, Any]) -> None:
    _, later = global_batches(small_pipeline(sources), 2, 10)
    mixed = {**state, "lane": {**state["lane"], "00003": later["lane"]["00003"]}}
    with pytest.raises(StateError, match=r"lane 3 stands at sequence 20, but step 9 ends at 18"):
        small_pipeline(sources).for_rank(1, 2).load_state_dict(mixed)


def test_another_global_batch_size_is_refused(sources: Sources, state: dict[str, Any]) -> None:
    with pytest.raises(StateError, match="made with global_batch_size = 8, this job has 16"):
        small_pipeline(sources, global_batch_size=16).for_rank(0, 1).load_state_dict(state)


def test_a_change_that_the_sample_missed_is_caught_by_the_replay_and_names_the_source(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample.Sampling, "look", lambda sampling, store, name, size: ("same", b"{"))
    _, state = global_batches(small_pipeline(sources), 2, 9)
    for shard in sources["wiki"].iterdir():
        shard.write_bytes(re.sub(rb"the|and|for|was", lambda m: m[0].upper(), shard.read_bytes()))
    rank = small_pipeline(sources).for_rank(0, 1)
    rank.load_state_dict(state)
    with pytest.raises(ReplayError) as error:
        next(iter(rank))
    says(error, "the data of source 'wiki' changed", "sequences replayed since segment", "checkpoint digest")
    assert "news" not in str(error.value)
    with pytest.raises(ZephonError):
        next(iter(rank))
