"""The corpus that the benchmarks read: a folder with one folder of JSONL for each source."""

from __future__ import annotations

from pathlib import Path

from torchtitan_zephon import Dataset, StaticMixtureWorkSource


def source_of(corpus: Path) -> StaticMixtureWorkSource:
    """All sources of ``corpus`` at equal weights."""
    folders = sorted(p for p in corpus.iterdir() if p.is_dir())
    return StaticMixtureWorkSource(
        datasets=[Dataset.from_path(f.name, str(f)) for f in folders], mixture={f.name: 1.0 for f in folders}, seed=1
    )
