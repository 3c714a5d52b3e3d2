"""Characters for which a tokenizer has no token, counted on sample texts.

Most tokenizers spell any text in bytes and lose nothing. A BPE model without bytes and without an unknown token drops
a character that it does not know, and nobody sees it. A model with an unknown token replaces it. Both are found
where the model itself meets the unknown: what normalisation leaves out (case, accents, control characters, runs of
white space) is the tokenizer's intention and is not counted. A model of another kind without an unknown token raises.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import fast

LOOKED_AT = 1 << 17
"""Characters of a sample that are looked at, in whole texts spread evenly over it: about 0.1 CPU seconds."""
REPLACED_IN = 100
"""An unknown token is what such a tokenizer has it for; a warning comes from one character in so many on."""
_BYTES = [f"<0x{n:02X}>" for n in range(256)]
_DROPPED = "<|no token for it|>"


@dataclass(frozen=True, kw_only=True, slots=True)
class Losses:
    """Counts over the texts looked at. ``emptied``: documents of which nothing is left; ``unknown``: what stands in
    for a lost character, or None if nothing does; ``example``: lost characters and their surroundings."""

    documents: int
    characters: int
    losing: int
    lost: int
    emptied: int
    unknown: str | None
    example: tuple[str, str]

    @property
    def warning(self) -> str:
        """What a user should know, in words; empty if nothing."""
        if not self.lost or (self.unknown is not None and self.lost * REPLACED_IN < self.characters):
            return ""
        what, where = self.example
        fate = "are dropped without a trace" if self.unknown is None else f"become {self.unknown!r}"
        way = "" if self.unknown is not None else ", or give its model an unk_token"
        return (
            f"{self.lost:,} of {self.characters:,} characters looked at ({self.lost / self.characters:.2%}), in "
            f"{self.losing:,} of {self.documents:,} documents, {fate}, as the tokenizer has no token for them: "
            f"{what!r} in {where!r}. Nothing else is left of {self.emptied:,} documents. Use a tokenizer with bytes "
            f"(byte-level, or byte_fallback){way}."
        )


def losses(serialized: str, plain: bool, texts: list[str]) -> Losses | None:
    """What a tokenizer loses of ``texts``; None if its model can lose nothing, or raises instead.

    ``plain``: special tokens in texts are ordinary text.
    """
    from tokenizers import Tokenizer

    if (found := _with_unknown(json.loads(serialized))) is None:
        return None
    data, token, stands = found
    tokenizer = Tokenizer.from_str(json.dumps(data, ensure_ascii=False))
    tokenizer.encode_special_tokens = plain
    unknown = tokenizer.token_to_id(token)
    looked_at = _spread(texts)
    losing = lost = emptied = 0
    example = ("", "")
    for text, encoding in zip(looked_at, tokenizer.encode_batch(looked_at, add_special_tokens=False), strict=True):
        is_unknown = np.array(encoding.ids, np.int64) == unknown
        if not is_unknown.any():
            continue
        offsets = encoding.offsets  # a new list each time it is asked for
        spans = [offsets[i] for i in np.flatnonzero(is_unknown)]
        places = {k for begin, end in spans for k in range(begin, max(end, begin + 1))}
        losing, lost, emptied = losing + 1, lost + len(places), emptied + int(is_unknown.all())
        begin, end = spans[0]
        example = example if losing > 1 else (text[begin:end], text[max(0, begin - 20) : end + 20])
    return Losses(
        documents=len(looked_at),
        characters=sum(map(len, looked_at)),
        losing=losing,
        lost=lost,
        emptied=emptied,
        unknown=token if stands else None,
        example=example,
    )


def _spread(texts: list[str]) -> list[str]:
    """Every n-th text, with the smallest n that gives about ``LOOKED_AT`` characters; of long ones the beginning."""
    every = max(1, sum(min(len(text), LOOKED_AT) for text in texts) // LOOKED_AT)
    return [text[:LOOKED_AT] for text in texts[::every]]


def _with_unknown(data: dict[str, Any]) -> tuple[dict[str, Any], str, bool] | None:
    """The tokenizer without truncation and padding, its unknown token, and whether that is its own.

    One that drops characters is given an unknown token. None if nothing can be unknown, or what is makes it raise.
    """
    model, vocab = data["model"], data["model"]["vocab"]
    kind, words = model["type"], {w for w, _ in vocab} if isinstance(vocab, list) else vocab.keys()
    stages = fast.parts(data.get("pre_tokenizer")) + fast.parts(data.get("normalizer"))
    byte_level = any(part["type"] == "ByteLevel" for part in stages)
    if (byte_level and all(c in words for c in fast.byte_alphabet())) or (
        model.get("byte_fallback") and all(b in words for b in _BYTES)
    ):
        return None
    data |= {"truncation": None, "padding": None}
    if kind == "Unigram":
        return None if model.get("unk_id") is None else (data, vocab[model["unk_id"]][0], True)
    if (token := model.get("unk_token")) is not None:
        return (data, token, True) if token in words else None
    if kind != "BPE":
        return None
    # Added tokens are numbered anew behind the model's words when it is loaded, so the id is one that none can get.
    added = data.get("added_tokens", [])
    free = max([*vocab.values(), *(token["id"] for token in added)], default=0) + len(added) + 2
    data["model"] = model | {"unk_token": _DROPPED, "vocab": vocab | {_DROPPED: free}}
    return data, _DROPPED, False
