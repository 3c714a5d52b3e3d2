"""Files that are unpacked from the front: whole, from every place that can be entered, and every way to be damaged."""

from __future__ import annotations

import io
import itertools
import random
import tracemalloc
import zlib
from typing import Any

import pytest
from backports import zstd

from tests.sequential import PACKS, in_members
from torchtitan_zephon import SourceError
from torchtitan_zephon.read.packings import Entry, Unpacked, open_unpacked

DATA = b"".join(b"%d line %d\n" % (i, i * 2654435761 % 10**9) for i in range(60_000))
PADDING = {".gz": b"\0" * 1000, ".xz": b"\0" * 8}


def opened(data: bytes, suffix: str, entry: Entry = Entry(0, 0)) -> Unpacked:  # noqa: B008
    return open_unpacked(io.BytesIO(data), "the file", f"a{suffix}", len(data), entry)


def read_whole(stream: Unpacked) -> bytes:
    return b"".join(iter(lambda: stream.read(100_000), b""))


@pytest.mark.parametrize("suffix", PACKS)
@pytest.mark.parametrize("padded", [False, True])
def test_every_place_that_can_be_entered_leads_to_the_same_bytes(suffix: str, padded: bool) -> None:
    packed = in_members(DATA, PACKS[suffix], seed=3) + PADDING.get(suffix, b"") * padded
    rng, stream, places = random.Random(1), opened(packed, suffix), [(0, Entry(0, 0))]
    found = b""
    while data := stream.read(rng.randrange(1, 70_000)):
        if rng.random() < 0.3:
            stream.unread(data[7:])
            data = data[:7]
        found += data
        places.append((stream.at, stream.entry()))
    assert found == DATA
    assert len({entry for _, entry in places}) > 3
    for at, entry in rng.sample(places, 20):
        again = opened(packed, suffix, entry)
        again.skip(at)
        assert (again.at, again.entry(), read_whole(again)) == (at, entry, DATA[at:])


@pytest.mark.parametrize("suffix", PACKS)
def test_where_to_enter_does_not_depend_on_how_far_was_read_ahead(suffix: str) -> None:
    packed = b"".join(PACKS[suffix](part) for part in (DATA[:5000], DATA[5000:9000]))
    exact, ahead = opened(packed, suffix), opened(packed, suffix)
    exact.skip(5000)
    ahead.skip(5000)
    ahead.unread(ahead.read(10))
    assert (exact.at, exact.entry()) == (ahead.at, ahead.entry()) == (5000, Entry(0, 0))


@pytest.mark.parametrize("suffix", PACKS)
def test_a_file_that_is_not_whole_is_an_error_wherever_it_is_cut(suffix: str) -> None:
    members = [PACKS[suffix](DATA[at : at + 7000]) for at in range(0, 21_000, 7000)]
    packed, ends = b"".join(members), [*itertools.accumulate(map(len, members))]
    for cut in [*range(1, 40), *random.Random(2).sample(range(40, len(packed)), 60), len(packed) - 1]:
        if cut not in ends:  # there it cannot be told from a whole file
            with pytest.raises(
                SourceError, match=r"is cut: the \w+ \w+ that begins at byte|is no \w+ file|other bytes"
            ):
                read_whole(opened(packed[:cut], suffix))


@pytest.mark.parametrize("suffix", PACKS)
@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda data: data + b"hello", "from byte [0-9,]+ on, there are other bytes: b'hello'"),
        (
            lambda data: b"hello" + data,
            "'the file' is no \\w+ file, though its name ends in '.*': it begins with b'hello",
        ),
        (lambda data: _flipped(data, len(data) // 2), "cannot be unpacked: in the \\w+ \\w+ from byte [0-9,]+ on"),
        (lambda data: _flipped(data, len(data) - 6), "cannot be unpacked|is cut|other bytes"),
    ],
    ids=["behind", "before", "inside", "check sum"],
)
def test_a_damaged_file_is_an_error_with_the_way_out(suffix: str, damage: Any, problem: str) -> None:
    packed = PACKS[suffix](DATA) if suffix != ".zst" else _checked_zstd(DATA)
    with pytest.raises(SourceError, match=problem):
        read_whole(opened(damage(packed), suffix))


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def _checked_zstd(data: bytes) -> bytes:
    return zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1})


def test_a_file_that_became_shorter_while_the_job_runs_is_told() -> None:
    packed = PACKS[".gz"](DATA)
    with pytest.raises(SourceError, match=r"ends at byte 1000, but had \d+ bytes when the job began"):
        read_whole(open_unpacked(io.BytesIO(packed[:1000]), "the file", "a.gz", len(packed), Entry(0, 0)))


def test_zstd_frames_to_skip_and_of_no_size_are_read_over() -> None:
    skipped = b"\x5a\x2a\x4d\x18" + (9).to_bytes(4, "little") + b"seekable!"
    packed = skipped + zstd.compress(b"one ") + zstd.compress(b"") + skipped + zstd.compress(b"two") + skipped
    assert read_whole(opened(packed, ".zst")) == b"one two"


def test_a_window_or_a_dictionary_that_cannot_be_had_is_told_with_the_way_out() -> None:
    options = {zstd.CompressionParameter.window_log: 28, zstd.CompressionParameter.compression_level: 1}
    compressor = zstd.ZstdCompressor(options=options)
    wide = compressor.compress(b"ab" * 2**20) + compressor.flush()
    with pytest.raises(SourceError, match="needs more than 128 MiB; pack it anew without --long"):
        read_whole(opened(wide, ".zst"))
    words = zstd.train_dict([b"hello world %d" % i * 20 for i in range(2000)], 1000)
    with pytest.raises(SourceError, match="packed with a dictionary"):
        read_whole(opened(zstd.compress(b"hello world" * 10, zstd_dict=words), ".zst"))


def test_a_bomb_takes_no_more_memory_than_is_asked_for() -> None:
    for suffix, pack in PACKS.items():
        stream = opened(pack(bytes(2**26)), suffix)
        tracemalloc.start()
        try:
            while stream.read(2**16):
                pass
            assert tracemalloc.get_traced_memory()[1] < 2**24, suffix
        finally:
            tracemalloc.stop()


def bgzip(data: bytes) -> bytes:
    """``data`` as bgzip packs it, by the SAM specification: members of 64,000 bytes and an empty one at the end."""

    def member(part: bytes) -> bytes:
        deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
        packed = deflate.compress(part) + deflate.flush()
        head = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x06\0BC\x02\0" + (len(packed) + 25).to_bytes(2, "little")
        return head + packed + zlib.crc32(part).to_bytes(4, "little") + len(part).to_bytes(4, "little")

    return b"".join(member(data[at : at + 64_000]) for at in range(0, len(data), 64_000)) + member(b"")


def frames(data: bytes) -> bytes:
    """``data`` in zstd frames, some with a check sum, some to be skipped, one that does not state its size."""
    skipped = b"\x5a\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"seek!"
    stream = zstd.ZstdCompressor()
    unstated = stream.compress(data[:300_000]) + stream.flush()
    rest = data[300_000:]
    parts = [rest[at : at + 210_000] for at in range(0, len(rest), 210_000)]
    packed = [zstd.compress(part) if n % 2 else _checked_zstd(part) + skipped for n, part in enumerate(parts)]
    return unstated + b"".join(packed) + zstd.compress(b"") + zstd.compress(bytes(200)) + zstd.compress(bytes(60_000))


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", bgzip), (".zst", frames)])
def test_members_that_state_their_sizes_are_passed_over_unread(suffix: str, pack: Any) -> None:
    packed = pack(DATA)
    whole = read_whole(opened(packed, suffix))
    assert whole.startswith(DATA)
    for to in (0, 1, 63_999, 64_000, 299_999, 300_000, 510_000, 700_001, len(whole) - 1, len(whole), len(whole) + 9):
        stream, unpacked = opened(packed, suffix), opened(packed, suffix)
        stream.skip(to)
        while unpacked.at < to and unpacked.read(to - unpacked.at):
            pass
        assert (stream.at, stream.entry()) == (unpacked.at, unpacked.entry()), to
        assert read_whole(stream) == whole[to:]
    damaged = bytearray(packed)
    second = len(packed) * 3 // 4
    damaged[second : second + 40] = bytes(40)  # in a member that is passed over
    stream = opened(bytes(damaged), suffix)
    stream.skip(len(whole) - 100)
    assert stream.read(10**6) == whole[-100:]
