"""Texts to token ids, as TorchTitan's stock text loader makes them.

What flows in: the documents of a chunk, as texts or as ids. What flows out: the same documents as ids.
The tokenizer's own post-processor runs; BOS and EOS are added where asked and where the
post-processor does not add them already, so there is exactly one of each. One call a chunk.
Which tokens these are is found by ``tokenizer_files.py``.

Two back-ends give the same ids: Hugging Face `tokenizers` ("hf"), the reference, and "fastokens" (``fast.py``).
`tokenizers` spreads a call over a thread pool of its own. Here a worker thread is the unit of
parallelism, so its pool is turned off for the process unless TOKENIZERS_PARALLELISM is set.
"""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..cache import cached, is_line
from ..errors import TokenizerError
from ..records import Documents
from ..settings import setting
from . import fast
from .losses import losses

if TYPE_CHECKING:
    import tokenizers


LARGEST_VOCABULARY = 1 << 24
"""A carried token takes three bytes in a checkpoint."""

Backend = Literal["hf", "fastokens"]
Wanted = Literal["auto", "hf", "fastokens"]


@dataclass(frozen=True, kw_only=True)
class TokenizeSettings:
    """What stands around a text, and in it. The tokenizer's identity says these in a checkpoint."""

    add_bos: bool = setting(
        True, "Begin every document with the tokenizer's BOS token, if it has one.", in_identity=False
    )
    add_eos: bool = setting(
        True, "End every document with the tokenizer's EOS token, if it has one.", in_identity=False
    )
    special_tokens_in_text: Literal["plain", "parse"] = setting(
        "plain",
        "Text that spells a special token is ordinary text (`plain`), or becomes the "
        "token (`parse`, TorchTitan's stock behaviour).",
        in_identity=False,
    )


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """Everything that decides the ids: the serialised tokenizer, and the ids added around a text.

    ``roles``: which files name BOS and EOS, in words; it decides nothing.
    """

    serialized: str
    add_bos: int | None
    add_eos: int | None
    special_tokens_in_text: str = "plain"
    roles: str = ""

    @property
    def identity(self) -> dict[str, Any]:
        """Its recipe fields; the content goes in as a hash."""
        return {
            "sha256": hashlib.sha256(self.serialized.encode()).hexdigest(),
            "add_bos": self.add_bos,
            "add_eos": self.add_eos,
            "special_tokens_in_text": self.special_tokens_in_text,
        }


class Tokenize:
    """The function stage; stateless after construction and safe in any thread."""

    def __init__(self, spec: TokenizerSpec, wanted: Wanted = "hf") -> None:
        """``wanted`` "auto": fastokens where it can stand in. Raises ``TokenizerError``, also if "fastokens" cannot."""
        self.spec = spec
        self._tokenizer = library().Tokenizer.from_str(spec.serialized)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        around = [i for i in (spec.add_bos, spec.add_eos) if i is not None]
        self._largest_id: int = max([*self._tokenizer.get_vocab(with_added_tokens=True).values(), *around])
        if self._largest_id >= LARGEST_VOCABULARY:
            raise TokenizerError(
                f"the tokenizer gives ids up to {self._largest_id}; ids end at {LARGEST_VOCABULARY - 1}."
            )
        self._plain = spec.special_tokens_in_text == "plain"
        self._tokenizer.encode_special_tokens = self._plain
        self._fast, self._why_not = (None, "") if wanted == "hf" else self._find_fast()
        if wanted == "fastokens" and self._fast is None:
            raise TokenizerError(
                f'tokenizer_backend = "fastokens" cannot be had: {self._why_not}. For a new run "auto" uses fastokens '
                'only where it can stand in for tokenizers; "hf" always works, and gives the same ids.'
            )

    @property
    def backend(self) -> Backend:
        """What encodes the texts."""
        return "hf" if self._fast is None else "fastokens"

    @property
    def backend_text(self) -> str:
        """The same with versions, and why it is not the fast one."""
        return f"tokenizers ({self._why_not})" if self._why_not else fast.versions(self.backend)

    def __call__(self, documents: Documents) -> Documents:
        """``documents`` as token ids, in order.

        Raises ``TokenizerError`` if the back-ends are seen to differ. Ids are expected to be the tokenizer's.
        """
        ids, offsets = self._completed(documents) if documents.tokens else self._encoded(documents)
        read = replace(documents.read, tokens=len(ids))
        return Documents({}, {"ids": ids}, offsets, documents.origin, read)

    def as_they_are(self, documents: Documents) -> Documents:
        """Documents that are ids already, with nothing put around them."""
        return replace(documents, values={}, read=replace(documents.read, tokens=len(documents.ids)))

    def _encoded(self, documents: Documents) -> fast.Flat:
        """The ids of texts, with BOS and EOS around each."""
        texts: list[str] = documents.values["text"]
        if self._fast is None:
            ids, offsets = self._reference(texts)
        else:
            ids, offsets = self._fast(texts, fast.rechecked(documents.origin))
        bos, eos = self.spec.add_bos, self.spec.add_eos
        before, after = (np.full(len(texts), token is not None) for token in (bos, eos))
        return _around(ids, offsets, (bos, before), (eos, after))

    def _completed(self, documents: Documents) -> fast.Flat:
        """Documents that are ids already, with what would stand around a text where it is missing."""
        ids, offsets = documents.ids, documents.offsets
        before, after = self.around
        if len(before) > 1 or len(after) > 1:
            raise TokenizerError(
                f"this tokenizer puts {before} before and {after} behind a text, so it is not known what a document of "
                "token ids lacks. Use a source of text."
            )
        bos, eos = (there[0] if there else None for there in self.around)
        lacks_bos = np.full(len(documents), bos is not None) & (ids[offsets[:-1]] != bos)
        lacks_eos = np.full(len(documents), eos is not None) & (ids[offsets[1:] - 1] != eos)
        return _around(ids, offsets, (bos, lacks_bos), (eos, lacks_eos))

    @functools.cached_property
    def around(self) -> tuple[list[int], list[int]]:
        """The ids before and behind every text: the tokenizer's own template's, and those that the spec adds."""
        before, after = template(self._tokenizer)
        bos, eos = ([] if token is None else [token] for token in (self.spec.add_bos, self.spec.add_eos))
        return bos + before, after + eos

    @property
    def document(self) -> str:
        """A document as the model reads it, such as ``<s> text </s>``."""
        before, after = ([self._tokenizer.id_to_token(i) or str(i) for i in ids] for ids in self.around)
        return " ".join([*before, "text", *after])

    def check(self, texts: list[str]) -> None:
        """Raise ``TokenizerError`` unless both back-ends give the same ids for all of ``texts``."""
        if self._fast is not None:
            self._fast(texts, np.arange(len(texts)))

    def _reference(self, texts: list[str]) -> fast.Flat:
        try:
            lists = [e.ids for e in self._tokenizer.encode_batch_fast(texts)]
        except Exception as error:
            raise self._cannot_encode(texts, error) from None
        offsets = np.zeros(len(lists) + 1, dtype=np.int64)
        np.cumsum([len(ids) for ids in lists], out=offsets[1:])
        return np.fromiter(chain.from_iterable(lists), dtype=np.int32, count=int(offsets[-1])), offsets

    def _cannot_encode(self, texts: list[str], error: Exception) -> TokenizerError:
        """The error for the first of ``texts`` that the tokenizer fails at."""
        for text in texts:
            try:
                self._tokenizer.encode(text)
            except Exception as own:
                return TokenizerError(
                    f"the tokenizer cannot encode the document that begins {text[:80]!r}: {own}. If it has no token "
                    "for what it does not know, name one in tokenizer.json (model.unk_token, or unk_id), or use a "
                    "tokenizer of bytes; a filter can leave such documents out."
                )
        return TokenizerError(f"the tokenizer cannot encode a chunk: {error}.")

    def losses(self, texts: list[str]) -> str:
        """What of ``texts`` no token stands for, in words; empty if nothing worth a warning."""
        found = losses(self.spec.serialized, self._plain, texts)
        return "" if found is None else found.warning

    def _find_fast(self) -> tuple[fast.FastEncoder | None, str]:
        """The fast back-end, or why it cannot stand in. The self-check's result is kept on this machine."""
        if fast.installed() is None:
            return None, "fastokens is not installed; pip install 'torchtitan_zephon[fast]'"
        if (why := fast.refusal(self.spec.serialized)) is not None:
            return None, f"fastokens is not used: {why}"
        try:
            encoder = fast.FastEncoder(self.spec.serialized, self._plain, self._reference)
        except TokenizerError as error:
            return None, str(error)
        key = [fast.versions("fastokens"), fast.CHECK_VERSION, self.spec.identity["sha256"], self._plain]
        why = cached("tokenizer", key, lambda: fast.self_check(encoder, self._tokenizer, self._reference), is_line)
        return (encoder, "") if why == "" else (None, f"fastokens is not used: {why}")

    def largest_id(self) -> int:
        """The largest id it can give."""
        return self._largest_id

    @property
    def padding_id(self) -> int:
        """The id that fills padded positions; their labels are -100."""
        return self.spec.add_eos if self.spec.add_eos is not None else 0


def _around(
    ids: np.ndarray, offsets: np.ndarray, bos: tuple[int | None, np.ndarray], eos: tuple[int | None, np.ndarray]
) -> fast.Flat:
    """A token before and one behind the documents marked for it: bool [documents], all False where there is none."""
    more = bos[1].astype(np.int64) + eos[1]
    if not more.any():
        return ids, offsets
    moved = offsets.copy()
    moved[1:] += np.cumsum(more)
    whole = np.empty(int(moved[-1]), np.int32)
    own = np.ones(len(whole), bool)
    for token, places in ((bos[0], moved[:-1][bos[1]]), (eos[0], moved[1:][eos[1]] - 1)):
        if token is not None:
            whole[places], own[places] = token, False
    whole[own] = ids
    return whole, moved


@functools.lru_cache(maxsize=4)
def tokenize(spec: TokenizerSpec, wanted: Wanted) -> Tokenize:
    """``Tokenize``, kept for the life of the process: building one for a large vocabulary takes seconds."""
    return Tokenize(spec, wanted)


def check_vocabulary(tokenize: Tokenize, vocab_size: int) -> None:
    """Raise ``TokenizerError`` if the tokenizer can give an id that the model has no row for."""
    if (largest := tokenize.largest_id()) >= vocab_size:
        raise TokenizerError(
            f"the tokenizer gives ids up to {largest}, but the model's vocabulary has {vocab_size} entries (ids 0 to "
            f"{vocab_size - 1}). Use the model's own tokenizer (model.hf_assets_path) or a model flavour with a "
            "larger vocabulary."
        )


def template(tokenizer: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """What the tokenizer's own post-processor puts before and behind a text, whatever words its model knows."""
    if tokenizer.post_processor is None:
        return [], []
    text = library().Tokenizer(library().models.WordLevel({"text": 0}, unk_token="text")).encode("text")
    whole = tokenizer.post_processor.process(text)
    at = whole.special_tokens_mask.index(0)
    return whole.ids[:at], whole.ids[at + 1 :]


def library() -> Any:
    """The package `tokenizers`, whose own thread pool is turned off."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers

    return tokenizers
