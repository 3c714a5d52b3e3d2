"""What a user says of one source: where it lies, how its files are read, and what of a record is trained on."""

from __future__ import annotations

import dataclasses
from typing import Literal

from ..errors import ConfigError
from ..settings import setting
from ..text_of import TextOf, text_of


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FormatSettings:
    """How the files of a source are read, where the files do not say it."""

    format: str = setting(
        "",
        "Format of the files, where their endings do not say it (`docs/files.md`). A folder then gives the files with "
        "endings of this format, a glob or a file all that it names.",
        in_identity=False,
    )
    record: Literal["line", "file"] = setting(
        "line", "Of plain text: what one record is, a line or a whole file.", in_identity="unless_default"
    )
    dtype: Literal["", "uint8", "uint16", "uint32", "uint64", "int16", "int32", "int64"] = setting(
        "",
        "Of raw token files, and of bytes in MDS: type of the ids, such as `uint16`.",
        in_identity="unless_default",
    )
    document_end: int | None = setting(
        None,
        "Of token files that are one long row: the id that ends a document. Without it one ends every 4,096 ids.",
        low=0,
        in_identity="unless_default",
    )
    delimiter: str = setting(
        "",
        "Of CSV: what stands between fields. Empty: a tab in `.tsv` files, else a comma.",
        in_identity="unless_default",
    )


HEEDED = {
    "record": ("text",),
    "dtype": ("mds", "tokens"),
    "document_end": ("tokens",),
    "delimiter": ("csv",),
}
"""The formats that heed each of these settings."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SourceConfig(FormatSettings):
    """One named source: ``[zephon.sources.NAME]``."""

    path: str = setting("", "File, folder or glob; relative to the TOML file.", in_identity=False)
    weight: float = setting(
        1.0,
        "Share of tokens, relative to the other weights; above 0. Give one to every source, or to none.",
        in_identity=False,
    )
    field: str | list[str] = setting(
        "text",
        "Field (JSONL) or column (Parquet) of the text: a name, a path such as `meta.text`, or a list of them, which "
        "are joined by a blank line; of a list, fields that are null or empty are left out.",
    )
    template: str = setting(
        "",
        'In place of `field`: text with names of fields in braces, such as `"{title}\\n\\n{meta.text}"`. None of them '
        "may be null. A brace that is text is written `{{` or `}}`.",
        in_identity="unless_default",
    )

    split: str = setting(
        "",
        "Which files are read where several splits lie side by side: `train`, `validation`, `test`, or another word of "
        "their names or folders. Without it such a folder is refused.",
        in_identity=False,
    )

    def __post_init__(self) -> None:
        if self.template and self.field != "text":
            raise ConfigError(
                f"field = {self.field!r} and template = {self.template!r} both say what the text is; keep one."
            )
        text_of(self.field, self.template)

    @property
    def text(self) -> TextOf:
        """What of a record is trained on."""
        return text_of(self.field, self.template)
