"""Make the demo's texts and tokenizer again from two Debian packages.

What flows in: the packages named in ``data/PROVENANCE.md``, as downloaded. What flows out:
``data/books/*.jsonl`` (two novels, about 430 documents), ``data/docs/*.parquet`` (technical
documentation, a row a section, several row groups a file) and ``tokenizer/`` (byte-level BPE of
2,000 tokens trained on both). Everything is checked in, so the demo itself needs no network and
not this script. Takes about 5 seconds; needs pyarrow and tokenizers.

    apt-get download r-cran-janeaustenr=1.0.0-1 sqlite3-doc=3.40.1-2+deb12u2
    python demo/make_data.py --books r-cran-janeaustenr_*.deb --docs sqlite3-doc_*.deb
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import struct
import sys
import tarfile
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).resolve().parent
BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
VOCABULARY_TOKENS = 2000

BOOKS_SHA256 = "df6bddf211906d1ff404f8ff662c21b34e6660e7f54a311084e749050c019c95"
DOCS_SHA256 = "466e30d7066e2641fa13e56bc662a2ad521b8cc9c17dde9c9dac3d4f105e32f2"
NOVELS = {"Persuasion": "persuasion", "PRIDE AND PREJUDICE": "pride_and_prejudice"}
SHARDS_PER_NOVEL = 3
DOCUMENT_CHARS = (600, 4000, 1500, 9000, 300)
"""A document is whole paragraphs up to at least this length, in turn; a chapter's end ends it."""

PAGES = {
    "design.parquet": (
        "appfileformat atomiccommit backup fasterthanfs flextypegood floatingpoint howtocorrupt isolation "
        "lockingv3 malloc optoverview queryplanner queryplanner-ng security testing tempfiles "
        "whentouse whyc withoutrowid"
    ),
    "reference.parquet": (
        "cintro datatype3 eqp foreignkeys fts5 gencol json1 limits partialindex quirks rtree "
        "sessionintro stricttables uri vfs wal"
    ),
}
ROWS_PER_GROUP = 32
NOT_TEXT = {"script", "style", "svg", "form", "title", "select"}
BLOCKS = {"p", "div", "li", "tr", "table", "ul", "ol", "dl", "dt", "dd", "pre", "blockquote", "br", "center"}
HEADINGS = {"h1", "h2", "h3"}


def package_files(deb: Path, sha256: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file in a Debian package; exits if it is not the package named."""
    content = deb.read_bytes()
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        sys.exit(f"{deb.name}: not the package of data/PROVENANCE.md.\n  expected SHA-256 {sha256}\n  found    {found}")
    at = 8  # behind "!<arch>\n"; then 60-byte headers, each followed by its member, padded to even
    while at < len(content):
        name, size = content[at : at + 16].decode().strip(), int(content[at + 48 : at + 58])
        if name.startswith("data.tar"):
            with tarfile.open(fileobj=io.BytesIO(content[at + 60 : at + 60 + size])) as tar:
                for member in tar:
                    if member.isfile():
                        yield member.name, tar.extractfile(member).read()  # type: ignore[union-attr]
        at += 60 + size + size % 2


def novels(database: bytes) -> Iterator[list[str]]:
    """The lines of each novel in an R lazy-load database: objects of a length and a zlib stream."""
    while database:
        stream = zlib.decompressobj()
        yield r_strings(stream.decompress(database[4:]))
        database = stream.unused_data


def r_strings(serialized: bytes) -> list[str]:
    """A character vector in R's XDR serialisation, version 3: header, then flags, length, bytes each."""
    (encoding_bytes,) = struct.unpack_from(">I", serialized, 14)
    at = 18 + encoding_bytes
    _, count = struct.unpack_from(">II", serialized, at)
    at += 8
    lines = []
    for _ in range(count):
        _, size = struct.unpack_from(">II", serialized, at)
        lines.append(serialized[at + 8 : at + 8 + size].decode("utf-8"))
        at += 8 + size
    assert at == len(serialized)
    return lines


def chapters(lines: list[str]) -> list[list[str]]:
    """Paragraphs of each chapter, its heading first; front matter is left out, lines are joined."""
    found: list[list[str]] = []
    for paragraph in "\n".join(line.rstrip() for line in lines).split("\n\n"):
        text = re.sub(r"\s+", " ", paragraph).strip()
        if re.fullmatch(r"chapter \d+", text, re.IGNORECASE):
            found.append([])
        if found and text:
            found[-1].append(text)
    return found


def documents(paragraphs: list[str], sizes: Iterator[int]) -> Iterator[str]:
    """Group paragraphs into documents of at least the next of ``sizes`` characters."""
    group: list[str] = []
    wanted = next(sizes)
    for paragraph in paragraphs:
        group.append(paragraph)
        if sum(map(len, group)) >= wanted:
            yield "\n\n".join(group)
            group, wanted = [], next(sizes)
    if group:
        yield "\n\n".join(group)


def write_books(deb: Path, folder: Path) -> list[str]:
    """Write the JSONL shards and return their texts."""
    database = next(data for name, data in package_files(deb, BOOKS_SHA256) if name.endswith("data/Rdata.rdb"))
    folder.mkdir(parents=True, exist_ok=True)
    texts: list[str] = []
    for lines in novels(database):
        stem = NOVELS.get(lines[0])
        if stem is None:
            continue
        numbered = list(enumerate(chapters(lines), 1))
        sizes = cycle(DOCUMENT_CHARS)
        for shard in range(SHARDS_PER_NOVEL):
            part = numbered[len(numbered) * shard // SHARDS_PER_NOVEL : len(numbered) * (shard + 1) // SHARDS_PER_NOVEL]
            rows: list[dict[str, Any]] = [
                {"book": stem, "chapter": number, "text": text}
                for number, paragraphs in part
                for text in documents(paragraphs, sizes)
            ]
            with open(folder / f"{stem}-{shard}.jsonl", "w", encoding="utf-8", newline="\n") as file:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            texts += [row["text"] for row in rows]
    return texts


class Sections(HTMLParser):
    """Cuts a page at its headings. ``rows`` are (heading, text) from the first heading on."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.rows: list[tuple[str, str]] = []
        self._heading: str | None = None
        self._text = ""
        self._skip = self._pre = 0
        self._in_heading = False

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag in NOT_TEXT:
            self._skip += 1
        elif tag in HEADINGS:
            self.close_section()
            self._in_heading, self._heading = True, ""
        elif tag in BLOCKS:
            self._pre += tag == "pre"
            self._text += "\n- " if tag == "li" else "\n" if tag in ("br", "tr", "li", "dt", "dd") else "\n\n"
        elif tag in ("td", "th"):
            self._text += " "

    def handle_endtag(self, tag: str) -> None:
        if tag in NOT_TEXT:
            self._skip -= 1
        elif tag in HEADINGS:
            self._in_heading = False
        elif tag in BLOCKS:
            self._pre -= tag == "pre"
            self._text += "\n" if tag in ("tr", "li", "dt", "dd") else "\n\n"

    def handle_data(self, data: str) -> None:
        if self._skip or self._heading is None:
            return
        if self._in_heading:
            self._heading += data
        else:
            self._text += data if self._pre else re.sub(r"\s+", " ", data)

    def close_section(self) -> None:
        """Keep what was gathered since the last heading, without runs of blank lines."""
        text = re.sub(r"[ \t]+\n", "\n", re.sub(r"\n[ ](?=\S)", "\n", self._text.split("This page last modified")[0]))
        text = re.sub(r"\n{3,}", "\n\n", re.sub(r"(?m)^- +", "- ", text)).strip()
        if self._heading and text:
            self.rows.append((re.sub(r"\s+", " ", self._heading).strip(), text))
        self._text = ""


def sections(page: str) -> list[tuple[str, str]]:
    """(heading, text) of every section of an HTML page."""
    parser = Sections()
    parser.feed(page)
    parser.close()
    parser.close_section()
    return parser.rows


def write_docs(deb: Path, folder: Path) -> list[str]:
    """Write the Parquet files and return their texts."""
    pages = {
        Path(name).stem: data
        for name, data in package_files(deb, DOCS_SHA256)
        if name.endswith(".html") and Path(name).parent.name == "sqlite3"
    }
    folder.mkdir(parents=True, exist_ok=True)
    texts: list[str] = []
    for file, names in PAGES.items():
        rows = [
            {"page": name, "section": heading, "text": f"{heading}\n\n{text}"}
            for name in names.split()
            for heading, text in sections(pages[name].decode("utf-8", "replace"))
        ]
        pq.write_table(
            pa.Table.from_pylist(rows),
            folder / file,
            row_group_size=ROWS_PER_GROUP,
            compression="zstd",
            compression_level=15,
        )
        texts += [row["text"] for row in rows]
    return texts


def write_tokenizer(texts: list[str], folder: Path) -> None:
    """Train and write a byte-level BPE tokenizer that adds no special token by itself."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY_TOKENS,
            special_tokens=[BOS, EOS],
            show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        ),
    )
    assert tokenizer.get_vocab_size() == VOCABULARY_TOKENS
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": BOS, "eos_token": EOS, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Write ``data/`` and ``tokenizer/`` beside this file, or below ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--books", type=Path, required=True, help="the r-cran-janeaustenr package")
    parser.add_argument("--docs", type=Path, required=True, help="the sqlite3-doc package")
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write to (default: %(default)s)")
    args = parser.parse_args()
    texts = write_books(args.books, args.out / "data" / "books") + write_docs(args.docs, args.out / "data" / "docs")
    write_tokenizer(texts, args.out / "tokenizer")
    print(f"{len(texts)} documents, {sum(map(len, texts)):,} characters, {VOCABULARY_TOKENS} tokens")


if __name__ == "__main__":
    main()
