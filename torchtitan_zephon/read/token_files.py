"""What a file of token ids says of itself: where the ids begin, their type, and how many there are.

Three kinds: ``.npy`` of one dimension (one long row) or two (rows); raw ids, whose type the source states; and raw ids
behind the header of llm.c, which says the type. A file that does not hold just what it says is refused.
"""

from __future__ import annotations

import io
from typing import NamedTuple

import numpy as np

from ..errors import SourceError
from .store import Store

_NPY = b"\x93NUMPY"
_NPY_HEADER_BYTES = 16 * 1024
"""Most that is looked at: a header of numbers has 128 bytes."""
_LLM_C = {20240520: "uint16", 20240801: "uint32"}
"""Types of the ids by the first number of the header (``write_datafile`` of llm.c, for GPT-2 and for Llama 3)."""
_LLM_C_BYTES = 1024


class Layout(NamedTuple):
    """``begin``: the byte of the first id. ``row``: ids in each row, or 0 for one long row. ``ids``: in all."""

    begin: int
    dtype: np.dtype[np.integer]
    row: int
    ids: int

    @property
    def id_bytes(self) -> int:
        """Of one id."""
        return int(self.dtype.itemsize)

    def byte(self, number: int) -> int:
        """Where the id of this number begins."""
        return self.begin + number * self.id_bytes

    def id_after(self, byte: int) -> int:
        """The first id that begins at ``byte`` or behind it."""
        return -(-max(0, byte - self.begin) // self.id_bytes)

    def id_holding(self, byte: int) -> int:
        """The id that holds ``byte``."""
        return max(0, byte - self.begin) // self.id_bytes


def layout_of(store: Store, name: str, num_bytes: int, dtype: str) -> Layout:
    """How the ids lie in a file; ``dtype``: what the source states, or ''. Raises ``SourceError``."""
    path = store.path(name)
    head = store.read(name, 0, min(num_bytes, _NPY_HEADER_BYTES))
    if head.startswith(_NPY):
        return _npy(path, head, num_bytes)
    if (magic := int.from_bytes(head[:4], "little")) in _LLM_C and num_bytes >= _LLM_C_BYTES:
        return _llm_c(path, head, num_bytes, magic, dtype)
    if name.lower().endswith(".npy"):
        raise SourceError(
            f"{path!r} begins with {head[:8]!r}, and a .npy file with {_NPY!r}: it is another, or was cut."
        )
    if not dtype:
        raise SourceError(
            f"{path!r} is a file of raw ids, and nothing in it says their type. Write it into the source's table: "
            'dtype = "uint16" is that of GPT-2 ids made for nanoGPT.'
        )
    made = np.dtype(dtype).newbyteorder("<")
    if num_bytes % made.itemsize:
        raise SourceError(
            f"{path!r} has {num_bytes:,} bytes, which is no multiple of the {made.itemsize} of an id of {dtype}: it "
            "was cut, has a header that is not known here, or dtype is wrong."
        )
    return Layout(0, made, 0, num_bytes // made.itemsize)


def _npy(path: str, head: bytes, num_bytes: int) -> Layout:
    file = io.BytesIO(head)
    try:
        major, _ = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, columns_first, dtype = read(file)
    except Exception as error:  # numpy passes on what the parser of Python raises
        raise SourceError(f"{path!r} is no readable .npy file: {error}. Write it anew with numpy.save.") from error
    if dtype.kind not in "iu" or not 1 <= len(shape) <= 2 or (columns_first and len(shape) == 2):
        order = " in Fortran order" if columns_first else ""
        raise SourceError(
            f"{path!r} holds {dtype} of the shape {shape}{order}; token ids are integers in one dimension (one long "
            "row) or two (a document a row), in C order."
        )
    ids = int(np.prod(shape, dtype=object))
    _check_length(path, file.tell(), dtype, ids, num_bytes)
    return Layout(file.tell(), dtype, shape[1] if len(shape) == 2 else 0, ids)


def _llm_c(path: str, head: bytes, num_bytes: int, magic: int, dtype: str) -> Layout:
    if dtype not in ("", _LLM_C[magic]):
        raise SourceError(
            f"{path!r} has the header of llm.c with the number {magic}, so its ids are {_LLM_C[magic]}, and the source "
            f"says dtype = {dtype!r}. Leave dtype out."
        )
    made, ids = np.dtype(_LLM_C[magic]).newbyteorder("<"), int.from_bytes(head[8:12], "little")
    _check_length(path, _LLM_C_BYTES, made, ids, num_bytes)
    return Layout(_LLM_C_BYTES, made, 0, ids)


def _check_length(path: str, begin: int, dtype: np.dtype[np.integer], ids: int, num_bytes: int) -> None:
    stated = begin + ids * dtype.itemsize
    if stated != num_bytes:
        raise SourceError(
            f"{path!r} says that it holds {ids:,} ids of {dtype.name}, so {stated:,} bytes, and has {num_bytes:,}: it "
            "was cut, or something was appended to it. Write it anew."
        )
