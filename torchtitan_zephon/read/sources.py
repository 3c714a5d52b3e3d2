"""Open a source: pick the reader of its format."""

from __future__ import annotations

from ..errors import SourceError
from .files import Manifest, list_source
from .parquet import ParquetReader
from .source import Reader, Source


def open_source(name: str, path: str, field: str) -> Source:
    """List, fingerprint and open the source ``name``. Raises ``SourceError``."""
    manifest = list_source(name, path)
    reader: Reader = ParquetReader(manifest, field) if manifest.format == "parquet" else _jsonl(name, manifest, field)
    return Source(name, field, reader)


def _jsonl(name: str, manifest: Manifest, field: str) -> Reader:
    """Imported when asked for: Parquet is read on interpreters that `orjson` is not made for too."""
    try:
        from .jsonl import JsonlReader
    except ModuleNotFoundError as error:
        if error.name != "orjson":
            raise
        raise SourceError(
            f"source {name!r} is JSONL, which is parsed by the package orjson, and that is not installed; "
            "pip install orjson, or convert the source to Parquet."
        ) from None
    return JsonlReader(manifest, field)
