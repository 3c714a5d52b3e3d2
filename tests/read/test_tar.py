"""Archives of samples, as WebDataset writes them."""

from __future__ import annotations

import gzip
import io
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest
import webdataset

from tests.sequential import records_of
from torchtitan_zephon import SourceConfig, SourceError
from torchtitan_zephon.plan.chunking import Chunk
from torchtitan_zephon.read.source import open_source

WHOLE = Chunk(0, 0, 0, 0, 0, 10**7, 10**7)


def write_tar(path: Path, seed: int) -> list[dict[str, Any]]:
    """Random samples at ``path``, written by ``webdataset``."""
    rng, samples = random.Random(seed), []
    with webdataset.TarWriter(str(path)) as writer:
        for i in range(rng.randrange(1, 60)):
            key = "dir/" * rng.randrange(3) + "k" * rng.choice([1, 200]) + f"é{i}"
            sample: dict[str, Any] = {"__key__": key, "txt": "ü " * rng.randrange(900), "json": {"a": i, "t": ["x"]}}
            if rng.random() < 0.5:
                sample["seg.png"] = rng.randbytes(rng.randrange(2000))
            writer.write(sample)
            samples.append(sample)
    return samples


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("slice_bytes", [64, 3000, 100_000])
def test_what_webdataset_wrote_is_read_in_slices_of_any_size(tmp_path: Path, seed: int, slice_bytes: int) -> None:
    path = tmp_path / "a.tar"
    samples = write_tar(path, seed)
    if seed % 2:
        packed = tmp_path / ("b.tgz" if seed == 1 else "b.tar.gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path = packed
    slices, bad = records_of(path, slice_bytes)
    assert ([record for part in slices for record in part], bad) == (samples, [])


def archive(*files: tuple[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    """An archive of these names and contents; a name that ends in ``/`` is a folder."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_folders_and_names_without_a_dot_are_no_samples(tmp_path: Path, form: int) -> None:
    long = "deep/" * 18
    (tmp_path / "a.tar").write_bytes(
        archive(("x/", b""), ("x/1.txt", b"one"), ("x/README", b"no"), ("x/.hidden.txt", b"no"), ("x/1.JSON", b"{}"),
                (f"{long}2.txt", b"two"), ("last/", b""), form=form)
    )  # fmt: skip
    slices, bad = records_of(tmp_path / "a.tar", 700)
    assert [r for part in slices for r in part] == [
        {"__key__": "x/1", "txt": "one", "json": {}},
        {"__key__": f"{long}2", "txt": "two"},
    ]
    assert not bad


def test_bad_samples_are_told_with_their_places_and_the_others_read(tmp_path: Path) -> None:
    files = [("0.txt", b"good"), ("1.txt", b"\xff"), ("2.json", b"{no"), ("3.txt", b"twice"), ("3.txt", b"twice"),
             ("4.txt", b"z" * 5000), ("5.txt", b"good")]  # fmt: skip
    (tmp_path / "a.tar").write_bytes(archive(*files))
    for slice_bytes in (100, 10**6):
        slices, bad = records_of(tmp_path / "a.tar", slice_bytes, max_record_bytes=4000)
        assert [r["__key__"] for part in slices for r in part] == ["0", "5"]
        told = [(b.kind, b.place, b.problem) for b in sorted(bad, key=lambda b: b.place)]
        assert [t[:2] for t in told] == [("column", 1024), ("column", 2048), ("column", 3072), ("size", 5120)]
        assert "has two files 'txt'" in told[2][2]


def test_a_sample_in_two_places_is_two_samples_and_the_half_without_the_field_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(archive(("1.txt", b"one"), ("2.txt", b"two"), ("1.json", b"{}")))
    slices, _ = records_of(tmp_path / "a.tar", 10**6)
    assert slices[0] == [{"__key__": "1", "txt": "one"}, {"__key__": "2", "txt": "two"}, {"__key__": "1", "json": {}}]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda data: data[:2000], "is cut: it ends at byte 2,000"),
        (lambda data: data[:3072], "without the archive's end mark"),
        (lambda data: data[:1024] + b"x" * 512 + data[1536:], "no header of an entry at byte 1,024"),
        (lambda data: data + data, "from byte 10,240 on, there are other bytes"),
    ],
    ids=["in an entry", "behind one", "header", "joined"],
)
def test_an_archive_that_is_not_whole_is_an_error(tmp_path: Path, damage: Any, problem: str) -> None:
    data = archive(("1.txt", b"one"), ("2.txt", b"two"), ("3.txt", b"three"))
    (tmp_path / "a.tar").write_bytes(damage(data))
    with pytest.raises(SourceError, match=problem):
        open_source("s", SourceConfig(path=str(tmp_path))).read(WHOLE, None)
