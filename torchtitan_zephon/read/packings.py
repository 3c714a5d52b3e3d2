"""How files are packed, and how they are unpacked from the front: a line a packing, nothing else knows its suffix.

What flows in: an open file and a place where unpacking can begin. What flows out: unpacked bytes, at most as many at a
time as are asked for, and the last place from which one could go on. Such a place is the beginning of a member (gzip),
frame (zstd) or stream (xz, bz2), of which a file may have several, one behind the other. A file that is cut, damaged or
followed by other bytes is an error that says so; what was unpacked is never taken for the whole.
"""

from __future__ import annotations

import bz2
import lzma
import sys
import weakref
import zlib
from collections.abc import Callable
from typing import BinaryIO, NamedTuple, Protocol

from ..errors import SourceError
from .members import Peek, Sizes, gzip_sizes, zstd_sizes

BLOCK_BYTES = 128 * 1024
WINDOW_LOG = 27
"""A zstd frame may refer back by up to 2**27 bytes, 128 MiB: what `zstd` unpacks without being told to use more."""
XZ_BYTES = 2**28
"""Memory for unpacking xz, 256 MiB; the largest preset, -9, takes 65."""


class Decoder(Protocol):
    """One member; as the standard library's decompressors are."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class Packing(NamedTuple):
    """``magic``: how each of its members begins. ``member``: what one is called. ``padded``: zeros may follow one.

    ``test``: the command that says whether a file is whole. ``sizes``: those of a member, where it states them.
    """

    title: str
    suffix: str
    magic: bytes
    member: str
    decoder: Callable[[], Decoder]
    padded: bool
    test: str
    sizes: Callable[[Peek, int], Sizes | None] = lambda peek, most: None


class _Gunzip:
    """``zlib`` with the manners of the other decompressors."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._full = False

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def needs_input(self) -> bool:
        return not self._full and not self._zlib.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        found = self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)
        self._full = len(found) == max_length
        return found


def _unzstd() -> Decoder:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    found: Decoder = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: WINDOW_LOG})
    return found


def _unxz() -> Decoder:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, XZ_BYTES)


PACKINGS = (
    Packing("gzip", ".gz", b"\x1f\x8b", "member", _Gunzip, True, "gzip -t", gzip_sizes),
    Packing("zstd", ".zst", b"\x28\xb5\x2f\xfd", "frame", _unzstd, False, "zstd -t", zstd_sizes),
    Packing("bzip2", ".bz2", b"BZh", "stream", bz2.BZ2Decompressor, False, "bzip2 -t"),
    Packing("xz", ".xz", b"\xfd7zXZ\x00", "stream", _unxz, True, "xz -t"),
)
_SKIPPABLE = bytes(range(0x50, 0x60))
"""First bytes of a zstd frame that holds no data, such as a table for seeking."""


def packing_of(name: str) -> Packing | None:
    """The packing that the ending of ``name`` says, or None."""
    lower = _in_full(name).lower()
    return next((packing for packing in PACKINGS if lower.endswith(packing.suffix)), None)


def unpacked_name(name: str) -> str:
    """``name`` without the ending of its packing."""
    packing = packing_of(name)
    return name if packing is None else _in_full(name)[: -len(packing.suffix)]


def _in_full(name: str) -> str:
    return f"{name[:-4]}.tar.gz" if name.lower().endswith(".tgz") else name


class Entry(NamedTuple):
    """A place where unpacking can begin: a byte of the file, and how many unpacked bytes lie before it."""

    packed: int
    unpacked: int


class Unpacked(Protocol):
    """A stream of unpacked bytes that moves forward. ``at``: unpacked bytes before what is read next. ``path``: its
    file's, for messages.

    The file is closed when nobody has the stream any more.
    """

    path: str
    at: int

    def read(self, most: int) -> bytes:
        """The next bytes, 1 to ``most`` of them; none at the end."""

    def unread(self, data: bytes) -> None:
        """Put ``data``, which was read last, back to be read next."""

    def skip(self, to: int) -> None:
        """Pass over the bytes before ``to``, or to the end."""

    def entry(self) -> Entry:
        """The last place before ``at``, or there, where unpacking can begin. It follows from ``at`` and the file."""


class PlainStream:
    """A file as it is: unpacking can begin anywhere."""

    def __init__(self, file: BinaryIO, path: str, num_bytes: int, at: int) -> None:
        self._file, self.path, self._num_bytes, self.at = file, path, num_bytes, at
        weakref.finalize(self, file.close)
        file.seek(at)

    def read(self, most: int) -> bytes:
        data = self._file.read(min(most, self._num_bytes - self.at))
        if not data and self.at < self._num_bytes:
            raise changed(self.path, self.at, self._num_bytes)
        self.at += len(data)
        return data

    def unread(self, data: bytes) -> None:
        self.at -= len(data)
        self._file.seek(self.at)

    def skip(self, to: int) -> None:
        self.at = min(to, self._num_bytes)
        self._file.seek(self.at)

    def entry(self) -> Entry:
        return Entry(self.at, self.at)


class PackedStream:
    """What is in a packed file, member by member."""

    def __init__(self, file: BinaryIO, path: str, num_bytes: int, packing: Packing, entry: Entry) -> None:
        self._file, self.path, self._num_bytes, self._packing = file, path, num_bytes, packing
        weakref.finalize(self, file.close)
        self.at, self._packed, self._decoded = entry.unpacked, entry.packed, entry.unpacked
        self._entries = [entry]
        """Where members began; all but the last before ``at`` may be forgotten."""
        self._decoder: Decoder | None = None
        self._input, self._back = b"", b""
        file.seek(entry.packed)

    def read(self, most: int) -> bytes:
        data = self._back[:most] or self._decode(most)
        self._back = self._back[len(data) :]
        self.at += len(data)
        return data

    def unread(self, data: bytes) -> None:
        self._back = data + self._back
        self.at -= len(data)

    def skip(self, to: int) -> None:
        while self.at < to and (self._jumped(to) or self.read(min(to - self.at, BLOCK_BYTES))):
            pass

    def _jumped(self, to: int) -> bool:
        """Pass over the member that begins here without unpacking it, if it ends before ``to`` or there."""
        if self._decoder is not None or self._back or self._begun() is None:
            return False
        begin = self._packed - len(self._input)

        def peek(offset: int, size: int) -> bytes:
            if offset + size <= len(self._input):
                return self._input[offset : offset + size]
            self._file.seek(begin + offset)
            return self._file.read(size)

        sizes = self._packing.sizes(peek, to - self.at)
        if sizes is None or begin + sizes.packed > self._num_bytes:
            self._file.seek(self._packed)
            return False
        self._decoder = None
        self._input = self._input[sizes.packed :]
        if not self._input:
            self._packed = begin + sizes.packed
        self._file.seek(self._packed)
        self._decoded += sizes.unpacked
        self.at = self._decoded
        return True

    def entry(self) -> Entry:
        before = [entry for entry in self._entries if entry.unpacked < self.at] or self._entries[:1]
        self._entries = self._entries[len(before) - 1 :]
        return before[-1]

    def _decode(self, most: int) -> bytes:
        """The next bytes of the decoder; none behind the last member."""
        while (decoder := self._decoder or self._begun()) is not None:
            data = b""
            if decoder.needs_input:
                data, self._input = self._input or self._block(), b""
                if not data:
                    raise self._cut()
            try:
                found = decoder.decompress(data, most)
            except Exception as error:  # zlib.error, OSError, LZMAError, ZstdError: nothing of the file system's
                raise self._damaged(error) from None
            self._decoded += len(found)
            if decoder.eof:
                self._decoder, self._input = None, decoder.unused_data
            if found:
                return found
        return b""

    def _begun(self) -> Decoder | None:
        """The decoder of the member that begins where the file is read; None at its end."""
        packing, first = self._packing, self._packed == self._entries[0].packed
        while len(self._input) < len(packing.magic) and (block := self._block()):
            self._input += block
            if packing.padded and not first:
                self._input = self._input.lstrip(b"\0")
        if packing.padded and not first:
            self._input = self._input.lstrip(b"\0")
        if not self._input:
            return None
        if not begins(packing, self._input):
            raise self._no_member()
        entry = Entry(self._packed - len(self._input), self._decoded)
        if entry != self._entries[-1]:
            self._entries.append(entry)
        self._decoder = packing.decoder()
        return self._decoder

    def _block(self) -> bytes:
        """The next bytes of the file; none at its end."""
        data = self._file.read(min(BLOCK_BYTES, self._num_bytes - self._packed))
        if not data and self._packed < self._num_bytes:
            raise changed(self.path, self._packed, self._num_bytes)
        self._packed += len(data)
        return data

    def _cut(self) -> SourceError:
        packing, begin = self._packing, self._entries[-1].packed
        return SourceError(
            f"{self.path!r} is cut: the {packing.title} {packing.member} that begins at byte {begin:,} is not over at "
            f"the end of the file, byte {self._num_bytes:,}. The file was copied in part or is still being written; "
            f"copy it again, and see with `{packing.test}` that it is whole."
        )

    def _damaged(self, error: Exception) -> SourceError:
        packing, begin = self._packing, self._entries[-1].packed
        ways = f"Copy it again, and see with `{packing.test}` that it is whole."
        if "too much memory" in str(error) or "limit" in str(error).lower():
            ways = f"Unpacking it needs more than {_limit(packing)}; pack it anew without --long."
        elif "ictionary" in str(error):
            ways = "It was packed with a dictionary, which cannot be given here; pack it anew without one."
        return SourceError(
            f"{self.path!r} cannot be unpacked: in the {packing.title} {packing.member} from byte {begin:,} on, "
            f"behind {self._decoded:,} unpacked bytes: {error}. {ways}"
        )

    def _no_member(self) -> SourceError:
        packing, at = self._packing, self._packed - len(self._input)
        if not at:
            return SourceError(f"{self.path!r} {wrong_packing(packing.suffix, self._input)}")
        return SourceError(
            f"{self.path!r}: behind its last {packing.title} {packing.member}, from byte {at:,} on, there are other "
            f"bytes: {self._input[:16]!r}. It was damaged, or something was appended; pack it anew."
        )


def wrong_packing(name: str, head: bytes) -> str | None:
    """What is wrong with a file that begins with ``head``, if it is not packed as its name says."""
    packing = packing_of(name)
    if packing is None or begins(packing, head):
        return None
    return (
        f"is no {packing.title} file, though its name ends in {packing.suffix!r}: it begins with {head[:16]!r}. Give "
        "it the ending of what it is."
    )


def begins(packing: Packing, data: bytes) -> bool:
    """Whether a member of ``packing`` begins with ``data``; a frame that zstd skips is one too."""
    skipped = packing.suffix == ".zst" and data[0] in _SKIPPABLE and data[1:4] == b"*M\x18"
    return skipped or data.startswith(packing.magic)


def _limit(packing: Packing) -> str:
    return f"{(1 << WINDOW_LOG if packing.suffix == '.zst' else XZ_BYTES) >> 20} MiB"


def changed(path: str, end: int, num_bytes: int) -> SourceError:
    """The refusal of a file that ends before ``num_bytes``."""
    return SourceError(
        f"{path!r} ends at byte {end}, but had {num_bytes} bytes when the job "
        "began: the file was changed or cut while the job runs."
    )


def open_unpacked(file: BinaryIO, path: str, name: str, num_bytes: int, entry: Entry) -> Unpacked:
    """What is in the open ``file``, from ``entry`` on."""
    packing = packing_of(name)
    if packing is None:
        return PlainStream(file, path, num_bytes, entry.packed)
    return PackedStream(file, path, num_bytes, packing, entry)
