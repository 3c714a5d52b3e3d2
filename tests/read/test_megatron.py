"""Megatron's files: every document once, as its own writer wrote it, and pairs that do not belong together refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.read.fixtures.make import SENTENCES
from tests.read.test_tokens import documents_of, read_all
from tests.scenarios import says
from torchtitan_zephon import SourceError
from torchtitan_zephon.read import megatron_index
from torchtitan_zephon.read.settings import SourceConfig
from torchtitan_zephon.read.source import Source, open_source

WRITTEN = Path(__file__).parent / "fixtures" / "megatron"
DOCUMENTS = [[i for sentence in sentences for i in sentence] for sentences in SENTENCES]
CODES = {"uint8": 1, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def write_megatron(path: Path, documents: list[list[list[int]]], dtype: str) -> Path:
    """``path`` and the index beside it, as ``IndexedDatasetBuilder`` of megatron.core writes documents of sentences."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sentences = [np.array(sentence, dtype) for document in documents for sentence in document]
    path.write_bytes(b"".join(sentence.tobytes() for sentence in sentences))
    ends = np.cumsum([0, *(sentence.nbytes for sentence in sentences)])
    index = b"MMIDIDX\x00\x00" + np.uint64(1).tobytes() + bytes([CODES[dtype]])
    index += np.array([len(sentences), len(documents) + 1], "<u8").tobytes()
    index += np.array([len(sentence) for sentence in sentences], "<i4").tobytes() + ends[:-1].astype("<i8").tobytes()
    index += np.cumsum([0, *map(len, documents)]).astype("<i8").tobytes()
    path.with_suffix(".idx").write_bytes(index)
    return path


def opened(path: Path) -> Source:
    return open_source("s", SourceConfig(path=str(path), format="megatron"))


@pytest.mark.parametrize(("name", "dtype"), [("small", "uint16"), ("large", "int32")])
def test_the_tests_write_what_megatron_writes(name: str, dtype: str, tmp_path: Path) -> None:
    path = write_megatron(tmp_path / f"{name}.bin", SENTENCES, dtype)
    for suffix in (".bin", ".idx"):
        assert path.with_suffix(suffix).read_bytes() == (WRITTEN / f"{name}{suffix}").read_bytes()


def test_what_megatron_writes_is_read_document_by_document() -> None:
    for chunk_bytes in (2, 8, 100, 10**6):
        assert read_all(opened(WRITTEN), chunk_bytes) == DOCUMENTS * 2  # large.bin, then small.bin
        assert read_all(opened(WRITTEN / "small.bin"), chunk_bytes) == DOCUMENTS


@pytest.mark.parametrize("dtype", ["uint16", "int32", "int64"])
@pytest.mark.parametrize("chunk_bytes", [100, 4096, 10**7])
def test_every_document_is_read_once(
    dtype: str, chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(megatron_index, "_BLOCK_NUMBERS", 7)
    monkeypatch.setattr(megatron_index, "_MOST_BLOCKS", 3)
    documents = [[], *documents_of(200), [], []]  # empty ones have no byte of their own
    write_megatron(tmp_path / "a.bin", [[d[:9], d[9:]] if len(d) > 9 else [d] for d in documents], dtype)
    assert read_all(opened(tmp_path), chunk_bytes) == documents


def _cut(name: str, num_bytes: int) -> Any:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:num_bytes])

    return damage


def _other_index(folder: Path) -> None:
    write_megatron(folder / "other.bin", SENTENCES[:3], "uint16")
    shutil.move(folder / "other.idx", folder / "a.idx")
    (folder / "other.bin").unlink()


def _changed(at: int, byte: int) -> Any:
    def damage(folder: Path) -> None:
        data = bytearray((folder / "a.idx").read_bytes())
        data[at] = byte
        (folder / "a.idx").write_bytes(data)

    return damage


@pytest.mark.parametrize(
    ("damage", "parts"),
    [
        (lambda folder: (folder / "a.idx").unlink(), ["a.bin", "without", "a.idx", 'format = "tokens"']),
        (lambda folder: shutil.copy(folder / "a.idx", folder / "b.idx"), ["b.idx", "without its .bin"]),
        (_cut("a.idx", 20), ["a.idx", "an index of Megatron"]),
        (_cut("a.idx", 100), ["a.idx", "100 bytes", "it was cut"]),
        (_cut("a.idx", 0), ["a.idx", "an index of Megatron"]),
        (_cut("a.bin", 60), ["a.bin", "60 bytes", "not its own"]),
        (_other_index, ["a.bin", "not its own", "copy both anew"]),
        (_changed(0, 65), ["a.idx", "an index of Megatron"]),
        (_changed(17, 7), ["a.idx", "float32", "token ids are integers"]),
        (_changed(17, 99), ["a.idx", "type 99", "token ids are integers"]),
        (_changed(17, 4), ["a.bin", "not its own"]),
    ],
)
def test_files_that_do_not_belong_together_are_refused(damage: Any, parts: list[str], tmp_path: Path) -> None:
    write_megatron(tmp_path / "a.bin", SENTENCES, "uint16")
    damage(tmp_path)
    with pytest.raises(SourceError) as error:
        opened(tmp_path)
    says(error, *parts)


def test_an_index_whose_documents_are_in_no_order_is_told_when_they_are_read(tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "a.bin", SENTENCES, "uint16")
    data = bytearray(path.with_suffix(".idx").read_bytes())
    data[-24:-16] = np.int64(-3).tobytes()
    path.with_suffix(".idx").write_bytes(data)
    with pytest.raises(SourceError, match=r"a\.bin' has 126 bytes, and the \.idx beside it is not its own"):
        read_all(opened(tmp_path), 10**5)


def test_bin_files_are_read_where_the_format_is_stated_only() -> None:
    with pytest.raises(SourceError, match=r'A \.bin file is read with format = "megatron" or format = "tokens"'):
        open_source("s", SourceConfig(path=str(WRITTEN)))
