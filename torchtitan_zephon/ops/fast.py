"""The fast tokenizer back-end: `fastokens` where it is proved to give the ids of Hugging Face `tokenizers`.

What flows in: a serialised tokenizer, then texts. What flows out: the same ids, 30 to 100 times faster, as flat
arrays with no Python object per token. `tokenizers` stays the reference, held on to four ways:

1. ``refusal``: only tokenizers of a known build (byte-level BPE, a pre-tokenizer on a list) come here at all.
2. ``self_check``: both encode some thousand strings made to tell them apart, and must agree on every one.
3. A guard: a document of a kind known to differ, or that raises, is encoded by `tokenizers`.
4. ``RECHECKED``: one document in 1,024 is encoded by both, for as long as the job runs; a difference raises.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import TokenizerError
from ..plan import keyed
from .probes import probes

if TYPE_CHECKING:
    import tokenizers

logger = logging.getLogger(__name__)

RECHECKED = 1024
"""One document in so many is encoded by both."""
CHECK_VERSION = 1
"""Of the self-check; a new one makes every tokenizer be checked again."""

Flat = tuple[np.ndarray, np.ndarray]
"""Ids int32 [tokens] and offsets int64 [texts + 1]."""

MOST_GUARDS = 16
"""Strings that a text is searched for, at most, to leave it to the reference."""
_CASE_FOLDED = "(?i:"
_FOLDS_TO_S = "\u017f"
"""After an apostrophe `tokenizers` takes it for the s of a contraction, `fastokens` does not."""

_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
)
PATTERNS: frozenset[tuple[str, ...]] = frozenset([(_CL100K % "{1,3}",), (_CL100K % "",), (_O200K,), _DEEPSEEK])
"""Pre-tokenizer patterns, each a tuple of splits in turn: Llama 3, Qwen, o200k (Llama 4, GPT-OSS), DeepSeek.

GPT-2's own is ByteLevel's. `fastokens` 0.3.5 takes U+180E for white space under patterns it does not know by heart.
"""


def installed() -> str | None:
    """The version of `fastokens`, or None."""
    return _version("fastokens")


def refusal(serialized: str) -> str | None:
    """Why a tokenizer of this build is left to `tokenizers`; None if it may come here."""
    data = json.loads(serialized)
    model, normalizer = data["model"], data.get("normalizer")
    if model.get("type") != "BPE":
        return f"its model is {model.get('type')}, not BPE"
    for name in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            return f"its model has {name} = {model[name]!r}"
    for name in ("fuse_unk", "byte_fallback"):
        if model.get(name):
            return f"its model has {name}"
    if parts(normalizer) not in ([], [{"type": "NFC"}]):
        return f"its normalizer is {_kinds(normalizer)}, neither none nor NFC"
    splits = _splits(data.get("pre_tokenizer"))
    if splits is None or (splits and splits not in PATTERNS):
        return f"its pre-tokenizer ({_kinds(data.get('pre_tokenizer'))}) is not one of those checked"
    if missing := [c for c in byte_alphabet() if c not in model["vocab"]]:
        return f"its vocabulary lacks {len(missing)} of the 256 bytes"
    for token in data.get("added_tokens", []):
        for flag in ("single_word", "lstrip", "rstrip"):
            if token.get(flag):
                return f"its added token {token['content']!r} is {flag}"
    overlapping = _overlapping(data.get("added_tokens", []))
    if len(overlapping) > MOST_GUARDS or (overlapping and normalizer is not None and parts(normalizer)):
        return (
            f"{len(overlapping)} of its added tokens overlap others that differ in `normalized`, as {overlapping[0]!r}"
        )
    return None


def _overlapping(added_tokens: list[dict[str, Any]]) -> list[str]:
    """Added tokens in which another begins that is normalized where they are not, or the reverse.

    `tokenizers` looks for the tokens of one kind first, `fastokens` for the leftmost of all.
    """
    kinds = [[t["content"] for t in added_tokens if bool(t.get("normalized")) is kind] for kind in (False, True)]
    found = []
    for tokens, others in (kinds, kinds[::-1]):
        beginnings = {other[:n] for other in others for n in range(1, len(other) + 1)}
        for token in tokens:
            tails = (token[at:] for at in range(1, len(token)))
            if any(tail in beginnings for tail in tails) or any(other in token for other in others):
                found.append(token)
    return found


def parts(stage: Any) -> list[Any]:
    """The steps of a normalizer or pre-tokenizer, one or a sequence of them."""
    if stage is None:
        return []
    if stage.get("type") == "Sequence":
        inner = stage.get("normalizers") or stage.get("pretokenizers") or []
        return [part for step in inner for part in parts(step)]
    return [stage]


def _kinds(stage: Any) -> str:
    return ", ".join(str(part.get("type")) for part in parts(stage)) or "none"


def _splits(pre_tokenizer: Any) -> tuple[str, ...] | None:
    """The patterns before a last ByteLevel step, () where that splits by itself; None for anything else."""
    *before, last = parts(pre_tokenizer) or [{}]
    patterns = [pattern for part in before if (pattern := _pattern(part))]
    fits = last.get("type") == "ByteLevel" and not last.get("add_prefix_space")
    if not fits or last.get("use_regex", True) != (not before) or len(patterns) < len(before):
        return None
    return tuple(patterns)


def _pattern(part: dict[str, Any]) -> str | None:
    plain = part.get("type") == "Split" and part.get("behavior") == "Isolated" and not part.get("invert")
    pattern = part.get("pattern", {}).get("Regex") if plain else None
    return pattern and pattern.replace("\r", r"\r").replace("\n", r"\n")


def byte_alphabet() -> str:
    """The 256 characters that stand for bytes in a byte-level vocabulary (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return "".join(map(chr, [*printable, *range(256, 256 + 256 - len(printable))]))


class FastEncoder:
    """``fastokens`` with the guard and the re-check. Safe in any thread.

    Raises ``TokenizerError`` if `fastokens` cannot load the tokenizer or numbers its tokens differently.
    """

    def __init__(self, serialized: str, plain: bool, reference: Callable[[list[str]], Flat]) -> None:
        """``plain``: special tokens in texts are ordinary text. ``reference``: `tokenizers`' own ids."""
        from fastokens._native import Tokenizer

        self._reference, self._plain, self._failed = reference, plain, False
        self._guards = _overlapping(json.loads(serialized).get("added_tokens", []))
        if _CASE_FOLDED in serialized:  # seen in a word too: a needless guard is harmless
            self._guards.append(_FOLDS_TO_S)
        try:
            self._tokenizer = Tokenizer.from_json_str(serialized)
        except BaseException as error:
            raise_unless_failed(error)
            raise TokenizerError(f"fastokens cannot load this tokenizer: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def token_to_id(self, token: str) -> int | None:
        """The id of a token, as `fastokens` has it."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def __call__(self, texts: list[str], rechecked: np.ndarray) -> Flat:
        """The ids of ``texts``; those numbered in ``rechecked`` are encoded by both. Raises ``TokenizerError``."""
        others = [i for i, text in enumerate(texts) if self._guarded(text)] if self._guards else []
        try:
            ids, offsets = self.unguarded(texts)
        except BaseException as error:
            raise_unless_failed(error)
            if not self._failed:
                self._failed = True
                logger.warning("fastokens fails (%s), so some chunks are encoded by tokenizers, which is slow.", error)
            return self._reference(texts)
        if len(rechecked):
            self._recheck(texts, ids, offsets, rechecked)
        return _replace(ids, offsets, others, self._reference([texts[i] for i in others])) if others else (ids, offsets)

    def _guarded(self, text: str) -> bool:
        """Whether a document is of a kind known to differ."""
        return any(guard in text for guard in self._guards)

    def unguarded(self, texts: list[str]) -> Flat:
        """What `fastokens` itself gives."""
        ids, offsets = self._tokenizer.encode_batch_flat(
            texts, add_special_tokens=True, split_special_tokens=self._plain
        )
        return np.frombuffer(ids, np.int32), np.frombuffer(offsets, np.int64)

    def _recheck(self, texts: list[str], ids: np.ndarray, offsets: np.ndarray, numbers: np.ndarray) -> None:
        picked = [int(i) for i in numbers if not self._guarded(texts[i])]
        expected, borders = self._reference([texts[i] for i in picked])
        for k, i in enumerate(picked):
            found, right = ids[offsets[i] : offsets[i + 1]], expected[borders[k] : borders[k + 1]]
            if not np.array_equal(found, right):
                raise TokenizerError(
                    f"fastokens {installed()} gives other ids than tokenizers for the document that begins "
                    f"{texts[i][:80]!r} ({_first_difference(found, right)}). The stream is not exact with it: set "
                    'tokenizer_backend = "hf", and please report the document. Checkpoints of this run hold ids from '
                    'fastokens; to go on from one with tokenizers set allow_changes = ["tokenizer_backend"] too.'
                )


def _replace(ids: np.ndarray, offsets: np.ndarray, numbers: list[int], by: Flat) -> Flat:
    """``ids`` with the documents ``numbers`` replaced by those in ``by``."""
    parts = np.split(ids, offsets[1:-1])
    for number, part in zip(numbers, np.split(by[0], by[1][1:-1]), strict=True):
        parts[number] = part
    new = np.zeros(len(offsets), np.int64)
    np.cumsum([len(part) for part in parts], out=new[1:])
    return np.concatenate(parts), new


def _first_difference(found: np.ndarray, right: np.ndarray) -> str:
    n = min(len(found), len(right))
    differs = np.flatnonzero(found[:n] != right[:n])
    at = int(differs[0]) if len(differs) else n
    return f"{len(found)} ids and {len(right)}, from number {at} on {found[at : at + 4]} and {right[at : at + 4]}"


def rechecked(origin: np.ndarray) -> np.ndarray:
    """Numbers of the documents to encode twice, the same in every process.

    ``origin``: int64 [documents, 4], as in ``Documents``, all of one shard.
    """
    if not len(origin):
        return np.zeros(0, np.int64)
    source, shard = origin[0, :2].tolist()
    drawn = keyed.draws(keyed.key("recheck", source, shard), origin[:, 2])
    return np.flatnonzero(drawn % np.uint64(RECHECKED) == 0)


def self_check(fast: FastEncoder, reference: tokenizers.Tokenizer, encode: Callable[[list[str]], Flat]) -> str:
    """Where the two differ, in words; empty if on nothing. About a CPU second for a large vocabulary."""
    added = reference.get_added_tokens_decoder()
    for token_id, token in added.items():
        ids = token_id, reference.token_to_id(token.content), fast.token_to_id(token.content)
        if len(set(ids)) > 1:
            return f"the ids of added token {token.content!r} differ: {ids}"
    kinds: dict[tuple[bool, bool], list[str]] = {}
    for token in added.values():
        kinds.setdefault((token.special, token.normalized), []).append(token.content)
    texts = probes([content for kind in kinds.values() for content in kind[:128]])
    for begin in range(0, len(texts), 512):
        some = texts[begin : begin + 512]
        try:
            found, right = fast(some, np.zeros(0, np.int64)), encode(some)
        except BaseException as error:
            raise_unless_failed(error)
            return f"a probe failed: {error}"
        if np.array_equal(found[0], right[0]) and np.array_equal(found[1], right[1]):
            continue
        for i, text in enumerate(some):
            a, b = (f[0][f[1][i] : f[1][i + 1]] for f in (found, right))
            if not np.array_equal(a, b):
                return f"the ids of {text[:40]!r} differ ({_first_difference(a, b)})"
    return ""


def raise_unless_failed(error: BaseException) -> None:
    """Raise ``error`` again if it is no failure of a tokenizer; a Rust panic is one, and is no ``Exception``."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error


def versions(backend: str) -> str:
    """The back-end with its version, and that of `tokenizers`."""
    reference = f"tokenizers {_version('tokenizers')}"
    return reference if backend == "hf" else f"fastokens {installed()}, checked against {reference}"


@functools.cache
def _version(package: str) -> str | None:
    from importlib import metadata  # costs 20 ms, which importing this module should not

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
