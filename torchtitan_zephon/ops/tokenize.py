"""Texts to token ids, as TorchTitan's stock text loader makes them.

What flows in: the texts of a chunk. What flows out: ``Tokens`` (flat int32 ids with offsets).
The tokenizer's own post-processor runs; BOS and EOS are added where asked and where the
post-processor does not add them already, so there is exactly one of each. One call a chunk.

Two back-ends give the same ids: Hugging Face `tokenizers` ("hf"), the reference, and "fastokens" (``fast.py``).
`tokenizers` spreads a call over a thread pool of its own. Here a worker thread is the unit of
parallelism, so its pool is turned off for the process unless TOKENIZERS_PARALLELISM is set.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..cache import cached, is_line
from ..errors import TokenizerError
from ..records import Ids, Texts, Tokens
from . import fast

if TYPE_CHECKING:
    import tokenizers


LARGEST_VOCABULARY = 1 << 24
"""A carried token takes three bytes in a checkpoint."""

Backend = Literal["hf", "fastokens"]
Wanted = Literal["auto", "hf", "fastokens"]


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """Everything that decides the ids: the serialised tokenizer, and the ids added around a text."""

    serialized: str
    add_bos: int | None
    add_eos: int | None
    special_tokens_in_text: str = "plain"

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
        self._tokenizer = _tokenizers().Tokenizer.from_str(spec.serialized)
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

    def __call__(self, source: int, texts: Texts) -> Tokens:
        """``Tokens`` of ``texts``, in order. Raises ``TokenizerError`` if the back-ends are seen to differ."""
        if self._fast is None:
            ids, offsets = self._reference(texts.texts)
        else:
            ids, offsets = self._fast(texts.texts, fast.rechecked(source, texts.shard, texts.records))
        bos, eos = self.spec.add_bos, self.spec.add_eos
        before, after = (np.full(len(texts.texts), token is not None) for token in (bos, eos))
        return self._tokens(source, texts, *_around(ids, offsets, (bos, before), (eos, after)))

    def given(self, source: int, ids: Ids) -> Tokens:
        """``Tokens`` of documents that are ids already; what would stand around a text is added where it is missing.

        Raises ``TokenizerError`` for an id that the tokenizer does not have.
        """
        if len(ids.ids) and (largest := int(ids.ids.max())) > self._largest_id:
            raise TokenizerError(
                f"a source of token ids holds {largest}, but the tokenizer's ids end at {self._largest_id}: they were "
                "made with another tokenizer."
            )
        bos, eos = self._around_a_text
        before = np.full(len(ids.records), bos is not None) & (ids.ids[ids.offsets[:-1]] != bos)
        after = np.full(len(ids.records), eos is not None) & (ids.ids[ids.offsets[1:] - 1] != eos)
        return self._tokens(source, ids, *_around(ids.ids, ids.offsets, (bos, before), (eos, after)))

    @functools.cached_property
    def _around_a_text(self) -> tuple[int | None, int | None]:
        """What stands before and behind a text: put there by the spec, or by the tokenizer's own post-processor."""
        bare, whole = (self._tokenizer.encode("a", add_special_tokens=own).ids for own in (False, True))
        at = next(i for i in range(len(whole)) if whole[i : i + len(bare)] == bare)
        before, after = whole[:at], whole[at + len(bare) :]
        if len(before) > 1 or len(after) > 1 or (whole and not bare):
            raise TokenizerError(
                f"this tokenizer puts {before} before and {after} behind a text, so it is not known what a document of "
                "token ids lacks. Use a source of text."
            )
        bos, eos = self.spec.add_bos, self.spec.add_eos
        return before[0] if before else bos, after[0] if after else eos

    def _tokens(self, source: int, of: Texts | Ids, ids: np.ndarray, offsets: np.ndarray) -> Tokens:
        origin = np.empty((len(of.records), 3), dtype=np.int64)
        origin[:, 0], origin[:, 1], origin[:, 2] = source, of.shard, of.records
        of.balance.tokens_in = len(ids)
        return Tokens.of_chunk(ids, offsets, origin, of.balance)

    def check(self, texts: list[str]) -> None:
        """Raise ``TokenizerError`` unless both back-ends give the same ids for all of ``texts``."""
        if self._fast is not None:
            self._fast(texts, np.arange(len(texts)))

    def _reference(self, texts: list[str]) -> fast.Flat:
        lists = [e.ids for e in self._tokenizer.encode_batch_fast(texts)]
        offsets = np.zeros(len(lists) + 1, dtype=np.int64)
        np.cumsum([len(ids) for ids in lists], out=offsets[1:])
        return np.fromiter(chain.from_iterable(lists), dtype=np.int32, count=int(offsets[-1])), offsets

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


def load_tokenizer(
    path: str, *, add_bos: bool = True, add_eos: bool = True, special_tokens_in_text: str = "plain"
) -> TokenizerSpec:
    """The tokenizer in a folder (``tokenizer.json``, ``tokenizer_config.json``), a file, or on the hub.

    ``path`` is a folder, a ``tokenizer.json`` file, or the name of a repository on the Hugging Face
    hub (downloaded by ``tokenizers``). BOS and EOS are those of ``tokenizer_config.json``. Raises
    ``TokenizerError``.
    """
    place = Path(path).expanduser()
    config_file = (place if place.is_dir() else place.parent) / "tokenizer_config.json"
    try:
        if place.is_dir():
            tokenizer = _from_folder(place)
        elif place.is_file():
            tokenizer = _tokenizers().Tokenizer.from_file(str(place))
        else:
            tokenizer = _tokenizers().Tokenizer.from_pretrained(path)
    except Exception as error:
        raise TokenizerError(
            f"tokenizer {path!r} cannot be loaded: {error}. Give a folder with tokenizer.json, that "
            "file itself, or the name of a hub repository that this machine can reach."
        ) from None
    try:
        config = json.loads(config_file.read_text("utf-8")) if config_file.is_file() else {}
    except ValueError as error:
        raise TokenizerError(f"{str(config_file)!r} is not valid JSON: {error}.") from None
    _check_config(config, config_file)
    return spec_of(tokenizer, config, add_bos=add_bos, add_eos=add_eos, special_tokens_in_text=special_tokens_in_text)


def _lines(file: Path) -> list[str]:
    """Not ``splitlines``: a vocabulary may have other line separators in its words."""
    return file.read_text("utf-8").split("\n")


def _from_folder(folder: Path) -> tokenizers.Tokenizer:
    """``tokenizer.json``; without it a vocabulary, put together as TorchTitan's HuggingFaceTokenizer does."""
    words, lines, merges = folder / "vocab.json", folder / "vocab.txt", folder / "merges.txt"
    library = _tokenizers()
    tokenizer: tokenizers.Tokenizer
    if (folder / "tokenizer.json").exists() or not (words.exists() or lines.exists()):
        tokenizer = library.Tokenizer.from_file(str(folder / "tokenizer.json"))
        return tokenizer
    if words.exists():
        vocabulary = json.loads(words.read_text("utf-8"))
    else:
        vocabulary = {line.strip(): i for i, line in enumerate(_lines(lines)) if line.strip()}
    if not merges.exists():
        tokenizer = library.Tokenizer(library.models.WordLevel(vocab=vocabulary, unk_token="[UNK]"))
        return tokenizer
    parts = [line.split() for line in _lines(merges) if not line.strip().startswith("#")]
    pairs = [(p[0], p[1]) for p in parts if len(p) >= 2]
    tokenizer = library.Tokenizer(library.models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    tokenizer.post_processor = library.processors.ByteLevel(trim_offsets=True)
    return tokenizer


_CONFIG_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


def _check_config(config: Any, file: Path) -> None:
    """Raise ``TokenizerError`` unless every token in ``tokenizer_config.json`` is a string, or a table with one."""
    decoder = config.get("added_tokens_decoder", {}) if isinstance(config, dict) else None
    if not isinstance(decoder, dict):
        raise TokenizerError(f"{str(file)!r} is not a tokenizer_config.json: it must be a table of settings.")
    stated = {key: config.get(key) for key in _CONFIG_TOKENS}
    for key, token in (*stated.items(), *((f"added_tokens_decoder.{k}", v) for k, v in decoder.items())):
        content = token.get("content") if isinstance(token, dict) else token
        if token is not None and not isinstance(content, str):
            raise TokenizerError(f"{str(file)!r}: {key} = {token!r} is neither a string nor a table with `content`.")


def spec_of(
    tokenizer: tokenizers.Tokenizer,
    config: dict[str, Any],
    *,
    add_bos: bool,
    add_eos: bool,
    special_tokens_in_text: str = "plain",
) -> TokenizerSpec:
    """The spec of a loaded tokenizer and its parsed ``tokenizer_config.json``."""
    listed = [token for token in config.get("added_tokens_decoder", {}).values() if isinstance(token, dict)]
    stated = [config.get(key) for key in _CONFIG_TOKENS] + listed
    tokenizer.add_special_tokens([_added_token(token) for token in stated if token is not None])
    bos, eos = (
        None if (token := _token(config, key)) is None else tokenizer.token_to_id(token)
        for key in ("bos_token", "eos_token")
    )
    return make_spec(
        tokenizer, bos, eos, add_bos=add_bos, add_eos=add_eos, special_tokens_in_text=special_tokens_in_text
    )


def make_spec(
    tokenizer: tokenizers.Tokenizer,
    bos: int | None,
    eos: int | None,
    *,
    add_bos: bool,
    add_eos: bool,
    special_tokens_in_text: str,
) -> TokenizerSpec:
    """Add BOS and EOS where asked, unless the tokenizer's post-processor does so itself."""
    if tokenizer.padding is not None:  # padding with EOS is not an EOS; the trainer's own object stays as it is
        tokenizer = _tokenizers().Tokenizer.from_str(tokenizer.to_str())
        tokenizer.no_padding()
    own = tokenizer.encode("").ids
    return TokenizerSpec(
        tokenizer.to_str(),
        bos if add_bos and bos not in own else None,
        eos if add_eos and eos not in own else None,
        special_tokens_in_text,
    )


def check_vocabulary(tokenize: Tokenize, vocab_size: int) -> None:
    """Raise ``TokenizerError`` if the tokenizer can give an id that the model has no row for."""
    if (largest := tokenize.largest_id()) >= vocab_size:
        raise TokenizerError(
            f"the tokenizer gives ids up to {largest}, but the model's vocabulary has {vocab_size} entries (ids 0 to "
            f"{vocab_size - 1}). Use the model's own tokenizer (model.hf_assets_path) or a model flavour with a "
            "larger vocabulary."
        )


def _token(config: dict[str, Any], key: str) -> str | None:
    value = config.get(key)
    return value.get("content") if isinstance(value, dict) else value


def _added_token(token: Any) -> Any:
    """A token of ``tokenizer_config.json``, a string or a table with flags, as TorchTitan reads it."""
    if not isinstance(token, dict):
        return _tokenizers().AddedToken(token, special=True)
    flags = {name: token.get(name, False) for name in ("single_word", "lstrip", "rstrip")}
    normalized, special = token.get("normalized", True), token.get("special", True)
    return _tokenizers().AddedToken(token["content"], normalized=normalized, special=special, **flags)


def _tokenizers() -> Any:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers

    return tokenizers
