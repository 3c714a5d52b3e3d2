"""CSV: records whose fields hold quotes, delimiters and line ends, in slices of any size."""

from __future__ import annotations

import csv
import gzip
import io
import random
from pathlib import Path

import pytest

from tests.sequential import records_of
from torchtitan_zephon import SourceConfig, SourceError
from torchtitan_zephon.plan.chunking import Chunk
from torchtitan_zephon.read.source import open_source

PARTS = ["a", "b,", '"q"', "\n", "\r\n", "ünï", "", "x" * 50, "12", "NaN", " ", '"', "\t"]
WHOLE = Chunk(0, 0, 0, 0, 0, 10**6, 10**6)


def written(rng: random.Random, **dialect: str) -> tuple[list[dict[str, str]], bytes]:
    """Random records, and the file that Python's ``csv`` makes of them."""
    names = ["id", "te xt", 'we"ird']
    rows = [
        [str(i), *("".join(rng.choices(PARTS, k=rng.randrange(12))) for _ in range(2))]
        for i in range(rng.randrange(150))
    ]
    out = io.StringIO(newline="")
    quoting = rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    csv.writer(out, lineterminator=rng.choice(["\n", "\r\n"]), quoting=quoting, **dialect).writerows([names, *rows])
    data = b"\xef\xbb\xbf" * rng.randrange(2) + out.getvalue().encode()
    data = data.rstrip(b"\r\n") if rng.random() < 0.3 else data + b"\n\n" * rng.randrange(2)
    return [dict(zip(names, row, strict=True)) for row in rows], data


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("slice_bytes", [64, 300, 100_000])
def test_what_csv_wrote_is_read_in_slices_of_any_size(tmp_path: Path, seed: int, slice_bytes: int) -> None:
    rng = random.Random(seed)
    tabs = seed % 3 == 0
    records, data = written(rng, **({"delimiter": "\t"} if tabs else {}))
    packed = rng.random() < 0.5
    path = tmp_path / f"a.{'tsv' if tabs else 'csv'}{'.gz' * packed}"
    path.write_bytes(gzip.compress(data) if packed else data)
    slices, bad = records_of(path, slice_bytes)
    assert ([record for part in slices for record in part], bad) == (records, [])


def test_only_wanted_columns_are_decoded_and_the_delimiter_is_the_users(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id;text\n1;one\n2;"t;wo"\n', "utf-8")
    source = open_source("s", SourceConfig(path=str(tmp_path / "a.csv"), delimiter=";"))
    documents, _ = source.read(WHOLE, frozenset({"text"}))
    assert documents.values == {"text": ["one", "t;wo"]}
    assert documents.origin[:, 2].tolist() == [8, 14]


def test_bad_records_are_told_with_their_places_and_the_others_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'id,text\n1,a\n2\n3,b,c\n4,\xff\xfe\n5,ok\n\n6,"long long long long"\n7,end\n')
    for slice_bytes in (5, 17, 1000):
        slices, bad = records_of(path, slice_bytes, max_record_bytes=18)
        assert [r["id"] for part in slices for r in part] == ["1", "5", "7"]
        assert [(b.kind, b.place) for b in sorted(bad, key=lambda b: b.place)] == [
            ("line", 12), ("line", 14), ("line", 20), ("size", 31),
        ]  # fmt: skip
    assert "the record has 1 fields, and the header 2" in bad[0].problem
    assert "not UTF-8" in bad[2].problem


def test_a_record_above_the_limit_is_never_held(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"id,text\n1,one\n2," + b"x" * 2**21 + b"\n3,three\n4," + b"y" * 2**20)
    for slice_bytes in (1000, 2**19, 2**30):
        slices, bad = records_of(path, slice_bytes, max_record_bytes=2**17)
        assert [r["id"] for part in slices for r in part] == ["1", "3"]
        assert [(b.kind, b.place) for b in bad] == [("size", 14), ("size", 14 + 2**21 + 3 + 8)]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b'id,text\n1,a"b\n2,c\n', "the quote at byte 11 stands inside a field that is not quoted"),
        (b'id,text\n1,"never\n2,c\n', "the quote at byte 10 is never closed"),
        (b"id,id\n1,2\n", "names two columns 'id'"),
        (b"\n1,2\n", "its first line, which names the columns, is empty"),
        ("id,text\n1,ä\n".encode("utf-16"), "not UTF-8"),
    ],
)
def test_a_file_whose_records_cannot_be_told_apart_is_refused(tmp_path: Path, data: bytes, problem: str) -> None:
    (tmp_path / "a.csv").write_bytes(data)
    with pytest.raises(SourceError, match=problem):
        open_source("s", SourceConfig(path=str(tmp_path))).read(WHOLE, None)
