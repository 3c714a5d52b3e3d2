"""The servers of ``tests/servers`` as fixtures: one S3 server a test process, behind a proxy reset for each test."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.scenarios import texts_of, tokenizer_folder
from tests.servers.hub import Hub, start_hub
from tests.servers.proxy import Proxy, start_proxy
from tests.servers.s3 import environment, make_bucket, start_s3
from torchtitan_zephon.read import retry
from torchtitan_zephon.read.files import place_of
from torchtitan_zephon.read.listing import Listing, list_files
from torchtitan_zephon.read.store import Store


@dataclass(frozen=True)
class Bucket:
    """An empty bucket of ``server``, which clients reach through ``proxy``."""

    name: str
    server: str
    proxy: Proxy

    def url(self, key: str = "") -> str:
        return f"s3://{self.name}/{key}"


def listing_of(path: str) -> tuple[Store, Listing]:
    """What reads the files of ``path``, and which they are."""
    store, below = place_of("s", path)
    return store, list_files("s", path, store, below)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    with start_s3() as url:
        yield url


@pytest.fixture(scope="session")
def s3_proxy(s3_server: str) -> Iterator[Proxy]:
    with start_proxy(s3_server) as proxy:
        yield proxy


@pytest.fixture
def bucket(s3_server: str, s3_proxy: Proxy, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Bucket:
    for name, value in environment(s3_proxy.url).items():
        monkeypatch.setenv(name, value)
    bucket = Bucket(f"bucket-{abs(hash(request.node.nodeid))}", s3_server, s3_proxy)
    make_bucket(s3_server, bucket.name)
    s3_proxy.clear()
    return bucket


@dataclass(frozen=True)
class HubPlace:
    """A hub, which clients reach through ``proxy``."""

    hub: Hub
    proxy: Proxy


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubPlace]:
    """The hub of the published example: two data sets, and ``gpt2``."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    constants = pytest.importorskip("huggingface_hub.constants")
    with start_hub() as hub, start_proxy(hub.url) as proxy:
        fill_hub(hub)
        for name, value in {**hub.environment(tmp_path / "hf"), "HF_ENDPOINT": proxy.url}.items():
            monkeypatch.setenv(name, value)
        # huggingface_hub reads its environment when it is imported, which another test may have done.
        link = f"{proxy.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "ENDPOINT", proxy.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", link)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
        yield HubPlace(hub, proxy)
        huggingface_hub.close_session()


CARD = """---
license: cc-by-sa-4.0
configs:
- config_name: wikitext-103-raw-v1
  data_files:
  - split: train
    path: wikitext-103-raw-v1/train-*
- config_name: wikitext-2-raw-v1
  data_files:
  - split: test
    path: wikitext-2-raw-v1/test-*
  - split: train
    path: wikitext-2-raw-v1/train-*
---
# WikiText
"""


def parquet_bytes(texts: Sequence[str | None], **columns: object) -> bytes:
    """A Parquet file of texts."""
    file = io.BytesIO()
    pq.write_table(pa.table({"text": texts, **columns}), file)
    return file.getvalue()


def fill_hub(hub: Hub) -> None:
    """The data sets and the tokenizer of the published example, in small."""
    wiki, raw = ["", " = Title = \n", *texts_of(400)], "wikitext-2-raw-v1"
    hub.push(
        "datasets/Salesforce/wikitext",
        {
            "README.md": CARD,
            ".gitattributes": "*.parquet filter=lfs\n",
            f"{raw}/train-00000-of-00001.parquet": parquet_bytes(wiki),
            f"{raw}/test-00000-of-00001.parquet": parquet_bytes(texts_of(20, 5000)),
            "wikitext-103-raw-v1/train-00000-of-00001.parquet": parquet_bytes(texts_of(20, 6000)),
        },
    )
    news = texts_of(400, 1000)
    hub.push(
        "datasets/fancyzhx/ag_news",
        {
            "README.md": "# no header\n",
            "data/train-00000-of-00001.parquet": parquet_bytes(news, label=[n % 4 for n in range(400)]),
            "data/test-00000-of-00001.parquet": parquet_bytes(texts_of(20, 7000), label=[0] * 20),
        },
    )
    hub.push("gpt2", {path.name: path.read_bytes() for path in tokenizer_folder().iterdir()})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries without waits worth the name."""
    monkeypatch.setattr(retry, "WAITS_S", (0.01, 0.02, 0.03, 0.04))
    retry._faults.clear()
