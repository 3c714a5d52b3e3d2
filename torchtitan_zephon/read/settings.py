"""What a user says of one source: where it lies, how its files are read, and what of a record is trained on."""

from __future__ import annotations

import dataclasses

from ..settings import setting


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SourceConfig:
    """One named source: ``[zephon.sources.NAME]``."""

    path: str = setting("", "File, folder or glob of JSONL or Parquet; relative to the TOML file.")
    weight: float = setting(
        1.0, "Share of tokens, relative to the other weights; above 0. Give one to every source, or to none."
    )
    delimiter: str = setting("", "Of CSV: what stands between fields. Empty: a tab in `.tsv` files, else a comma.")
    field: str = setting("text", "Name of the record's text field (JSONL) or column (Parquet).")
    split: str = setting(
        "",
        "Which files are read where several splits lie side by side: `train`, `validation`, `test`, or another word of "
        "their names or folders. Without it such a folder is refused.",
    )
