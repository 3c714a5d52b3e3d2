"""The servers of ``tests/servers`` as fixtures: one S3 server a test process, behind a proxy reset for each test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.servers.proxy import Proxy, start_proxy
from tests.servers.s3 import environment, make_bucket, start_s3
from torchtitan_zephon.read import retry


@dataclass(frozen=True)
class Bucket:
    """An empty bucket of ``server``, which clients reach through ``proxy``."""

    name: str
    server: str
    proxy: Proxy

    def url(self, key: str = "") -> str:
        return f"s3://{self.name}/{key}"


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


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries without waits worth the name."""
    monkeypatch.setattr(retry, "WAITS_S", (0.01, 0.02, 0.03, 0.04))
    retry._faults.clear()
