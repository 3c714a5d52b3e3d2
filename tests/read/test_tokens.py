"""Token files: every document once, whatever the kind of file, its type and where it is cut."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.scenarios import says, small_pipeline, tokenizer_folder, write_parquet
from torchtitan_zephon import ConfigError, Dataset, Pipeline, SourceError, StaticMixtureWorkSource
from torchtitan_zephon.plan.chunking import Chunk
from torchtitan_zephon.read import tokens
from torchtitan_zephon.read.settings import SourceConfig
from torchtitan_zephon.read.source import Source, open_source

IDS = frozenset({"text"})
END = 1


def documents_of(count: int) -> list[list[int]]:
    """``count`` documents of 0 to 400 ids, each with ``END`` behind it; some are that alone."""
    return [[*((7 * n + k) % 380 + 2 for k in range(n * n * 31 % 400)), END] for n in range(count)]


def write_raw(path: Path, documents: list[list[int]], dtype: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.array([i for d in documents for i in d], dtype).tofile(path)
    return path


def write_llm_c(path: Path, documents: list[list[int]], magic: int = 20240520, dtype: str = "uint16") -> Path:
    """As ``write_datafile`` of llm.c's ``dev/data/data_common.py`` does."""
    ids = np.array([i for d in documents for i in d], dtype)
    header = np.zeros(256, np.int32)
    header[:3] = magic, 1, len(ids)
    path.write_bytes(header.tobytes() + ids.tobytes())
    return path


def opened(path: Path, **settings: Any) -> Source:
    return open_source("s", SourceConfig(path=str(path), **settings))


def read_all(source: Source, chunk_bytes: int, field: str = "text") -> list[list[int]]:
    """All documents of one epoch, in file order, chunk by chunk."""
    found = []
    for piece, size in enumerate(source.reader.pieces().units.tolist()):
        for start in range(0, size, chunk_bytes):
            chunk = Chunk(0, 0, 0, piece, start, min(size, start + chunk_bytes), 1)
            documents, bad = source.read(chunk, frozenset({field}))
            assert not bad
            found += [
                documents.ids[a:b].tolist() for a, b in zip(documents.offsets, documents.offsets[1:], strict=False)
            ]
    return found


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int32", "int64", "uint64"])
@pytest.mark.parametrize("chunk_bytes", [2, 7, 256, 4096, 10**7])
def test_a_long_row_is_cut_behind_each_end(dtype: str, chunk_bytes: int, tmp_path: Path) -> None:
    documents = documents_of(40 if chunk_bytes < 100 else 300)
    write_raw(tmp_path / "train.bin", documents, dtype)
    source = opened(tmp_path, format="tokens", dtype=dtype, document_end=END)
    assert read_all(source, chunk_bytes) == documents


@pytest.mark.parametrize("kind", ["npy", "llm.c", "llm.c of Llama 3"])
def test_headers_are_no_ids_and_say_the_type(kind: str, tmp_path: Path) -> None:
    documents = documents_of(200)
    if kind == "npy":
        np.save(tmp_path / "a.npy", np.array([i for d in documents for i in d], ">i4"))
        source = opened(tmp_path, document_end=END)
    else:
        given = (20240801, "uint32") if "Llama" in kind else (20240520, "uint16")
        write_llm_c(tmp_path / "a.bin", documents, *given)
        source = opened(tmp_path / "*.bin", format="tokens", document_end=END)
    for chunk_bytes in (64, 1000, 10**6):
        assert read_all(source, chunk_bytes) == documents


def test_a_last_document_without_an_end_is_one_too(tmp_path: Path) -> None:
    documents = [*documents_of(9), [5, 6, 7]]
    write_raw(tmp_path / "a.bin", documents, "uint16")
    source = opened(tmp_path, format="tokens", dtype="uint16", document_end=END)
    assert read_all(source, 50) == documents


def test_rows_of_two_dimensions_are_a_document_each(tmp_path: Path) -> None:
    rows = np.arange(60 * 33, dtype=np.uint16).reshape(60, 33)
    np.save(tmp_path / "a.npy", rows)
    for chunk_bytes in (10, 66, 500, 10**6):
        assert read_all(opened(tmp_path), chunk_bytes) == rows.tolist()
        assert read_all(opened(tmp_path, document_end=3), chunk_bytes) == rows.tolist()


def test_without_an_end_a_long_row_is_cut_every_so_many_ids(tmp_path: Path) -> None:
    ids = list(range(10_000))
    write_raw(tmp_path / "a.bin", [ids], "uint32")
    found = read_all(opened(tmp_path, format="tokens", dtype="uint32"), 3000)
    assert found == [ids[:4096], ids[4096:8192], ids[8192:]]


def test_a_place_in_the_source_stands_for_the_document_that_holds_it(tmp_path: Path) -> None:
    documents = documents_of(100)
    path = write_raw(tmp_path / "a.bin", documents, "uint16")
    source = opened(path, format="tokens", dtype="uint16", document_end=END)
    begins = np.cumsum([0, *map(len, documents)]) * 2
    for unit in range(0, path.stat().st_size, 997):
        start, stop = source.around(0, unit, 300)
        assert start == begins[begins <= unit][-1] and stop in begins and (stop - start >= 300 or stop == begins[-1])
    borders = np.array([0, 1, 77, 78, 5000, path.stat().st_size])
    firsts = np.array([begins[begins >= border][0] for border in borders])
    assert source.weigh(0, borders).tolist() == np.diff(firsts).tolist()


def test_empty_files_and_files_of_no_rows_are_passed_over(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((0, 5), np.int32))
    np.save(tmp_path / "b.npy", np.ones((3, 5), np.int32))
    np.save(tmp_path / "c.npy", np.zeros((4, 0), np.int32))
    assert read_all(opened(tmp_path), 50) == [[1] * 5] * 3


def test_a_users_function_sees_an_array_of_ids(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(2, 302, dtype=np.uint16).reshape(100, 3))
    pipeline = small_pipeline({"a": tmp_path}, repeat=False).map(
        lambda r: {"text": r["text"][1:]}, identity="all but the first"
    )
    stream = pipeline.stream
    assert {int(batch.input[0, 0]) for batch in stream}
    assert stream.balance.read.documents == 100


@pytest.mark.parametrize(
    ("data", "name", "settings", "parts"),
    [
        (b"\1\2\3", "a.bin", {"format": "tokens", "dtype": "uint16"}, ["no multiple of the 2", "was cut"]),
        (b"\1\2\3\4", "a.bin", {"format": "tokens"}, ["nothing in it says their type", 'dtype = "uint16"']),
        (b"\1\2\3\4", "a.bin", {}, ['format = "tokens"', "its ending does not say"]),
        (
            b"PAR1....",
            "a.bin",
            {"format": "tokens", "dtype": "uint16"},
            ["as Parquet does", "not of the format token files"],
        ),
        (b"\x93NUMPY\1\0", "a.npy", {}, ["no readable .npy file"]),
        (b"NUMPY\1\0....", "a.npy", {}, ["a.npy", "begins with b'NUMPY"]),
        (struct.pack("<iii", 20240520, 1, 9) + bytes(1012), "a.bin", {"format": "tokens"}, ["9 ids", "1,042", "1,024"]),
        (
            struct.pack("<iii", 20240520, 1, 2) + bytes(1012) + b"\1\0\2\0",
            "a.bin",
            {"format": "tokens", "dtype": "int32"},
            ["header of llm.c", "are uint16", "Leave dtype out"],
        ),
    ],
)
def test_what_is_no_token_file_is_refused_with_the_way_out(
    data: bytes, name: str, settings: dict[str, Any], parts: list[str], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError) as error:
        opened(tmp_path, **settings)
    says(error, "source 's'" if "found only" in str(error.value) else name, *parts)


@pytest.mark.parametrize(
    "array",
    [np.zeros((2, 2, 2), np.int32), np.ones(5), np.array([{}]), np.asfortranarray(np.ones((3, 2), np.int32))],
    ids=["3-D", "float", "objects", "Fortran"],
)
def test_arrays_that_are_no_rows_of_ids_are_refused(array: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(SourceError, match=r"a\.npy' holds .* token ids are integers in one dimension"):
        opened(tmp_path)


def test_a_npy_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(100, dtype=np.uint16))
    whole = (tmp_path / "a.npy").read_bytes()
    for stop in (1, 7, 40, 127, 128, 129, len(whole) - 1):
        (tmp_path / "a.npy").write_bytes(whole[:stop])
        with pytest.raises(SourceError, match=r"a\.npy"):
            opened(tmp_path)


def test_an_end_that_never_comes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "LONGEST_DOCUMENT_BYTES", 1000)
    write_raw(tmp_path / "a.bin", [[5] * 20_000], "uint16")
    source = opened(tmp_path, format="tokens", dtype="uint16", document_end=END)
    with pytest.raises(SourceError, match=r"no id 1 among .* Is document_end right"):
        source.read(Chunk(0, 0, 0, 0, 0, 100, 1), IDS)
    with pytest.raises(SourceError, match="no id 1 among"):
        source.around(0, 30_000, 10)


def test_a_file_that_was_cut_while_the_job_runs_is_an_error(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "a.bin", documents_of(50), "uint16")
    source = opened(path, format="tokens", dtype="uint16", document_end=END)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size // 2])
    with pytest.raises(SourceError, match=r"a\.bin' ends at byte .* changed while the job runs"):
        source.read(Chunk(0, 0, 0, 0, 0, size, 1), IDS)


def test_ids_of_a_type_that_cannot_hold_the_vocabulary_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(range(200)) * 40)
    data = Dataset.from_path("s", str(tmp_path), format="tokens", dtype="uint8")
    pipeline = (
        Pipeline(StaticMixtureWorkSource(datasets=[data], mixture={"s": 1.0}))
        .tokenize(tokenizer_id=str(tokenizer_folder()))
        .pack_flat(max_length=32)
        .batch(microbatch_size=1)
    )
    with pytest.raises(SourceError) as error:
        pipeline.explain()
    says(error, "source 's'", "ends at 255", "end at 383", "uint32")


def test_settings_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    write_raw(tmp_path / "a.bin", documents_of(9), "uint16")
    with pytest.raises(SourceError, match=r"document_end = 70,000 is above 65,535"):
        opened(tmp_path, format="tokens", dtype="uint16", document_end=70_000)
    write_parquet(tmp_path / "b" / "b.parquet", ["one"])
    with pytest.raises(SourceError, match=r"dtype = 'uint16' is a setting of the format mds and tokens, .* parquet"):
        opened(tmp_path / "b", dtype="uint16")


def test_a_wrong_setting_of_a_dataset_is_told() -> None:
    data = Dataset.from_path("s", "x.bin", dtype="uint17")
    with pytest.raises(ConfigError, match=r"dataset 's'\.dtype = 'uint17': not one of"):
        StaticMixtureWorkSource(datasets=[data], mixture={"s": 1.0}).recipe()
