"""What a user says of one source: where it lies, how its files are read, and what of a record is trained on.

What decides the records of a source is compared by a checkpoint where it is not at its default; its field, weight and
the format that was found stand there always, and its path never: only content matters.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from ..settings import setting


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SourceConfig:
    """One named source: ``[zephon.sources.NAME]``."""

    path: str = setting("", "File, folder or glob; relative to the TOML file.", in_identity=False)
    weight: float = setting(
        1.0,
        "Share of tokens, relative to the other weights; above 0. Give one to every source, or to none.",
        in_identity=False,
    )
    field: str = setting("text", "Name of the record's text field (JSONL) or column (Parquet).", in_identity=False)
    format: str = setting(
        "",
        "Format of the files, where their endings do not say it (`docs/files.md`). A folder then gives the files with "
        "endings of this format, a glob or a file all that it names.",
        in_identity=False,
    )
    record: Literal["line", "file"] = setting(
        "line", "Plain text: what one record is, a line or a whole file.", in_identity="unless_default"
    )
    dtype: Literal["", "uint8", "uint16", "uint32", "uint64", "int16", "int32", "int64"] = setting(
        "", "Raw token files: type of the ids, such as `uint16`.", in_identity="unless_default"
    )
    document_end: int | None = setting(
        None,
        "Token files of one long row: the id that ends a document. Without it one ends every 4,096 tokens.",
        low=0,
        in_identity="unless_default",
    )
