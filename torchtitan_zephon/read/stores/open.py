"""From a URL to its store, and to the pattern below it: the rules of local paths, for every protocol.

A part that exists as it is written is taken as it is, whatever letters it has; the rest is a pattern. A link
(``https://``) is one file. The packages of a protocol are imported when a source asks for it.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from ...errors import SourceError
from ..pattern import EVERYTHING, Pattern
from .clients import AzClient, Client, Entry, FsspecClient, GsClient, LinkClient, S3Client
from .hub import HubClient
from .remote import RemoteStore, looked_at
from .settings import StorageSettings
from .url import LINKS, SEPARATOR, UrlPath, plain, scheme_of

CLIENTS: dict[str, tuple[Callable[[str, Mapping[str, Any]], Client], str]] = {
    "s3": (S3Client, "s3fs"),
    "s3a": (S3Client, "s3fs"),
    "gs": (GsClient, "gcsfs"),
    "gcs": (GsClient, "gcsfs"),
    "az": (AzClient, "adlfs"),
    "abfs": (AzClient, "adlfs"),
    "abfss": (AzClient, "adlfs"),
    "hf": (HubClient, "huggingface_hub>=1.0"),
    "http": (LinkClient, "fsspec[http]"),
    "https": (LinkClient, "fsspec[http]"),
}
"""Protocols with a client of their own, and the package that each needs; fsspec's other ones are read too."""


def open_url(url: str, storage: StorageSettings, format: str = "") -> tuple[RemoteStore, Pattern | str]:
    """The store of ``url`` and the pattern below its root; for a single file its name. Raises ``SourceError``.

    ``format``: that of the files, if the source states it.
    """
    scheme = scheme_of(url)
    _refuse(url)
    client = client_of(url, storage.options(scheme))
    if scheme in LINKS:
        return _link(url, client, format)
    if isinstance(client, HubClient):
        url = client.url
    parts = [part for part in url.partition(SEPARATOR)[2].split("/") if part]
    names: list[str] = []
    for part in parts:
        if glob.has_magic(part) and not _at(client, scheme, [*names, part]):
            break
        names.append(part)
    here, below = _at(client, scheme, names), parts[len(names) :]
    if here is None:
        where = f"nothing at {_url(scheme, names)!r}"
        if names[1:] and _at(client, scheme, names[:1]) is None:
            where += f": there is no {_url(scheme, names[:1])!r}, or it is empty"
        raise SourceError(f"there is {where}. Look for a misspelt name.")
    if here.is_folder:
        return _store(client, scheme, names), Pattern(tuple(below) or EVERYTHING, format)
    if below or url.endswith("/"):
        raise SourceError(f"{_url(scheme, names)!r} is a file, and {url!r} takes it for a folder.")
    return _store(client, scheme, names[:-1]), Pattern.of_name(names[-1], format) if format else names[-1]


def client_of(url: str, options: Mapping[str, Any]) -> Client:
    """The client of a protocol. Raises ``SourceError`` if its package is missing, or nobody knows the protocol."""
    scheme = scheme_of(url)
    of, package = CLIENTS.get(scheme, (FsspecClient, "fsspec"))
    try:
        return of(url, options)
    except ImportError as error:
        raise SourceError(
            f"{scheme}{SEPARATOR} is read through the package {package}, which is not installed ({error}); "
            f"pip install '{package}'."
        ) from None
    except SourceError:
        raise
    except ValueError as error:
        raise SourceError(f"{url!r} cannot be read: {error}.") from None


def _refuse(url: str) -> None:
    """Refuse what fsspec would read in another way than it looks."""
    host, *folders = url.partition(SEPARATOR)[2].split("/")
    if "::" in url:
        raise SourceError(f"{url!r} chains two protocols, which is not read; name the files' own URL.")
    if url.startswith("file:"):
        raise SourceError(f"write {url!r} without file://, as a path of this machine.")
    if not host and not any(folders):
        raise SourceError(f"{url!r} names no bucket or folder.")
    if ".." in folders or "." in folders:
        raise SourceError(f"{url!r} has '.' or '..' for a folder; write it without.")
    if ":" in host.partition("@")[0] and "@" in host and scheme_of(url) not in LINKS:
        raise SourceError(
            f"{url!r} has a user and a password in it. Give them to the protocol's client instead, as docs/storage.md "
            "says, and leave them out of the path."
        )


def _url(scheme: str, names: list[str]) -> str:
    return f"{scheme}{SEPARATOR}{'/'.join(names)}"


def _store(client: Client, scheme: str, names: list[str]) -> RemoteStore:
    url = _url(scheme, names)
    return RemoteStore(UrlPath(url), client, client.place(url))


def _at(client: Client, scheme: str, names: list[str]) -> Entry | None:
    """What lies there; None if nothing does."""
    url = _url(scheme, names)
    return looked_at(client, client.place(url), url)


def _link(url: str, client: Client, format: str) -> tuple[RemoteStore, Pattern | str]:
    """A link is one file; its query is part of the request and of nothing else."""
    path, query = urlsplit(url).path, url.partition("?")
    folder, _, name = plain(url).rpartition("/")
    if not path.rpartition("/")[2] or glob.has_magic(path):
        raise SourceError(
            f"{url!r} is no link to one file, and a web server cannot list a folder. Give each file "
            "as a source, or read the same data by s3://, gs://, az:// or hf://."
        )
    return RemoteStore(UrlPath(folder), client, query[0].rpartition("/")[0], f"{query[1]}{query[2]}"), name
