"""From a URL to its store, and to the pattern below it: the rules of local paths, for every protocol.

A part that exists as it is written is taken as it is, whatever letters it has; the rest is a pattern. A link
(``https://``) is one file. The packages of a protocol are imported when a source asks for it.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from ...errors import SourceError
from ..pattern import EVERYTHING, Pattern
from ..retry import with_retries
from .clients import AzClient, Client, Entry, FsspecClient, GsClient, LinkClient, S3Client
from .faults import in_words
from .remote import RemoteStore
from .settings import StorageSettings
from .url import LINKS, SEPARATOR, UrlPath, plain, scheme_of

CLIENTS: dict[str, tuple[type[FsspecClient], str]] = {
    "s3": (S3Client, "s3fs"),
    "s3a": (S3Client, "s3fs"),
    "gs": (GsClient, "gcsfs"),
    "gcs": (GsClient, "gcsfs"),
    "az": (AzClient, "adlfs"),
    "abfs": (AzClient, "adlfs"),
    "abfss": (AzClient, "adlfs"),
    "http": (LinkClient, "fsspec[http]"),
    "https": (LinkClient, "fsspec[http]"),
}
"""Protocols with a client of their own, and the package that each needs; fsspec's other ones are read too."""


def open_url(source: str, url: str, storage: StorageSettings) -> tuple[RemoteStore, Pattern | str]:
    """The store of ``url`` and the pattern below its root; for a single file its name. Raises ``SourceError``."""
    scheme = scheme_of(url)
    if scheme in LINKS:
        return _link(source, url, client_of(source, url, storage.options(scheme)))
    parts = [part for part in url.partition(SEPARATOR)[2].split("/") if part]
    _refuse(source, url, parts)
    client = client_of(source, url, storage.options(scheme))
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
        raise SourceError(f"source {source!r}: there is {where}. Look for a misspelt name.")
    if here.is_folder:
        return _store(client, scheme, names), Pattern(tuple(below) or EVERYTHING)
    if below or url.endswith("/"):
        raise SourceError(f"source {source!r}: {_url(scheme, names)!r} is a file, and {url!r} takes it for a folder.")
    return _store(client, scheme, names[:-1]), names[-1]


def client_of(source: str, url: str, options: Mapping[str, Any]) -> Client:
    """The client of a protocol. Raises ``SourceError`` if its package is missing, or nobody knows the protocol."""
    scheme = scheme_of(url)
    of, package = CLIENTS.get(scheme, (FsspecClient, "fsspec"))
    try:
        return of(url, options)
    except ImportError as error:
        raise SourceError(
            f"source {source!r}: {scheme}{SEPARATOR} is read through the package {package}, which is not installed "
            f"({error}); pip install '{package}'."
        ) from None
    except ValueError as error:
        raise SourceError(f"source {source!r}: {scheme}{SEPARATOR} cannot be read: {error}.") from None


def _refuse(source: str, url: str, parts: list[str]) -> None:
    """Refuse what fsspec would read in another way than it looks."""
    if "::" in url:
        raise SourceError(
            f"source {source!r}: {url!r} chains two protocols, which is not read; name the files' own URL."
        )
    if url.startswith("file:"):
        raise SourceError(f"source {source!r}: write {url!r} without file://, as a path of this machine.")
    if not parts:
        raise SourceError(f"source {source!r}: {url!r} names no bucket or folder.")
    if ".." in parts or "." in parts:
        raise SourceError(f"source {source!r}: {url!r} has '.' or '..' for a folder; write it without.")
    if ":" in parts[0].partition("@")[0] and "@" in parts[0]:
        raise SourceError(
            f"source {source!r}: {url!r} has a user and a password in it. Give them to the protocol's client instead, "
            "as docs/storage.md says, and leave them out of the path."
        )


def _url(scheme: str, names: list[str]) -> str:
    return f"{scheme}{SEPARATOR}{'/'.join(names)}"


def _store(client: Client, scheme: str, names: list[str]) -> RemoteStore:
    url = _url(scheme, names)
    return RemoteStore(UrlPath(url), client, client.place(url))


def _at(client: Client, scheme: str, names: list[str]) -> Entry | None:
    """What lies there; None if nothing does."""
    url = _url(scheme, names)

    def look() -> Entry | None:
        try:
            return client.look(client.place(url))
        except FileNotFoundError:
            return None
        except Exception as error:  # the libraries have no class in common
            told = in_words(error, url, scheme)
        raise told

    return with_retries(look, url, "what it is")


def _link(source: str, url: str, client: Client) -> tuple[RemoteStore, str]:
    """A link is one file; its query is part of the request and of nothing else."""
    path, query = urlsplit(url).path, url.partition("?")
    folder, _, name = plain(url).rpartition("/")
    if not path.rpartition("/")[2] or glob.has_magic(path):
        raise SourceError(
            f"source {source!r}: {url!r} is no link to one file, and a web server cannot list a folder. Give each file "
            "as a source, or read the same data by s3://, gs://, az:// or hf://."
        )
    return RemoteStore(UrlPath(folder), client, query[0].rpartition("/")[0], f"{query[1]}{query[2]}"), name
