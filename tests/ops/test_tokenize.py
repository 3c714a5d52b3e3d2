"""Tokenising: one BOS and one EOS a document, text that stays text, ids of any size, columns that add up."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from tests.scenarios import BOS, EOS, texts_of, tokenizer_folder
from tests.strategies import texts_at
from torchtitan_zephon import TokenizerError
from torchtitan_zephon.balance import Read
from torchtitan_zephon.ops import tokenizer_files
from torchtitan_zephon.ops.tokenize import Tokenize, TokenizerSpec, check_vocabulary
from torchtitan_zephon.ops.tokenizer_files import load_tokenizer
from torchtitan_zephon.records import Documents

WORDS = {BOS: 0, EOS: 1, "[UNK]": 2, "a": 3, "b": 4, "c": 70_000}
CONFIG = {"bos_token": BOS, "eos_token": {"content": EOS, "special": True}}


def word_tokenizer(bos: bool = False, eos: bool = False) -> tokenizers.Tokenizer:
    """One id a word; its post-processor adds BOS, EOS, both or none."""
    tokenizer = tokenizers.Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([BOS, EOS])
    if bos or eos:
        template = [BOS] * bos + ["$A"] + [EOS] * eos
        tokenizer.post_processor = processors.TemplateProcessing(
            single=" ".join(template), special_tokens=[(BOS, 0), (EOS, 1)]
        )
    return tokenizer


def spec_of(tokenizer: tokenizers.Tokenizer, config: Any, **settings: bool) -> TokenizerSpec:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
        return tokenizer_files.spec_of(tokenizer, Path(folder), **settings)  # type: ignore[arg-type]


def texts(*items: str, source: int = 0, shard: int = 0) -> Documents:
    return texts_at([(source, shard, 100 * place, 0) for place in range(len(items))], items)


def documents_of(spec: TokenizerSpec, *items: str) -> list[list[int]]:
    tokens = Tokenize(spec)(texts(*items))
    return [tokens.ids[a:b].tolist() for a, b in itertools.pairwise(tokens.offsets.tolist())]


@pytest.mark.parametrize("own_bos", [False, True])
@pytest.mark.parametrize("own_eos", [False, True])
@pytest.mark.parametrize("add_bos", [False, True])
@pytest.mark.parametrize("add_eos", [False, True])
def test_bos_and_eos_are_there_exactly_once_whoever_adds_them(
    own_bos: bool, own_eos: bool, add_bos: bool, add_eos: bool
) -> None:
    spec = spec_of(word_tokenizer(own_bos, own_eos), CONFIG, add_bos=add_bos, add_eos=add_eos)
    expected = [0] * (own_bos or add_bos) + [3, 4] + [1] * (own_eos or add_eos)
    assert documents_of(spec, "a b") == [expected]


def test_a_tokenizer_without_bos_or_eos_gets_none() -> None:
    spec = spec_of(word_tokenizer(), {"eos_token": None}, add_bos=True, add_eos=True)
    assert (spec.add_bos, spec.add_eos) == (None, None)
    assert documents_of(spec, "a") == [[3]]
    assert Tokenize(spec).padding_id == 0


def test_text_that_spells_a_special_token_is_plain_by_default_and_parsed_on_request() -> None:
    folder, text = tokenizer_folder(), f"one {EOS} two"
    plain, parsed = (
        documents_of(load_tokenizer(str(folder), special_tokens_in_text=way), text)[0] for way in ("plain", "parse")
    )
    assert plain.count(0) == plain.count(1) == 1
    assert parsed.count(1) == 2
    reading = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert reading.decode(plain[1:-1], skip_special_tokens=False) == text


def test_an_id_above_65535_survives() -> None:
    spec = spec_of(word_tokenizer(), CONFIG, add_bos=True, add_eos=True)
    tokens = Tokenize(spec)(texts("c a c"))
    assert tokens.ids.tolist() == [0, 70_000, 3, 70_000, 1]
    assert tokens.ids.dtype == np.int32
    assert Tokenize(spec).largest_id() == 70_000


def test_an_empty_chunk_gives_no_document() -> None:
    tokens = Tokenize(load_tokenizer(str(tokenizer_folder())))(texts())
    assert (len(tokens.ids), tokens.offsets.tolist(), tokens.origin.shape) == (0, [0], (0, 4))
    assert tokens.read == Read()


def test_every_document_knows_its_source_shard_and_place() -> None:
    tokens = Tokenize(load_tokenizer(str(tokenizer_folder())))(texts("one", "two", "three", source=5, shard=9))
    assert tokens.origin.tolist() == [[5, 9, 0, 0], [5, 9, 100, 0], [5, 9, 200, 0]]
    assert tokens.origin.dtype == tokens.offsets.dtype == np.int64


def test_a_chunk_is_tokenised_as_its_texts_one_by_one() -> None:
    folder = tokenizer_folder()
    alone = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    items = texts_of(50)
    expected = [[0, *alone.encode(text).ids, 1] for text in items]
    assert documents_of(load_tokenizer(str(folder)), *items) == expected


def test_tokens_are_counted() -> None:
    bare = spec_of(word_tokenizer(), {}, add_bos=False, add_eos=False)
    tokens = Tokenize(bare)(texts("a b", " ", "c"))  # the second has no token at all
    assert np.diff(tokens.offsets).tolist() == [2, 0, 1]
    assert tokens.read.tokens == 3


@pytest.mark.parametrize("add_bos", [False, True])
def test_truncation_and_padding_of_the_tokenizer_file_are_not_used(add_bos: bool) -> None:
    tokenizer = word_tokenizer()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(pad_id=3, pad_token="a", length=9)
    spec = spec_of(tokenizer, CONFIG, add_bos=add_bos, add_eos=True)
    assert documents_of(spec, "a b b a b", "b") == [[0] * add_bos + [3, 4, 4, 3, 4, 1], [0] * add_bos + [4, 1]]


def test_padding_with_eos_in_the_tokenizer_file_does_not_take_eos_away() -> None:
    tokenizer = word_tokenizer()
    tokenizer.enable_padding(pad_id=1, pad_token=EOS, length=9)
    spec = spec_of(tokenizer, CONFIG, add_bos=True, add_eos=True)
    assert documents_of(spec, "a") == [[0, 3, 1]]


def save(folder: Path, config: Any = CONFIG, **post_processor: bool) -> Path:
    word_tokenizer(**post_processor).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return folder


def test_a_folder_and_the_file_in_it_are_the_same_tokenizer(tmp_path: Path) -> None:
    save(tmp_path)
    from_folder, from_file = load_tokenizer(str(tmp_path)), load_tokenizer(str(tmp_path / "tokenizer.json"))
    assert from_folder == from_file
    assert from_folder.identity["add_bos"] == 0
    assert from_folder.identity["add_eos"] == 1


def test_a_special_token_named_only_in_the_config_gets_an_id(tmp_path: Path) -> None:
    save(tmp_path, {"bos_token": BOS, "eos_token": "<|stop|>"})
    spec = load_tokenizer(str(tmp_path))
    assert spec.add_eos == len(WORDS)
    assert documents_of(spec, "a") == [[0, 3, spec.add_eos]]


def test_the_identity_changes_with_everything_that_changes_ids(tmp_path: Path) -> None:
    folder = str(save(tmp_path))
    specs = [
        load_tokenizer(folder),
        load_tokenizer(folder, add_bos=False),
        load_tokenizer(folder, add_eos=False),
        load_tokenizer(folder, special_tokens_in_text="parse"),
    ]
    (tmp_path / "other").mkdir()
    specs.append(load_tokenizer(str(save(tmp_path / "other", bos=True))))
    assert len({json.dumps(spec.identity, sort_keys=True) for spec in specs}) == len(specs)
    assert load_tokenizer(folder).identity == specs[0].identity


def test_a_damaged_tokenizer_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}", "utf-8")
    with pytest.raises(TokenizerError, match=f"{tmp_path.name}.*cannot be loaded"):
        load_tokenizer(str(tmp_path))


def test_a_damaged_tokenizer_config_is_refused_by_name(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{", "utf-8")
    with pytest.raises(TokenizerError, match="tokenizer_config"):
        load_tokenizer(str(tmp_path))


def test_a_vocabulary_too_small_for_the_ids_is_refused_with_both_numbers() -> None:
    tokenize = Tokenize(spec_of(word_tokenizer(), CONFIG, add_bos=True, add_eos=True))
    check_vocabulary(tokenize, 70_001)
    with pytest.raises(TokenizerError, match=r"ids up to 70000.*has 70000 entries"):
        check_vocabulary(tokenize, 70_000)
