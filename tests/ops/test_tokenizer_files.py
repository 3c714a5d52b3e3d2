"""BOS and EOS of the folders that people have: laid out as the published ones, with a small vocabulary."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from tests.ops.test_tokenize import documents_of, texts
from tests.scenarios import tokenizer_folder
from torchtitan_zephon import TokenizerError
from torchtitan_zephon.ops.tokenize import Tokenize
from torchtitan_zephon.ops.tokenizer_files import load_tokenizer, unusable

Files = dict[str, Any]
TEXT = "the naïve way, 東京"


def byte_level(*special: str, plain: tuple[str, ...] = ()) -> tokenizers.Tokenizer:
    """A byte-level BPE with ``special`` tokens and ``plain`` added ones, behind its words."""
    data = json.loads((tokenizer_folder() / "tokenizer.json").read_text("utf-8"))
    data["added_tokens"] = []
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(data))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in plain])
    return tokenizer


def sentencepiece(*special: str) -> tokenizers.Tokenizer:
    """A BPE with byte fallback and spaces as U+2581, as converted from SentencePiece; ``special`` comes first."""
    words = [*special, *(f"<0x{n:02X}>" for n in range(256)), "▁", *"thenaïvewy,"]
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(words))}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return tokenizer


def unigram(*special: str) -> tokenizers.Tokenizer:
    """A Unigram model, as T5's."""
    scores = [*((token, 0.0) for token in special), ("▁", -2.0), *((c, -3.0) for c in "thenaïvwy,東京")]
    tokenizer = tokenizers.Tokenizer(models.Unigram(scores, unk_id=special.index("<unk>")))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def around(tokenizer: tokenizers.Tokenizer, single: str) -> tokenizers.Tokenizer:
    """``tokenizer`` with a template of its own."""
    special = [(token, tokenizer.token_to_id(token)) for token in single.split() if token != "$A"]
    template = processors.TemplateProcessing(single=single, special_tokens=special)
    own = tokenizer.post_processor
    tokenizer.post_processor = template if own is None else processors.Sequence([own, template])
    return tokenizer


def flagged(content: str, **flags: Any) -> dict[str, Any]:
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, **flags}


ENDOFTEXT = "<|endoftext|>"
LLAMA3 = ("<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")
DEEPSEEK = ("<\uff5cbegin▁of▁sentence\uff5c>", "<\uff5cend▁of▁sentence\uff5c>")
QWEN = (ENDOFTEXT, "<|im_start|>", "<|im_end|>")


def gpt2() -> tuple[tokenizers.Tokenizer, Files]:
    tokenizer = byte_level(ENDOFTEXT)
    one = tokenizer.token_to_id(ENDOFTEXT)
    model = {"bos_token_id": one, "eos_token_id": one}
    return tokenizer, {"tokenizer_config.json": {"model_max_length": 1024}, "config.json": model}


def neox() -> tuple[tokenizers.Tokenizer, Files]:
    named = {"bos_token": ENDOFTEXT, "eos_token": ENDOFTEXT, "unk_token": ENDOFTEXT, "add_prefix_space": False}
    return byte_level(ENDOFTEXT), {"tokenizer_config.json": named}


def opt() -> tuple[tokenizers.Tokenizer, Files]:
    named = {"bos_token": flagged("</s>", normalized=True), "eos_token": flagged("</s>", normalized=True)}
    return around(byte_level("</s>"), "</s> $A"), {"tokenizer_config.json": named}


def falcon() -> tuple[tokenizers.Tokenizer, Files]:
    tokenizer = byte_level(ENDOFTEXT)
    one = tokenizer.token_to_id(ENDOFTEXT)
    return tokenizer, {
        "tokenizer_config.json": {"eos_token": ENDOFTEXT},
        "special_tokens_map.json": {"eos_token": flagged(ENDOFTEXT)},
        "config.json": {"bos_token_id": one, "eos_token_id": one},
    }


def llama2() -> tuple[tokenizers.Tokenizer, Files]:
    named = {"bos_token": flagged("<s>"), "eos_token": flagged("</s>"), "unk_token": flagged("<unk>")}
    legacy = {"add_bos_token": True, "add_eos_token": False, "bos_token": {"__type": "AddedToken", **flagged("<s>")}}
    files = {"tokenizer_config.json": {**named, **legacy}, "special_tokens_map.json": named}
    return around(sentencepiece("<unk>", "<s>", "</s>"), "<s> $A"), files


def llama3() -> tuple[tokenizers.Tokenizer, Files]:
    tokenizer = around(byte_level(*LLAMA3), "<|begin_of_text|> $A")
    decoder = {str(tokenizer.token_to_id(token)): flagged(token, special=True) for token in LLAMA3}
    named = {"bos_token": LLAMA3[0], "eos_token": LLAMA3[1]}
    return tokenizer, {"tokenizer_config.json": {"added_tokens_decoder": decoder, **named}}


def llama3_by_its_model() -> tuple[tokenizers.Tokenizer, Files]:
    tokenizer, _ = llama3()
    ids = [tokenizer.token_to_id(token) for token in LLAMA3]
    model = {"bos_token_id": ids[0], "eos_token_id": [ids[3], ids[1], ids[2]]}
    return tokenizer, {"config.json": model, "generation_config.json": model}


def mistral() -> tuple[tokenizers.Tokenizer, Files]:
    decoder = {str(i): flagged(token, special=True) for i, token in enumerate(("<unk>", "<s>", "</s>"))}
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    files = {"tokenizer_config.json": {"add_bos_token": True, "added_tokens_decoder": decoder, **named}}
    return around(sentencepiece("<unk>", "<s>", "</s>"), "<s> $A"), files


def qwen2(**config: Any) -> tuple[tokenizers.Tokenizer, Files]:
    tokenizer = byte_level(*QWEN)
    ids = [tokenizer.token_to_id(token) for token in QWEN]
    decoder = {str(i): flagged(token, special=True) for i, token in zip(ids, QWEN, strict=True)}
    named = {"bos_token": None, "eos_token": ENDOFTEXT, "added_tokens_decoder": decoder}
    return tokenizer, {
        "tokenizer_config.json": {**named, **config},
        "config.json": {"bos_token_id": ids[0], "eos_token_id": ids[2]},
        "generation_config.json": {"bos_token_id": ids[0], "eos_token_id": [ids[2], ids[0]]},
    }


def qwen2_by_its_model() -> tuple[tokenizers.Tokenizer, Files]:
    tokenizer, files = qwen2()
    return tokenizer, {**files, "tokenizer_config.json": {"bos_token": None}}


def gemma() -> tuple[tokenizers.Tokenizer, Files]:
    tokenizer = around(sentencepiece("<pad>", "<eos>", "<bos>", "<unk>", "<end_of_turn>"), "<bos> $A")
    named = {"bos_token": flagged("<bos>"), "eos_token": flagged("<eos>")}
    model = {"text_config": {"bos_token_id": 2}, "eos_token_id": [1, 4]}
    return tokenizer, {"special_tokens_map.json": named, "config.json": model}


def gemma_by_its_model() -> tuple[tokenizers.Tokenizer, Files]:
    tokenizer, files = gemma()
    return tokenizer, {"config.json": {**files["config.json"], "eos_token_id": [4, 1]}}


def deepseek() -> tuple[tokenizers.Tokenizer, Files]:
    tables = [{"__type": "AddedToken", **flagged(token, normalized=True)} for token in DEEPSEEK]
    named = {"add_bos_token": True, "add_eos_token": False, "bos_token": tables[0], "eos_token": tables[1]}
    return around(byte_level(*DEEPSEEK), f"{DEEPSEEK[0]} $A"), {"tokenizer_config.json": named}


def t5() -> tuple[tokenizers.Tokenizer, Files]:
    named = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    model = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    files = {"tokenizer_config.json": named, "special_tokens_map.json": named, "config.json": model}
    return around(unigram("<pad>", "</s>", "<unk>"), "$A </s>"), files


def t5_by_its_template() -> tuple[tokenizers.Tokenizer, Files]:
    tokenizer, _ = t5()
    return tokenizer, {"config.json": {"bos_token_id": 0, "eos_token_id": 0}}


def bert() -> tuple[tokenizers.Tokenizer, Files]:
    named = {"cls_token": "[CLS]", "sep_token": "[SEP]", "do_lower_case": True}
    return around(byte_level("[CLS]", "[SEP]"), "[CLS] $A [SEP]"), {"tokenizer_config.json": named}


def glm() -> tuple[tokenizers.Tokenizer, Files]:
    named = {"bos_token": "<s>", "eos_token": ENDOFTEXT}
    return around(byte_level("[gMASK]", "<sop>", "<s>", ENDOFTEXT), "[gMASK] <sop> $A <sop>"), {
        "tokenizer_config.json": named
    }


LAYOUTS = {
    gpt2: (f"{ENDOFTEXT} text {ENDOFTEXT}", "BOS by config.json, EOS by config.json"),
    neox: (f"{ENDOFTEXT} text {ENDOFTEXT}", "BOS by tokenizer_config.json, EOS by tokenizer_config.json"),
    opt: ("</s> text </s>", "BOS by tokenizer_config.json, EOS by tokenizer_config.json"),
    falcon: (f"text {ENDOFTEXT}", "no BOS named, EOS by tokenizer_config.json"),
    llama2: ("<s> text </s>", "BOS by tokenizer_config.json, EOS by tokenizer_config.json"),
    llama3: ("<|begin_of_text|> text <|end_of_text|>", "BOS by tokenizer_config.json, EOS by tokenizer_config.json"),
    llama3_by_its_model: (
        "<|begin_of_text|> text <|end_of_text|>",
        "BOS by config.json, EOS by config.json (of <|eot_id|>, <|end_of_text|>, <|eom_id|>)",
    ),
    mistral: ("<s> text </s>", "BOS by tokenizer_config.json, EOS by tokenizer_config.json"),
    qwen2: (f"text {ENDOFTEXT}", "no BOS by tokenizer_config.json, EOS by tokenizer_config.json"),
    qwen2_by_its_model: (
        f"text {ENDOFTEXT}",
        f"no BOS by tokenizer_config.json, EOS by generation_config.json (of <|im_end|>, {ENDOFTEXT})",
    ),
    gemma: ("<bos> text <eos>", "BOS by special_tokens_map.json, EOS by special_tokens_map.json"),
    gemma_by_its_model: ("<bos> text <eos>", "BOS by config.json, EOS by config.json (of <end_of_turn>, <eos>)"),
    deepseek: (f"{DEEPSEEK[0]} text {DEEPSEEK[1]}", "BOS by tokenizer_config.json, EOS by tokenizer_config.json"),
    t5: ("text </s>", "no BOS named, EOS by tokenizer_config.json"),
    t5_by_its_template: ("text </s>", "no BOS named, no EOS named"),
    glm: (f"<s> [gMASK] <sop> text <sop> {ENDOFTEXT}", "BOS by tokenizer_config.json, EOS by tokenizer_config.json"),
    bert: ("[CLS] text [SEP]", "no BOS named, no EOS named"),
}
"""A published layout: how a document is read, and which files say so."""


def save(folder: Path, tokenizer: tokenizers.Tokenizer, files: Files) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), "utf-8")
    return folder


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_what_stands_around_a_document_is_found_where_the_published_folder_has_it(layout: Any, tmp_path: Path) -> None:
    tokenizer, files = layout()
    text = tokenizer.encode(TEXT, add_special_tokens=False).ids
    spec = load_tokenizer(str(save(tmp_path, tokenizer, files)))
    document, roles = LAYOUTS[layout]
    assert (Tokenize(spec).document, spec.roles) == (document, roles)
    words = document.split(" ")
    before, after = words[: words.index("text")], words[words.index("text") + 1 :]
    expected = [tokenizer.token_to_id(t) for t in before] + text + [tokenizer.token_to_id(t) for t in after]
    assert documents_of(spec, TEXT) == [expected]


@pytest.mark.parametrize(
    ("files", "document", "roles"),
    [
        ({}, "text", "no BOS named, no EOS named"),
        ({"tokenizer_config.json": {"eos_token": None}, "config.json": {"eos_token_id": 1}}, "text", "no EOS by tok"),
        ({"tokenizer_config.json": {"bos_token": "<s>"}, "config.json": {"eos_token_id": 7}}, "<s> text {7}", "con"),
        (
            {
                "tokenizer_config.json": {"eos_token": "</s>"},
                "special_tokens_map.json": {"bos_token": "<s>", "eos_token": "<x>"},
            },
            "text </s>",
            "no BOS named, EOS by tokenizer_config.json",
        ),
        (
            {"special_tokens_map.json": {"eos_token": "</s>"}, "config.json": {"bos_token_id": 3, "eos_token_id": 4}},
            "text </s>",
            "no BOS named, EOS by special_tokens_map.json",
        ),
        ({"config.json": {"eos_token_id": 99_999}, "generation_config.json": {"eos_token_id": 7}}, "text {7}", "gen"),
        ({"config.json": {"eos_token_id": [8, 7]}}, "text {8}", "EOS by config.json (of "),
        ({"config.json": {"eos_token_id": None}}, "text", "no EOS named"),
    ],
    ids=[
        "no file",
        "null is a statement",
        "the model's id where the tokenizer names none",
        "the first file that names EOS ends the search",
        "the model's ids come last",
        "an id that the tokenizer lacks is passed over",
        "the first of several unknown ends",
        "null of the model",
    ],
)
def test_the_files_are_asked_in_their_order(files: Files, document: str, roles: str, tmp_path: Path) -> None:
    tokenizer = byte_level("<s>", "</s>", "<x>")
    names = {f"{{{i}}}": tokenizer.id_to_token(i) for i in (7, 8)}
    spec = load_tokenizer(str(save(tmp_path, tokenizer, files)))
    expected = " ".join(names.get(part, part) for part in document.split(" "))
    assert Tokenize(spec).document == expected
    assert roles in spec.roles


def test_a_role_that_is_a_word_of_the_model_becomes_a_special_token(tmp_path: Path) -> None:
    tokenizer = byte_level()
    word = tokenizer.id_to_token(300)
    spec = load_tokenizer(str(save(tmp_path, tokenizer, {"special_tokens_map.json": {"eos_token": word}})))
    assert spec.add_eos == 300
    reading = tokenizers.Tokenizer.from_str(spec.serialized)
    assert reading.get_added_tokens_decoder()[300].special


@pytest.mark.parametrize("listed", [True, False], ids=["in the config", "in tokenizer.json"])
@pytest.mark.parametrize("both", [True, False], ids=["in both files", "in one"])
@pytest.mark.parametrize("wanted", ["hf", "auto"])
def test_special_is_what_is_marked_so_whichever_file_lists_it(
    listed: bool, both: bool, wanted: Any, tmp_path: Path
) -> None:
    own = ("<think>",) if both or not listed else ()
    tokenizer = byte_level(ENDOFTEXT, "<|im_end|>", plain=own)
    decoder = {"390": flagged("<think>", special=False), "391": flagged("<|im_end|>", special=True)}
    config: Files = {"eos_token": ENDOFTEXT, **({"added_tokens_decoder": decoder} if both or listed else {})}
    folder = str(save(tmp_path, tokenizer, {"tokenizer_config.json": config}))
    text = f"a<think>b<|im_end|>c{ENDOFTEXT}"
    plain, parsed = (Tokenize(load_tokenizer(folder, special_tokens_in_text=way), wanted) for way in ("plain", "parse"))
    assert plain.backend == ("fastokens" if wanted == "auto" else "hf"), plain.backend_text
    reading = tokenizers.Tokenizer.from_str(plain.spec.serialized)
    think, turn, end = (reading.token_to_id(t) for t in ("<think>", "<|im_end|>", ENDOFTEXT))
    found = [tokenize(texts(text)).ids.tolist() for tokenize in (plain, parsed)]
    assert [ids.count(think) for ids in found] == [1, 1]
    assert [ids.count(turn) for ids in found] == [0, 1]
    assert [ids.count(end) for ids in found] == [1, 2]  # the document's own end besides


@pytest.mark.parametrize("stated", [{"special": False}, {}], ids=["marked not special", "not marked"])
def test_a_token_that_either_file_marks_special_or_that_has_a_role_is_special(stated: Any, tmp_path: Path) -> None:
    tokenizer = byte_level("<|im_end|>")
    decoder = {"1": flagged("<|im_end|>", **stated), "2": flagged("<|stop|>", **stated)}
    config = {"eos_token": "<|stop|>", "added_tokens_decoder": decoder}
    spec = load_tokenizer(str(save(tmp_path, tokenizer, {"tokenizer_config.json": config})))
    added = tokenizers.Tokenizer.from_str(spec.serialized).get_added_tokens_decoder().values()
    assert {token.content: token.special for token in added} == {"<|im_end|>": True, "<|stop|>": True}


# ---- what cannot be loaded


@pytest.mark.parametrize("name", ["tokenizer.model", "spiece.model", "tekken.json", "qwen.tiktoken"])
def test_a_folder_with_a_sentencepiece_model_alone_says_how_to_write_tokenizer_json(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\n\x0e\n\x05<unk>")
    (tmp_path / "tokenizer_config.json").write_text("{}", "utf-8")
    with pytest.raises(TokenizerError, match=rf"'{name}', a SentencePiece or tiktoken model.*save_pretrained"):
        load_tokenizer(str(tmp_path))


def test_a_folder_that_is_missing_is_refused_with_where_it_was_looked_for(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "such"
    with pytest.raises(TokenizerError, match=rf"{missing}' cannot be loaded: there is no such folder.*{missing}"):
        load_tokenizer(str(missing))


def test_a_git_lfs_pointer_is_refused_as_one(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 9\n")
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        with pytest.raises(TokenizerError, match=r"tokenizer\.json' is a Git LFS pointer.*git lfs pull"):
            load_tokenizer(str(path))


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").symlink_to(tmp_path / "tokenizer.json")
    with pytest.raises(TokenizerError, match="cannot be loaded"):
        load_tokenizer(str(tmp_path))
    assert unusable(str(tokenizer_folder())) is None


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("special_tokens_map.json", '{"eos_token": 5}', "eos_token = 5 is neither a string nor a table"),
        ("special_tokens_map.json", "{", "is not valid JSON"),
        ("config.json", '{"eos_token_id": "</s>"}', "eos_token_id = '</s>' is neither a token id nor a list of them"),
        ("config.json", '{"eos_token_id": [true]}', r"eos_token_id = \[True\] is neither"),
        ("generation_config.json", "[]", "must be a table of settings"),
        ("tokenizer_config.json", '{"added_tokens_decoder": []}', r"added_tokens_decoder = \[\] is not a table"),
    ],
)
def test_a_file_of_another_shape_is_refused_by_name(name: str, content: str, problem: str, tmp_path: Path) -> None:
    save(tmp_path, byte_level("</s>"), {name: None})
    (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(TokenizerError, match=rf"{name}'.*{problem}"):
        load_tokenizer(str(tmp_path))


def test_a_file_of_the_model_that_is_not_needed_is_not_read(tmp_path: Path) -> None:
    save(tmp_path, byte_level("</s>"), {"tokenizer_config.json": {"eos_token": "</s>"}})
    (tmp_path / "config.json").write_text("{", "utf-8")
    assert Tokenize(load_tokenizer(str(tmp_path))).document == "text </s>"


# ---- on the hub


def test_a_repository_on_the_hub_brings_the_files_with_the_roles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the hub's client keeps a download; nothing is fetched."""
    tokenizer, files = gpt2()
    folder = tmp_path / "models--openai-community--gpt2"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    save(folder / "snapshots" / "abc", tokenizer, files)
    here = tmp_path / "here"  # whose own tokenizer_config.json is another tokenizer's
    shutil.copytree(tokenizer_folder(), here)
    monkeypatch.chdir(here)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    spec = load_tokenizer("openai-community/gpt2")
    assert Tokenize(spec).document == f"{ENDOFTEXT} text {ENDOFTEXT}"
    with pytest.raises(TokenizerError, match=r"'openai-community/gpt3' cannot be loaded.*As a folder: there is no"):
        load_tokenizer("openai-community/gpt3")
