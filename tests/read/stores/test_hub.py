"""Data sets on the hub, through the real ``huggingface_hub``: found as people write them, and pinned to a commit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.read.stores.conftest import HubPlace, listing_of, parquet_bytes
from tests.scenarios import global_batches, small_pipeline, texts_of
from tests.servers.hub import TOKEN
from tests.servers.proxy import Fault
from torchtitan_zephon import RecipeChangedError, SourceConfig, SourceError
from torchtitan_zephon.read.files import Manifest, list_source
from torchtitan_zephon.read.one_list import Listing, TakenListing

ROOT = Path(__file__).resolve().parents[3]
WIKI, NEWS = "hf://Salesforce/wikitext/wikitext-2-raw-v1/train", "hf://fancyzhx/ag_news/default/train"


def listed(path: str) -> Manifest:
    return list_source("wiki", SourceConfig(path=path))


def refusal(path: str) -> str:
    with pytest.raises(SourceError) as error:
        listed(path)
    return str(error.value)


PUBLISHED = """
from torchtitan_zephon import Dataset, Pipeline, StaticMixtureWorkSource, TokenEstimation

source = StaticMixtureWorkSource(
    datasets=[Dataset.from_path("wiki", "hf://Salesforce/wikitext/wikitext-2-raw-v1/train"),
              Dataset.from_path("news", "hf://fancyzhx/ag_news/default/train")],
    mixture={"wiki": 0.5, "news": 0.5}, token_estimation=TokenEstimation(), seed=42)
pipeline = (Pipeline(source)
    .tokenize(tokenizer_id="gpt2", field="text", parallelism=4)
    .pack_flat(max_length=2048, algorithm="wrap")
    .shuffle(buffer_size=1024, seed=42)
    .batch(microbatch_size=8))
for batch in pipeline:
    break
print(batch.input.shape)
pipeline.close()
"""


def test_the_published_example_runs_as_written(place: HubPlace) -> None:
    done = subprocess.run([sys.executable, "-c", PUBLISHED], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == "(8, 2048)\n", done.stderr


@pytest.mark.parametrize(
    ("path", "names"),
    [
        (WIKI, ["wikitext-2-raw-v1/train-00000-of-00001.parquet"]),
        ("hf://Salesforce/wikitext/wikitext-103-raw-v1", ["wikitext-103-raw-v1/train-00000-of-00001.parquet"]),
        (NEWS, ["data/train-00000-of-00001.parquet"]),
        ("hf://fancyzhx/ag_news/test", ["data/test-00000-of-00001.parquet"]),
        ("hf://fancyzhx/ag_news@main/train", ["data/train-00000-of-00001.parquet"]),
        ("hf://datasets/fancyzhx/ag_news/data/train*", ["train-00000-of-00001.parquet"]),
        ("hf://datasets/fancyzhx/ag_news@main/**/test*", ["data/test-00000-of-00001.parquet"]),
        ("hf://datasets/fancyzhx/ag_news/data/test-00000-of-00001.parquet", ["test-00000-of-00001.parquet"]),
    ],
)
def test_a_path_means_what_people_expect(place: HubPlace, path: str, names: list[str]) -> None:
    manifest = listed(path)
    assert [shard.name for shard in manifest.shards] == names
    assert len(manifest.store.commit) == 40
    assert f"@{manifest.store.commit}" in manifest.files_text()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (
            "hf://Salesforce/wikitext/raw/train",
            "configuration 'raw'. It has: 'wikitext-103-raw-v1', 'wikitext-2-raw-v1'",
        ),
        ("hf://Salesforce/wikitext", "several configurations"),
        ("hf://Salesforce/wikitext/wikitext-2-raw-v1/dev", "no split 'dev'. It has: 'test', 'train'"),
        ("hf://fancyzhx/ag_news", "has several splits. It has: 'test', 'train'"),
        ("hf://fancyzhx/ag_news/data/train/x", "write hf://datasets/OWNER/NAME/data/train/x"),
        ("hf://fancyzhx/agnews/train", "the hub has no such data set, or it is private"),
        ("hf://fancyzhx/ag_news@v9/train", "the data set has no such revision"),
        ("hf://ag_news", "is no data set on the hub. Write hf://OWNER/NAME"),
        ("hf://spaces/x/y", "is no data set on the hub"),
        ("hf://datasets/fancyzhx/ag_news/none.parquet", "there is nothing at 'hf://datasets/fancyzhx/ag_news@"),
        ("hf://datasets/fancyzhx/ag_news/data", "holds both 'train-00000-of-00001.parquet' and"),
    ],
)
def test_a_path_that_means_nothing_is_refused_with_what_there_is(place: HubPlace, path: str, said: str) -> None:
    text = refusal(path)
    assert text.startswith("source 'wiki': ")
    assert said in text


def test_a_private_data_set_is_read_with_a_token_which_stays_with_the_hub(
    place: HubPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.hub.repos["datasets/fancyzhx/ag_news"].private = True
    text = refusal(NEWS)
    assert "it is private and this user may not see it" in text and "HF_TOKEN" in text
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    manifest = listed(NEWS)
    assert manifest.store.read(manifest.shards[0].name, 0, 4) == b"PAR1"
    assert place.hub.leaked == []


def test_a_gated_data_set_says_where_to_agree(place: HubPlace) -> None:
    place.hub.repos["datasets/fancyzhx/ag_news"].gated = True
    with pytest.raises(SourceError, match="the data set is gated: its page on the hub asks for an agreement"):
        small_pipeline({"news": NEWS}).explain()


def test_a_wrong_token_is_in_no_error(place: HubPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "hf_" + "w" * 34
    monkeypatch.setenv("HF_TOKEN", wrong)
    place.hub.repos["datasets/fancyzhx/ag_news"].private = True
    assert wrong not in refusal(NEWS)


def test_names_come_in_pages(place: HubPlace) -> None:
    files = {f"data/train-{n:05}-of-00050.parquet": parquet_bytes([f"{n}"]) for n in range(50)}
    place.hub.push("datasets/a/many", files)
    place.hub.page = 7
    assert len(listing_of("hf://a/many")[1].files) == 50


def test_files_that_only_the_card_names_are_read_whatever_their_ending(place: HubPlace) -> None:
    card = "---\nconfigs:\n- config_name: default\n  data_files: x/*.json\n---\n"
    place.hub.push("datasets/a/lines", {"README.md": card, "x/1.json": '{"text": "a"}\n', "y/2.json": "[]"})
    assert [shard.name for shard in listed("hf://a/lines").shards] == ["x/1.json"]


# ---- bytes


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "fault", [Fault(status=429), Fault(status=500), Fault(cut_after=3000), Fault(short=5000)], ids=repr
)
@pytest.mark.parametrize("match", ["/resolve/", "/cdn/"])
def test_a_fault_that_passes_changes_no_byte(place: HubPlace, fault: Fault, match: str) -> None:
    manifest = listed(NEWS)
    name, size = manifest.shards[0][:2]
    whole = manifest.store.read(name, 0, size)
    place.proxy.faults.append(Fault(**{**vars(fault), "match": match, "times": 2}))
    assert listed(NEWS).store.read(name, 0, size) == whole


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("match", ["/api/datasets", "/tree/"])
def test_a_fault_while_files_are_listed_is_waited_out(place: HubPlace, match: str) -> None:
    before = listed(NEWS).shards
    place.proxy.faults.append(Fault(status=503, match=match, times=3))
    assert listed(NEWS).shards == before


def test_a_link_serves_the_ranges_of_a_file_until_it_expires(place: HubPlace) -> None:
    manifest = listed(NEWS)
    name = manifest.shards[0].name
    place.proxy.clear()
    place.hub.link_uses = 3
    parts = [manifest.store.read(name, n * 1000, n * 1000 + 1000) for n in range(8)]
    assert b"".join(parts) == manifest.store.read(name, 0, 8000)
    assert sum("/resolve/" in seen.path for seen in place.proxy.seen) == 3


# ---- one commit


def push_other_news(place: HubPlace) -> str:
    other = parquet_bytes(texts_of(500, 90_000))
    return place.hub.push("datasets/fancyzhx/ag_news", {"data/train-00000-of-00001.parquet": other})


def test_the_hubs_own_hash_is_the_identity_of_a_file(place: HubPlace) -> None:
    place.proxy.clear()
    shard = listed(NEWS).shards[0]
    assert len(shard.sample) == 16
    assert not any("/resolve/" in seen.path for seen in place.proxy.seen)
    push_other_news(place)
    assert listed(NEWS).shards[0].sample != shard.sample


@pytest.mark.parametrize("runner", ["thread", "process"])
def test_a_resume_reads_the_commit_of_its_checkpoint_though_main_moved_on(place: HubPlace, runner: str) -> None:
    whole, _ = global_batches(small_pipeline({"news": NEWS}), 1, 8)
    begun, state = global_batches(small_pipeline({"news": NEWS}).options(runner=runner), 2, 3)
    push_other_news(place)
    behind, _ = global_batches(small_pipeline({"news": NEWS}).options(runner=runner), 1, 5, state)
    assert begun + behind == whole
    assert global_batches(small_pipeline({"news": NEWS}), 1, 3)[0] != begun


def test_a_commit_that_is_named_is_never_another(place: HubPlace) -> None:
    _, state = global_batches(small_pipeline({"news": NEWS}), 1, 2)
    other = push_other_news(place)
    named = small_pipeline({"news": NEWS.replace("ag_news", f"ag_news@{other}")})
    with pytest.raises(RecipeChangedError, match=r"sources\.news\.commit: "):
        global_batches(named, 1, 2, state)


def test_ranks_that_take_a_list_read_its_commit(place: HubPlace) -> None:
    settings, listing = SourceConfig(path=NEWS), Listing()
    first = listing("news", settings, 2**25).reader.manifest
    push_other_news(place)
    taken = TakenListing(listing.text(), "rank 1 of 2")("news", settings, 2**25).reader.manifest
    assert taken.store.commit == first.store.commit
    name, size, _ = first.shards[0]
    assert taken.store.read(name, 0, size) == first.store.read(name, 0, size)
