"""A URL as a source's path: where it is split, and how it is shown.

A root is a ``UrlPath``, so that everything which joins, compares and shows roots treats it like a folder of this
machine. It never holds a user, a password or the query of a link: a client gets the URL as it was written.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from urllib.parse import urlsplit

SEPARATOR = "://"
LINKS = ("http", "https")
"""Protocols of links, which may have a query and a user."""


class UrlPath(PurePosixPath):
    """``scheme://rest``, joined like a path."""

    def __str__(self) -> str:
        return super().__str__().replace(":/", SEPARATOR, 1)


def is_url(path: str) -> bool:
    """Whether ``path`` says where it lies by a protocol."""
    return SEPARATOR in path


def scheme_of(url: str) -> str:
    """The protocol, in lower case."""
    return url.partition(SEPARATOR)[0].lower()


def plain(link: str) -> str:
    """A link without its user, password, query and fragment."""
    parts = urlsplit(link)
    return f"{parts.scheme}{SEPARATOR}{parts.netloc.rpartition('@')[2]}{parts.path}"
