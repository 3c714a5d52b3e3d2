"""What a protocol's own client must be able to do, and the clients that fsspec has.

A client raises what its library raises (``faults.py`` puts it into words), tries nothing twice (``retry.py`` does), and
lists nothing from memory. ``fetch`` hands on the bytes as they arrive, so that what came before a fault is kept. Every
fetch is bound to a version: S3, Google and Azure refuse another one; of other protocols the version is asked again
behind each fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar

T = TypeVar("T")
Take = Callable[[bytes], None]

_TAGS = ("generation", "ETag", "etag", "mtime", "modified", "LastModified", "last_modified", "updated", "created")
"""Where clients say which version of a file they show, the strictest first."""
PART_BYTES = 256 * 2**10
IDLE_S = 30
"""Seconds without a byte until a connection counts as lost."""
CONNECTIONS = 64
"""Connections kept a store, so that every thread of a rank finds one."""


class Changed(Exception):
    """The file has another version than the one that was asked for."""


class Entry(NamedTuple):
    """A file or folder; ``name`` as the client has it. ``tag``: what changes with the content, '' if nothing does."""

    name: str
    num_bytes: int
    tag: str
    is_folder: bool


class Client(Protocol):
    """One protocol. ``commit``: what all its files are of, '' where there are no commits. ``place``: a URL as the other
    methods want it. ``look`` raises ``FileNotFoundError``; a folder is where something lies below. A client can be
    pickled, for the loader's own process."""

    commit: str

    def place(self, url: str) -> str: ...
    def look(self, path: str) -> Entry: ...
    def below(self, path: str, depth: int | None) -> Iterator[Entry]: ...
    def fetch(self, path: str, start: int, stop: int, tag: str, take: Take) -> None: ...


class FsspecClient:
    """Any file system of fsspec; its instance is this store's own, as its settings are."""

    commit = ""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        import fsspec  # an extra: only remote sources need it

        of = fsspec.get_filesystem_class(url.partition("://")[0])
        named = of._get_kwargs_from_urls(url)  # such as the account in abfs://container@account...
        self._made_with = url, options
        self.fs = of(**{**named, **options, "skip_instance_cache": True, "use_listings_cache": False})

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._made_with

    def place(self, url: str) -> str:
        """Without the protocol, and without the host where a client has one for all."""
        place: str = self.fs._strip_protocol(url)
        return place

    def look(self, path: str) -> Entry:
        """What lies at ``path``."""
        return _entry(path, self.fs.info(path))

    def below(self, path: str, depth: int | None) -> Iterator[Entry]:
        """All files below a folder, or those up to ``depth`` names deep and the folders among them."""
        found = self.fs.find(path, maxdepth=depth, withdirs=depth is not None, detail=True)
        return (_entry(name, info) for name, info in found.items())

    def fetch(self, path: str, start: int, stop: int, tag: str, take: Take) -> None:
        """Hand the bytes [start, stop) of version ``tag`` to ``take``. Raises ``Changed``."""
        data = self.fs.cat_file(path, start=start, end=stop)
        if self.look(path).tag != tag:
            raise Changed
        take(data)

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of ``coroutine``, which runs in fsspec's thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.fs.loop).result()


def _entry(path: str, info: Mapping[str, Any]) -> Entry:
    said = next((info[key] for key in _TAGS if info.get(key)), "")
    tag = str(said.timestamp() if isinstance(said, datetime) else said)  # some clients have a date in two ways
    return Entry(info.get("name") or path, int(info.get("size") or 0), tag, info["type"] == "directory")


class S3Client(FsspecClient):
    """``s3://`` by s3fs."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        config = {
            "retries": {"mode": "standard", "total_max_attempts": 1},
            "connect_timeout": IDLE_S,
            "read_timeout": IDLE_S,
            "max_pool_connections": CONNECTIONS,
        }
        region = {k: v for k, v in options.items() if k != "region"}
        if "region" in options:
            region["client_kwargs"] = {"region_name": options["region"]}
        super().__init__(url, {"config_kwargs": config, **region})
        self._made_with = url, options
        self.fs.retries = 1

    def fetch(self, path: str, start: int, stop: int, tag: str, take: Take) -> None:
        """The bytes of an ETag, by one request."""
        self.wait(self._fetch(path, start, stop, tag, take))

    async def _fetch(self, path: str, start: int, stop: int, tag: str, take: Take) -> None:
        bucket, key, _ = self.fs.split_path(path)
        await self.fs.set_session()
        s3 = await self.fs.get_s3(bucket)
        span = f"bytes={start}-{stop - 1}"
        answer = await s3.get_object(Bucket=bucket, Key=key, Range=span, IfMatch=tag, **self.fs.req_kw)
        async with answer["Body"] as body:
            async for part in body.iter_chunks(PART_BYTES):
                take(part)


class GsClient(FsspecClient):
    """``gs://`` by gcsfs."""

    def fetch(self, path: str, start: int, stop: int, tag: str, take: Take) -> None:
        """The bytes of a generation, by one request."""
        link = f"{self.fs.url(path)}&ifGenerationMatch={tag}"
        headers, data = self.fs.call("GET", link, headers={"Range": f"bytes={start}-{stop - 1}"})
        if headers.get("X-Goog-Generation", tag) != tag:
            raise Changed
        take(data)


class AzClient(FsspecClient):
    """``az://`` and ``abfs://`` by adlfs."""

    def fetch(self, path: str, start: int, stop: int, tag: str, take: Take) -> None:
        """The bytes of an ETag, by one request for each 4 MiB."""
        self.wait(self._fetch(path, start, stop, tag, take))

    async def _fetch(self, path: str, start: int, stop: int, tag: str, take: Take) -> None:
        from azure.core import MatchConditions

        container, blob, _ = self.fs.split_path(path)
        async with self.fs.service_client.get_blob_client(container=container, blob=blob) as of_blob:
            stream = await of_blob.download_blob(
                offset=start, length=stop - start, etag=tag, match_condition=MatchConditions.IfNotModified
            )
            async for part in stream.chunks():
                take(part)


class LinkClient(FsspecClient):
    """``https://`` by fsspec's HTTP file system: files, each by its whole link, and no folders."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=IDLE_S, sock_read=IDLE_S)
        super().__init__(url, {"client_kwargs": {"timeout": timeout, "trust_env": True}, **options})
        self._made_with = url, options

    def look(self, path: str) -> Entry:
        """The size and version of the file, by a request for its first byte: a signed link allows no other."""
        return self.wait(self._look(path))

    async def _look(self, path: str) -> Entry:
        session = await self.fs.set_session()
        async with session.get(self.fs.encode_url(path), headers={**_AS_IT_IS, "Range": "bytes=0-0"}) as answer:
            if answer.status == 416:
                return Entry(path, 0, _tag(answer.headers), False)
            answer.raise_for_status()
            if answer.status != 206:
                raise OSError("the server sends no ranges of a file (it does not know the header Range)")
            return Entry(path, int(answer.headers["Content-Range"].rpartition("/")[2]), _tag(answer.headers), False)

    def fetch(self, path: str, start: int, stop: int, tag: str, take: Take) -> None:
        """The bytes of an ETag or a date of change, by one request."""
        self.wait(self._fetch(path, start, stop, tag, take))

    async def _fetch(self, path: str, start: int, stop: int, tag: str, take: Take) -> None:
        session = await self.fs.set_session()
        headers = {**_AS_IT_IS, "Range": f"bytes={start}-{stop - 1}"}
        async with session.get(self.fs.encode_url(path), headers=headers) as answer:
            answer.raise_for_status()
            if answer.status != 206 or _tag(answer.headers) != tag:
                raise Changed
            async for part in answer.content.iter_chunked(PART_BYTES):
                take(part)


_AS_IT_IS = {"Accept-Encoding": "identity"}


def _tag(headers: Mapping[str, str]) -> str:
    return headers.get("ETag") or headers.get("Last-Modified") or ""
