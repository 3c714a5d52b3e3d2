"""The content sample of each file, and files that hold something else than their names say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scenarios import write_jsonl
from torchtitan_zephon import SourceError
from torchtitan_zephon.read import sample
from torchtitan_zephon.read.files import list_source
from torchtitan_zephon.read.settings import SourceConfig

LFS = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
ANNEX = b"/annex/objects/SHA256E-s1048576--4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393.jsonl\n"


def refusal(path: Path | str) -> str:
    with pytest.raises(SourceError) as refused:
        list_source("wiki", SourceConfig(path=str(path)))
    return str(refused.value)


@pytest.mark.parametrize("at", [0, 100, 4999])
def test_the_sample_of_a_small_source_sees_one_changed_byte(at: int, tmp_path: Path) -> None:
    data = bytearray(b"x" * 5000)
    (tmp_path / "a.jsonl").write_bytes(data)
    write_jsonl(tmp_path / "b.jsonl", ["same"])
    before = list_source("s", SourceConfig(path=str(tmp_path))).shards
    data[at] = ord("y")
    (tmp_path / "a.jsonl").write_bytes(data)
    after = list_source("s", SourceConfig(path=str(tmp_path))).shards
    assert after[0].num_bytes == before[0].num_bytes
    assert after[0].sample != before[0].sample
    assert after[1] == before[1]


@pytest.mark.parametrize("at", [0, 9_999])
def test_the_sample_of_a_large_source_covers_the_ends_of_each_file(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "SAMPLE_BYTES", 4000)
    data = bytearray(b"x" * 10_000)
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(data)
    before = list_source("s", SourceConfig(path=str(tmp_path))).shards
    assert before[0].sample == before[1].sample
    data[at] = ord("y")
    (tmp_path / "b.jsonl").write_bytes(data)
    after = list_source("s", SourceConfig(path=str(tmp_path))).shards
    assert after[0] == before[0]
    assert after[1].sample != before[1].sample


def test_of_very_many_files_some_are_sampled_and_all_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "MOST_SAMPLED_SHARDS", 4)
    for n in range(10):
        write_jsonl(tmp_path / f"{n}.jsonl", [str(n)])
    shards = list_source("s", SourceConfig(path=str(tmp_path))).shards
    assert len(shards) == 10
    assert [n for n, shard in enumerate(shards) if shard.sample] == [0, 3, 6, 9]


@pytest.mark.parametrize(
    ("content", "way"), [(LFS, "git lfs pull"), (LFS.replace(b"\n", b"\r\n"), "git lfs pull"), (ANNEX, "git annex get")]
)
@pytest.mark.parametrize("name", ["b.jsonl", "b.parquet"])
def test_a_pointer_in_place_of_a_file_is_refused_with_the_command_that_brings_the_file(
    content: bytes, way: str, name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    text = refusal(tmp_path)
    assert text.startswith(f"source 'wiki': {str(tmp_path / name)!r} is a pointer of ")
    assert way in text


def test_every_pointer_is_found_where_only_some_files_are_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "MOST_SAMPLED_SHARDS", 2)
    for n in range(8):
        write_jsonl(tmp_path / f"{n}.jsonl", ["x"])
    (tmp_path / "5.jsonl").write_bytes(LFS)
    assert "5.jsonl' is a pointer of Git LFS" in refusal(tmp_path)


def test_text_that_speaks_of_pointers_is_read(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [LFS.decode(), ANNEX.decode()])
    assert len(list_source("s", SourceConfig(path=str(tmp_path))).shards) == 1


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b"\n  "])
@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_a_json_array_is_refused_with_the_command_that_makes_lines_of_it(
    name: str, before: bytes, indent: int | None, tmp_path: Path
) -> None:
    array = json.dumps([{"text": "one"}, {"text": "two"}], indent=indent).encode()
    (tmp_path / name).write_bytes(before + array)
    text = refusal(tmp_path / name)
    assert f"{name}' begins with {(before + array)[:20]!r}: it is one JSON array" in text
    assert "jq -c '.[]'" in text


def test_a_parquet_file_is_not_taken_for_json(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"[no parquet, which its reader says")
    assert list_source("s", SourceConfig(path=str(tmp_path))).format == "parquet"
