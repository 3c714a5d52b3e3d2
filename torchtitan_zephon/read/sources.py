"""Open a source: pick the reader of its format."""

from __future__ import annotations

from collections.abc import Callable

from .files import Manifest, list_source
from .jsonl import JsonlReader
from .parquet import ParquetReader
from .records import Reader, Source

_READERS: dict[str, Callable[[Manifest, str], Reader]] = {"jsonl": JsonlReader, "parquet": ParquetReader}


def open_source(name: str, path: str, field: str) -> Source:
    """List, fingerprint and open the source ``name``. Raises ``SourceError``."""
    manifest = list_source(name, path)
    reader: Reader = _READERS[manifest.format](manifest, field)
    return Source(name, field, reader)
