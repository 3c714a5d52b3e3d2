"""Characters that a tokenizer has no token for: counted where the model meets them, never where they are normalised."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from tests.ops.test_tokenizer_files import byte_level, sentencepiece, unigram
from tests.scenarios import texts_of
from torchtitan_zephon import TokenizerError
from torchtitan_zephon.ops.losses import LOOKED_AT, Losses, losses
from torchtitan_zephon.ops.tokenize import Tokenize, TokenizerSpec

LETTERS = "abcdefghijklmnopqrstuvwxyz"
HOSTILE = [
    "Grüße 東京 🚀",
    "e\u0301 \u00ad\x00\x07 a\tb\r\n\u2003 c",
    "ﬁ Ⅷ ½",
    "\ud7ff\U0010ffff",
    "ÀÉÎ naïve",
    "a " * 50,
]


def bpe(words: str = LETTERS, unknown: str | None = None) -> tokenizers.Tokenizer:
    """A BPE of characters, without bytes; words are split at white space, which has no token."""
    vocabulary = {word: i for i, word in enumerate([*words, "ab", *([unknown] if unknown else [])])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, [("a", "b")], unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def words(unknown: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def found(tokenizer: tokenizers.Tokenizer, texts: list[str], plain: bool = True) -> Losses:
    losing = losses(tokenizer.to_str(), plain, texts)
    assert losing is not None
    return losing


def test_characters_that_a_bpe_drops_are_counted_with_an_example() -> None:
    texts = ["abc", "naïve abé", "東京", "ab ab"]
    lost = found(bpe(), texts)
    assert bpe().encode(texts[1]).tokens == ["n", "a", "v", "e", "ab"]  # as if the text had never had them
    assert (lost.documents, lost.characters, lost.losing, lost.lost, lost.emptied) == (4, 19, 2, 4, 1)
    assert lost.unknown is None
    assert lost.example == ("ï", "naïve abé")
    assert lost.warning.startswith(
        "4 of 19 characters looked at (21.05%), in 2 of 4 documents, are dropped without a trace, as the tokenizer has "
        "no token for them: 'ï' in 'naïve abé'. Nothing else is left of 1 documents."
    )


def test_one_dropped_character_is_worth_a_warning_and_one_unknown_token_is_not() -> None:
    texts = [LETTERS * 40, "é"]
    assert "are dropped without a trace" in found(bpe(), texts).warning
    assert found(bpe(unknown="<unk>"), texts).lost == 1
    assert found(bpe(unknown="<unk>"), texts).warning == ""
    assert "become '<unk>'" in found(bpe(unknown="<unk>"), ["é" * 40, *texts]).warning


@pytest.mark.parametrize(
    ("tokenizer", "text", "lost"),
    [
        (words("[UNK]"), "a xyz b", 3),
        (unigram("<pad>", "</s>", "<unk>"), "the 東 ß", 1),
        (bpe(unknown="<unk>"), "ab é b", 1),
    ],
    ids=["WordLevel", "Unigram", "BPE"],
)
def test_what_becomes_the_unknown_token_is_counted_in_characters(tokenizer: Any, text: str, lost: int) -> None:
    assert found(tokenizer, [text]).lost == lost


def test_a_byte_level_tokenizer_that_lacks_bytes_is_found() -> None:
    data = json.loads(byte_level("</s>").to_str())
    del data["model"]["vocab"]["ð"]  # the first byte of an emoji
    data["model"]["merges"] = []
    lost = losses(json.dumps(data), True, ["a 🚀 b"])
    assert lost is not None
    assert (lost.lost, lost.example[0]) == (1, "🚀")


@pytest.mark.parametrize("tokenizer", [byte_level("</s>"), sentencepiece("<unk>", "<s>")], ids=["level", "fallback"])
def test_a_tokenizer_of_bytes_loses_nothing_and_is_not_looked_at(tokenizer: tokenizers.Tokenizer) -> None:
    assert losses(tokenizer.to_str(), True, HOSTILE) is None


@pytest.mark.parametrize(
    "normalizer",
    [
        normalizers.Lowercase(),
        normalizers.NFC(),
        normalizers.NFKC(),
        normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]),
        normalizers.BertNormalizer(),
        normalizers.Sequence([normalizers.Strip(), normalizers.Replace(tokenizers.Regex(r"\s+"), " ")]),
        normalizers.Replace("a", ""),
    ],
    ids=lambda normalizer: type(normalizer).__name__,
)
def test_what_a_normaliser_changes_or_leaves_out_is_no_loss(normalizer: Any) -> None:
    plain = bpe()
    plain.normalizer = normalizer
    normal = {c for text in HOSTILE for c in normalizer.normalize_str(text) if not c.isspace()}
    knowing = bpe(words="".join(sorted(normal | set(LETTERS))))
    knowing.normalizer = normalizer
    assert found(knowing, HOSTILE).lost == 0
    assert found(plain, ["東"]).lost == 1


@pytest.mark.parametrize(
    "splitter",
    [
        pre_tokenizers.Whitespace(),
        pre_tokenizers.BertPreTokenizer(),
        pre_tokenizers.CharDelimiterSplit(","),
        pre_tokenizers.Punctuation("removed"),
    ],
    ids=lambda splitter: type(splitter).__name__,
)
def test_what_a_splitter_leaves_out_is_no_loss(splitter: Any) -> None:
    tokenizer = bpe(words=LETTERS + " ,.")
    tokenizer.pre_tokenizer = splitter
    assert found(tokenizer, ["one, two.  three", "a\tb".replace("\t", " ")]).lost == 0


def test_an_added_token_in_a_text_is_no_loss_and_its_spelling_may_be() -> None:
    tokenizer = bpe()
    tokenizer.add_tokens([AddedToken("<think>", normalized=False, special=False)])
    tokenizer.add_special_tokens([AddedToken("<end>", normalized=False)])
    assert found(tokenizer, ["a<think>b"]).lost == 0
    assert found(tokenizer, ["a<end>b"], plain=False).lost == 0
    assert found(tokenizer, ["a<end>b"], plain=True).lost == 2  # the brackets


def test_whole_texts_spread_over_a_large_sample_are_looked_at() -> None:
    texts = [*texts_of(20_000), "é" * 3 * LOOKED_AT]
    lost = found(bpe(), texts)
    assert 1000 < lost.documents < 20_000
    assert LOOKED_AT // 4 < lost.characters < 3 * LOOKED_AT
    assert found(bpe(), []).warning == ""


def test_truncation_and_padding_of_the_file_are_not_used() -> None:
    tokenizer = bpe()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    assert found(tokenizer, ["abcdefé"]).lost == 1


@pytest.mark.parametrize(
    "tokenizer", [words("[GONE]"), tokenizers.Tokenizer(models.Unigram([("a", -1.0), ("b", -2.0)]))], ids=str
)
def test_a_tokenizer_that_fails_at_what_it_does_not_know_names_the_document(tokenizer: Any) -> None:
    from tests.ops.test_tokenize import texts

    tokenize = Tokenize(TokenizerSpec(tokenizer.to_str(), None, None))
    assert tokenize.losses(["a", "zz"]) == ""
    with pytest.raises(TokenizerError, match=r"cannot encode the document that begins 'zz top': .*unk.*a filter"):
        tokenize(texts("a", "zz top", "yy"))
