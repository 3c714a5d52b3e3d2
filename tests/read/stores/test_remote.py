"""Files behind a URL: the same files, bytes and order as on a disk, and never a mixture or a part of them."""

from __future__ import annotations

import itertools
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from tests.read.stores.conftest import Bucket, listing_of
from tests.read.test_pattern import FILES, FOLDERS, LAST, PARTS
from tests.scenarios import corpus, global_batches, small_pipeline, write_jsonl
from tests.servers.proxy import Fault
from tests.servers.s3 import client, put, put_folder
from torchtitan_zephon import SourceConfig, SourceError
from torchtitan_zephon.read.files import Manifest, list_source
from torchtitan_zephon.read.one_list import Listing, TakenListing
from torchtitan_zephon.read.store import Store
from torchtitan_zephon.read.stores import clients
from torchtitan_zephon.read.stores.settings import LOCAL
from torchtitan_zephon.read.walk import Reason

fsspec = pytest.importorskip("fsspec")
DATA = bytes(range(256)) * 4000


def listed(path: str) -> Manifest:
    return list_source("wiki", SourceConfig(path=path))


def refusal(path: str) -> str:
    with pytest.raises(SourceError) as error:
        listed(path)
    return str(error.value)


@pytest.fixture
def memory() -> Iterator[str]:
    """An empty folder of fsspec's file system in memory."""
    url = f"memory://{uuid.uuid4().hex}"
    yield url
    fsspec.filesystem("memory").rm(url, recursive=True)


def fill(url: str, folder: Path) -> None:
    fs = fsspec.filesystem("memory")
    for path in folder.rglob("*"):
        if path.is_file():
            fs.pipe_file(f"{url}/{path.relative_to(folder)}", path.read_bytes())


# ---- what is read


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The same files in a folder and in memory."""
    root, url = tmp_path_factory.mktemp("tree"), "memory://tree"
    for folder, file in itertools.product([*FOLDERS, ".h/", "_h/a/"], [*FILES, ".a.jsonl", "README.md", "a.csv.bak"]):
        write_jsonl(root / folder / file, [folder + file])
    fill(url, root)
    return root, url


@given(parts=st.lists(st.sampled_from(PARTS), max_size=3), last=st.sampled_from([*LAST, "", "a", "*.md", ".a.jsonl"]))
def test_a_path_takes_what_it_does_on_a_disk(trees: tuple[Path, str], parts: list[str], last: str) -> None:
    below = "/".join([*parts, last])
    found = []
    for root in trees:
        try:
            store, listing = listing_of(f"{root}/{below}")
        except SourceError as error:
            found.append("no data file" in str(error) and "error")
        else:
            left = {(str(store.root / name).removeprefix(str(root)), why) for name, why, _ in listing.left_out}
            found.append((
                {str(store.root / file.name).removeprefix(str(root)) for file in listing.files},
                {(name, why) for name, why in left if why is not Reason.FOLDER},
            ))  # fmt: skip
    assert found[0] == found[1] or not (found[0] and found[1])


def test_a_bucket_gives_the_stream_of_the_folder_and_its_name(bucket: Bucket, tmp_path: Path) -> None:
    local = corpus(tmp_path)
    put_folder(bucket.server, bucket.name, tmp_path, "a b/ü+%20#/")
    remote = {name: bucket.url(f"a b/ü+%20#/{path.relative_to(tmp_path)}") for name, path in local.items()}
    for name, path in local.items():
        assert listed(remote[name]).shards == listed(str(path)).shards
    whole, state = global_batches(small_pipeline(local), 1, 6)
    assert global_batches(small_pipeline(remote), 2, 6)[0] == whole
    assert (
        global_batches(small_pipeline(remote), 1, 2, state)[0] == global_batches(small_pipeline(local), 4, 2, state)[0]
    )


def test_a_file_that_is_named_is_read_whatever_its_name(memory: str) -> None:
    for name in ("_a.json", "run[1].jsonl", "x?.jsonl"):
        fsspec.filesystem("memory").pipe_file(f"{memory}/{name}", b'{"text": "x"}\n')
        manifest = listed(f"{memory}/{name}")
        assert [shard.name for shard in manifest.shards] == [name]
        assert str(manifest.root) == memory


def test_more_names_than_a_page_has_are_all_listed(bucket: Bucket) -> None:
    put(bucket.server, bucket.name, {f"many/{n:04}.jsonl": b'{"text": "x"}\n' for n in range(1100)})
    assert len(listing_of(bucket.url("many"))[1].files) == 1100
    assert sum("list-type" in seen.path for seen in bucket.proxy.seen) == 3


@pytest.mark.parametrize("mark", ["_delta_log/0.json", ".hoodie/x", "metadata/v1.metadata.json"])
def test_a_table_is_refused_as_on_a_disk(memory: str, mark: str) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file(f"{memory}/t/data/x.parquet", b"PAR1")
    fs.pipe_file(f"{memory}/t/{mark}", b"{}")
    assert "is a table of " in refusal(memory)
    assert "is a table of " in refusal(f"{memory}/t")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("{}/none.jsonl", "there is nothing at"),
        ("{}/none/*.jsonl", "there is nothing at"),
        ("{}/a.jsonl/", "is a file"),
        ("{}/a.jsonl/*.jsonl", "is a file"),
        ("{}/../x", "'..' for a folder"),
        ("memory://", "names no bucket or folder"),
        ("file:///tmp/x", "without file://"),
        ("simplecache::s3://b/x", "chains two protocols"),
        ("s3://key:very-secret@bucket/x", "a user and a password"),
        ("nonsense://b/x", "cannot be read: Protocol not known: nonsense"),
        ("https://host/folder/", "no link to one file"),
    ],
)
def test_a_url_that_names_no_files_is_refused_with_the_way_out(memory: str, path: str, said: str) -> None:
    fsspec.filesystem("memory").pipe_file(f"{memory}/a.jsonl", b'{"text": "x"}\n')
    text = refusal(path.format(memory))
    assert text.startswith("source 'wiki'")
    assert said in text
    assert "very-secret" not in text


def test_a_protocol_whose_package_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    assert "pip install 's3fs'" in refusal("s3://bucket/x")


# ---- bytes


@pytest.fixture
def store(bucket: Bucket) -> Store:
    put(bucket.server, bucket.name, {"x.jsonl": DATA, "y.jsonl": b""})
    store, _ = listing_of(bucket.url("x.jsonl"))
    bucket.proxy.clear()
    return store


@pytest.mark.parametrize(("start", "stop"), [(0, 10), (300, 25_000), (1_023_990, 2**30), (2**30, 2**31), (5, 5)])
def test_a_range_is_the_bytes_of_the_file_up_to_its_end(store: Store, start: int, stop: int) -> None:
    assert store.read("x.jsonl", start, stop) == DATA[start:stop]


def test_a_range_costs_one_request_and_connections_are_kept(bucket: Bucket, store: Store) -> None:
    for start in range(0, 100_000, 1000):
        store.read("x.jsonl", start, start + 1000)
    assert len(bucket.proxy.seen) == 100
    assert bucket.proxy.body_bytes == 100_000
    assert bucket.proxy.connections <= 1


def test_reading_on_fetches_ahead_and_a_look_does_not(bucket: Bucket, store: Store) -> None:
    with store.open("x.jsonl") as file:
        file.seek(500_000)
        assert file.read(10) == DATA[500_000:500_010]
        assert bucket.proxy.body_bytes <= 4096
        file.seek(0)
        assert b"".join(iter(lambda: file.read(1000), b"")) == DATA
    assert len(bucket.proxy.seen) < 12
    assert bucket.proxy.body_bytes < len(DATA) + 8192


def test_threads_read_at_once(store: Store) -> None:
    wrong = []

    def read(first: int) -> None:
        for start in range(first, 900_000, 90_000):
            if store.read("x.jsonl", start, start + 50_000) != DATA[start : start + 50_000]:
                wrong.append(start)

    threads = [threading.Thread(target=read, args=(n * 1000,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_footer_is_one_request(bucket: Bucket, tmp_path: Path) -> None:
    local = corpus(tmp_path)["beta"]
    put_folder(bucket.server, bucket.name, local)
    store, _ = listing_of(bucket.url("rows.parquet"))
    bucket.proxy.clear()
    with store.open_for_arrow("rows.parquet") as source, pq.ParquetFile(source) as file:
        assert file.metadata.num_rows == 400
    assert len(bucket.proxy.seen) == 1


# ---- faults

SLOW_DOWN = "<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=429),
        Fault(status=500),
        Fault(status=503, body=SLOW_DOWN),
        Fault(cut_after=0),
        Fault(cut_after=300_000),
        Fault(short=1000),
        Fault(short=10**9),
    ],
    ids=repr,
)
@pytest.mark.parametrize("times", [1, 4])
def test_a_fault_that_passes_changes_no_byte(
    bucket: Bucket, store: Store, fault: Fault, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.proxy.faults.append(Fault(**{**vars(fault), "times": times}))
    assert store.read("x.jsonl", 1000, 900_000) == DATA[1000:900_000]
    assert f"reading bytes 1,000 to 900,000 of 's3://{bucket.name}/x.jsonl' failed: " in caplog.text
    assert 2 <= len(bucket.proxy.seen) <= times + 1


@pytest.mark.usefixtures("quick")
def test_a_cut_connection_is_taken_up_at_the_byte_reached(bucket: Bucket, store: Store) -> None:
    bucket.proxy.faults.append(Fault(cut_after=300_000, times=2))
    assert store.read("x.jsonl", 0, 900_000) == DATA[:900_000]
    starts = [int(seen.span.removeprefix("bytes=").partition("-")[0]) for seen in bucket.proxy.seen]
    assert starts == sorted(starts) and starts[1] > 200_000 and starts[2] > 500_000
    assert bucket.proxy.body_bytes < 1_200_000


def test_slow_bytes_are_bytes(bucket: Bucket, store: Store) -> None:
    bucket.proxy.faults.append(Fault(pause_s=0.02))
    assert store.read("x.jsonl", 0, 500_000) == DATA[:500_000]
    assert len(bucket.proxy.seen) == 1


@pytest.mark.usefixtures("quick")
def test_a_connection_that_goes_silent_is_given_up_and_taken_up_at_the_byte_reached(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "IDLE_S", 1)
    put(bucket.server, bucket.name, {"x.jsonl": DATA})
    store, _ = listing_of(bucket.url("x.jsonl"))
    bucket.proxy.clear()
    bucket.proxy.faults.append(Fault(pause_s=3))
    began = time.monotonic()
    assert store.read("x.jsonl", 0, 500_000) == DATA[:500_000]
    assert len(bucket.proxy.seen) == 2
    assert time.monotonic() - began < 20


@pytest.mark.usefixtures("quick")
def test_cuts_without_end_are_waited_out_as_long_as_bytes_come(bucket: Bucket, store: Store) -> None:
    bucket.proxy.faults.append(Fault(cut_after=2**16, times=99))
    assert store.read("x.jsonl", 0, 1_024_000) == DATA
    assert len(bucket.proxy.seen) > 10


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("fault", [Fault(status=500), Fault(short=10**9), Fault(cut_after=0)], ids=repr)
def test_a_fault_that_stays_ends_with_file_and_tries(bucket: Bucket, store: Store, fault: Fault) -> None:
    bucket.proxy.faults.append(Fault(**{**vars(fault), "times": 99}))
    with pytest.raises(OSError, match=r"on each of 5 tries in 0\.1 s: 's3://bucket-\d+/x\.jsonl'"):
        store.read("x.jsonl", 0, 10_000)
    assert len(bucket.proxy.seen) == 5


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (404, "NoSuchKey", "there is nothing there"),
        (404, "NoSuchBucket", "there is no bucket 'bucket-"),
        (403, "AccessDenied", "access is refused (403 AccessDenied)"),
        (403, "InvalidAccessKeyId", "access is refused (403 InvalidAccessKeyId)"),
        (400, "ExpiredToken", "the credentials have expired (400 ExpiredToken). Renew them"),
        (400, "AuthorizationHeaderMalformed", "the bucket lies in another region"),
        (412, "PreconditionFailed", "has changed since this job listed it"),
    ],
)
def test_a_fault_that_will_not_pass_is_told_at_once_with_the_way_out(
    bucket: Bucket, store: Store, status: int, code: str, said: str
) -> None:
    body = f"<Error><Code>{code}</Code><Message>hf_abcdefghijklmn</Message></Error>"
    bucket.proxy.faults.append(Fault(status=status, body=body))
    with pytest.raises(SourceError) as error:
        store.read("x.jsonl", 0, 10_000)
    assert f"'s3://{bucket.name}/x.jsonl'" in str(error.value)
    assert said in str(error.value)
    assert "hf_abc" not in str(error.value)
    assert len(bucket.proxy.seen) == 1


def test_without_credentials_the_error_says_where_they_are_looked_for(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    text = refusal(bucket.url("x"))
    assert "there are no credentials" in text and "AWS_PROFILE" in text and "anon = true" in text


def test_another_version_is_refused_in_the_middle_of_a_file(bucket: Bucket, store: Store) -> None:
    with store.open("x.jsonl") as file:
        file.read(100_000)
        put(bucket.server, bucket.name, {"x.jsonl": DATA[::-1]})
        with pytest.raises(SourceError, match=r"x\.jsonl' has changed since this job listed it"):
            file.read()
    with pytest.raises(SourceError, match="has changed"):
        store.read("x.jsonl", 0, 10)


def test_another_version_is_refused_where_a_protocol_can_only_be_asked(memory: str) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file(f"{memory}/x.jsonl", DATA)
    store, _ = listing_of(memory)
    assert store.read("x.jsonl", 0, 10) == DATA[:10]
    fs.pipe_file(f"{memory}/x.jsonl", DATA[::-1])
    with pytest.raises(SourceError, match=r"x\.jsonl' has changed since this job listed it"):
        store.read("x.jsonl", 0, 10)


# ---- other ranks


def test_ranks_that_take_a_list_sample_nothing_and_read_just_these_versions(bucket: Bucket, tmp_path: Path) -> None:
    put_folder(bucket.server, bucket.name, corpus(tmp_path)["alpha"])
    settings = SourceConfig(path=bucket.url())
    listing = Listing()
    first = listing("wiki", settings, 2**25).reader.manifest
    bucket.proxy.clear()
    taken = TakenListing(listing.text(), "rank 1 of 2")("wiki", settings, 2**25, LOCAL).reader.manifest
    assert taken.shards == first.shards
    assert taken.store.read("part-0.jsonl", 0, 10) == first.store.read("part-0.jsonl", 0, 10)
    assert [seen.span for seen in bucket.proxy.seen if seen.span] == ["bytes=0-9"] * 2
    put(bucket.server, bucket.name, {"part-0.jsonl": DATA})
    with pytest.raises(SourceError, match="has changed"):
        taken.store.read("part-0.jsonl", 0, 10)


# ---- links


def test_a_signed_link_is_a_file_and_its_signature_is_said_nowhere(
    bucket: Bucket, tmp_path: Path, caplog: pytest.LogCaptureFixture, quick: None
) -> None:
    local = corpus(tmp_path)["gamma"]
    put(bucket.server, bucket.name, {"gamma.jsonl": local.read_bytes()})
    of_object = {"Bucket": bucket.name, "Key": "gamma.jsonl"}
    link = client(bucket.proxy.url).generate_presigned_url("get_object", Params=of_object)
    assert "Signature=" in link
    pipeline = small_pipeline({"s": link})
    whole, state = global_batches(small_pipeline({"s": local}), 1, 4)
    assert global_batches(pipeline, 2, 4)[0] == whole
    assert global_batches(small_pipeline({"s": link}), 1, 1, state)[0]
    bucket.proxy.faults.append(Fault(status=503))
    listed(link)
    put(bucket.server, bucket.name, {"gamma.jsonl": DATA})
    with pytest.raises(SourceError, match="has changed") as error:
        global_batches(pipeline, 1, 4)
    told = f"{error.value!r} {caplog.text} {pipeline.explain()} {state}"
    assert "gamma.jsonl" in told and "Signature" not in told and link.partition("?")[2] not in told


def test_a_server_without_ranges_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "x"}\n')
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert "sends no ranges of a file" in refusal(f"http://127.0.0.1:{server.server_port}/x.jsonl")
        server.shutdown()
