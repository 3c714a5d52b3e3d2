"""What packed files cost beside plain ones: reading all of it once, by as many lanes as files and by many more.

What flows in: a folder with JSONL files; up to four are packed in every way. What flows out, for each packing, CPU
seconds of one epoch of all lanes (unpack, cut, parse; no tokenizer), in ratio to bare unpacking plus reading the plain
twins; the same with 32 lanes, in ratio to the plain twins; and the seconds until a tape stands again at the last place
of the largest file. Rounds are interleaved; the least of each is printed.

    python benchmarks/sequential.py CORPUS FOLDER [--mb 12] [--rounds 3]
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import lzma
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from backports import zstd

from torchtitan_zephon.plan.chunking import cut
from torchtitan_zephon.plan.cursor import Endless
from torchtitan_zephon.plan.slices import TapePlace, cut_slices
from torchtitan_zephon.read.settings import SourceConfig
from torchtitan_zephon.read.source import Source, open_source
from torchtitan_zephon.read.tape import Slice, Tape

SLICE_BYTES = 256 * 1024
MANY_LANES = 32


def bgzip(data: bytes) -> bytes:
    """As bgzip packs it (SAM specification): gzip members of 64,000 bytes that state their size."""

    def member(part: bytes) -> bytes:
        deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
        packed = deflate.compress(part) + deflate.flush()
        head = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x06\0BC\x02\0" + (len(packed) + 25).to_bytes(2, "little")
        return head + packed + zlib.crc32(part).to_bytes(4, "little") + len(part).to_bytes(4, "little")

    return b"".join(member(data[at : at + 64_000]) for at in range(0, len(data) + 1, 64_000))


def frames(data: bytes) -> bytes:
    """zstd frames of 256 KiB."""
    return b"".join(zstd.compress(data[at : at + 2**18]) for at in range(0, len(data), 2**18))


PACKS: dict[str, tuple[str, Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "gzip": (".gz", lambda data: gzip.compress(data, 6), gzip.decompress),
    "bgzip": (".gz", bgzip, gzip.decompress),
    "zstd": (".zst", zstd.compress, zstd.decompress),
    "zstd, frames": (".zst", frames, zstd.decompress),
    "bzip2": (".bz2", bz2.compress, bz2.decompress),
    "xz": (".xz", lambda data: lzma.compress(data, preset=1), lzma.decompress),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mb", type=int, default=12, help="of each file")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    texts = [file.read_bytes()[: options.mb * 10**6] for file in sorted(options.corpus.rglob("*.jsonl"))[:4]]
    texts = [text[: text.rindex(b"\n") + 1] for text in texts]
    plain = written(options.folder / "plain", texts, "", bytes)
    folders = {name: written(options.folder / name, texts, suffix, pack) for name, (suffix, pack, _) in PACKS.items()}
    print(f"{len(texts)} files of {options.mb} MB; CPU seconds")
    print(
        f"{'':14}{'bare':>8}{'plain':>8}{'lanes=files':>13}{'ratio':>7}{f'{MANY_LANES} lanes':>10}{'/ plain':>9}"
        f"{'restore':>9}"
    )
    for name, folder in folders.items():
        rounds = [measured(plain, folder, PACKS[name][2], len(texts)) for _ in range(options.rounds)]
        bare, twin, few, many, restore = (min(column) for column in zip(*rounds, strict=True))
        print(
            f"{name:14}{bare:8.2f}{twin:8.2f}{few:13.2f}{few / (bare + twin):7.2f}{many:10.2f}{many / twin:9.1f}"
            f"{restore:9.3f}",
            flush=True,
        )


def written(folder: Path, texts: list[bytes], suffix: str, pack: Callable[[bytes], bytes]) -> Path:
    """``texts`` as files in ``folder``, if they are not there yet."""
    if not folder.exists():
        folder.mkdir(parents=True)
        for i, text in enumerate(texts):
            (folder / f"{i}.jsonl{suffix}").write_bytes(pack(text))
    return folder


def measured(plain: Path, packed: Path, unpack: Callable[[bytes], bytes], files: int) -> tuple[float, ...]:
    """CPU seconds: bare unpacking; the plain twins; one lane a file; many lanes; and of a restore."""
    source = open_source("s", SourceConfig(path=str(packed)))
    return (
        seconds(lambda: [len(unpack(file.read_bytes())) for file in packed.iterdir()]),
        seconds(lambda: read_plain(open_source("s", SourceConfig(path=str(plain))))),
        seconds(lambda: read_tapes(source, files)),
        seconds(lambda: read_tapes(source, MANY_LANES)),
        restored(source),
    )


def seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def read_plain(source: Source) -> None:
    table = cut(0, source.reader.pieces(), SLICE_BYTES, 4)
    for run in range(table.num_runs):
        source.read(table.chunk(0, run, 0)[0], None)


def read_tapes(source: Source, lanes: int) -> list[Slice]:
    """One epoch of every lane; its slices without their data."""
    table, found = cut_slices(0, source.reader.pieces(), SLICE_BYTES, lanes, None), []
    for lane in range(lanes):
        runs, k = Endless(lane, lanes, table.num_runs, None), 0
        tape = Tape(source, table, runs, TapePlace())
        while not runs.run((piece := tape.turn().take(table.chunk(0, 0, k)[0])).behind.runs)[0]:
            source.read(piece.chunk, None, piece.cut)
            found.append(piece._replace(cut=piece.cut._replace(data=b"")))
            k += 1
    return found


def restored(source: Source) -> float:
    """CPU seconds until a tape that is made at the last place of a file has its next slice."""
    table = cut_slices(0, source.reader.pieces(), SLICE_BYTES, 1, None)
    slices = read_tapes(source, 1)
    last = max((piece.behind for piece in slices if piece.behind.runs == 0), key=lambda place: place.border)
    return seconds(
        lambda: Tape(source, table, Endless(0, 1, table.num_runs, None), last).turn().take(table.chunk(0, 0, 0)[0])
    )


if __name__ == "__main__":
    main()
