"""The tokenizer of a folder: its files, and which of its tokens begin and end a document.

TorchTitan reads ``tokenizer_config.json`` alone, and its releases differ in what they take from it. Here the roles
come from the files, so that one folder gives one stream on every release. BOS and EOS are looked for in this order,
until EOS is named:

1. ``tokenizer_config.json``: ``bos_token``, ``eos_token``, a string or a table with ``content``;
2. ``special_tokens_map.json``: the same;
3. ``config.json`` and ``generation_config.json`` together: ``bos_token_id``, ``eos_token_id``. Of several ids the
   first one counts that ends documents in a known family (``DOCUMENT_ENDS``), else the first.

A key with the value null says that there is none. The search also stops behind the first file if the tokenizer's own
template puts a token behind every text. BOS counts only if it is named by a file that was looked at: a model's
``bos_token_id`` is not used where the tokenizer's files name EOS and no BOS (Falcon, Qwen).
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import TokenizerError
from .tokenize import TokenizerSpec, library, template

if TYPE_CHECKING:
    import tokenizers

CONFIG, SPECIAL_MAP = "tokenizer_config.json", "special_tokens_map.json"
MODEL_FILES = ("config.json", "generation_config.json")
FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt", CONFIG, SPECIAL_MAP, *MODEL_FILES)
"""All files that are read; of a repository on the hub they are what is downloaded."""

DOCUMENT_ENDS = ("<|endoftext|>", "<|end_of_text|>", "<\uff5cend▁of▁sentence\uff5c>", "</s>", "<eos>")
"""Tokens that end a document and not a turn of a chat: GPT-2 and Qwen, Llama 3, DeepSeek, Llama 2 and T5, Gemma."""

_CONFIG_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_LFS = b"version https://git-lfs"


@dataclass(frozen=True, kw_only=True, slots=True)
class Roles:
    """The ids that begin and end a document, and which files say so, in words."""

    bos: int | None
    eos: int | None
    told: str


def load_tokenizer(
    path: str, *, add_bos: bool = True, add_eos: bool = True, special_tokens_in_text: str = "plain"
) -> TokenizerSpec:
    """The tokenizer in a folder, in a ``tokenizer.json`` with the other files beside it, or on the hub.

    On the hub, ``path`` is the name of a repository, of which ``huggingface_hub`` downloads ``FILES``. Raises
    ``TokenizerError``.
    """
    tokenizer, folder = open_tokenizer(path)
    return spec_of(tokenizer, folder, add_bos=add_bos, add_eos=add_eos, special_tokens_in_text=special_tokens_in_text)


def open_tokenizer(path: str) -> tuple[tokenizers.Tokenizer, Path]:
    """The tokenizer of ``load_tokenizer`` as its own file has it, and the folder with the other files."""
    if (why := unusable(path)) is not None and (_is_there(path) or not _HUB_NAME.fullmatch(path)):
        raise TokenizerError(f"tokenizer {path!r} cannot be loaded: {why}")
    try:
        place = Path(path).expanduser() if why is None else _from_hub(path)
        folder = place if place.is_dir() else place.parent
        tokenizer = _from_folder(place) if place.is_dir() else library().Tokenizer.from_file(str(place))
    except Exception as error:
        more = "" if why is None else f" As a folder: {why}"
        raise TokenizerError(
            f"tokenizer {path!r} cannot be loaded: {error}. Give a folder with tokenizer.json, that "
            f"file itself, or the name of a hub repository that this machine can reach.{more}"
        ) from None
    return tokenizer, folder


def unusable(path: str) -> str | None:
    """Why there is no tokenizer in a folder or file, with the way out; None if its files look like one."""
    try:
        return _unusable(path, Path(path).expanduser())
    except (OSError, RuntimeError) as error:
        return f"it cannot be read: {error}."


def _unusable(path: str, place: Path) -> str | None:
    if not place.exists():
        return f"there is no such folder; it was looked for at {str(place.absolute())!r}."
    files = [place] if place.is_file() else [place / name for name in FILES[:3] if (place / name).is_file()]
    if files:
        with files[0].open("rb") as file:
            pointer = file.read(len(_LFS)) == _LFS
        return f"{str(files[0])!r} is a Git LFS pointer and not the file. Fetch it: git lfs pull." if pointer else None
    if models := sorted(f.name for f in place.iterdir() if f.suffix in (".model", ".tiktoken") or "tekken" in f.name):
        return (
            f"the folder has {models[0]!r}, a SentencePiece or tiktoken model, and no tokenizer.json, which is what is "
            "read. Write it once, with the packages transformers, sentencepiece and tiktoken: "
            f'python -c "from transformers import AutoTokenizer as A; A.from_pretrained({path!r})'
            f'.save_pretrained({path!r})"'
        )
    return "the folder has no tokenizer.json, and no vocab.json or vocab.txt either."


def _is_there(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (OSError, RuntimeError):  # something is, though it cannot be read
        return True


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download  # tokenizers brings it; only a hub name needs it

    return Path(snapshot_download(name, allow_patterns=list(FILES)))


def _lines(file: Path) -> list[str]:
    """Not ``splitlines``: a vocabulary may have other line separators in its words."""
    return file.read_text("utf-8").split("\n")


def _from_folder(folder: Path) -> tokenizers.Tokenizer:
    """``tokenizer.json``; without it a vocabulary, put together as TorchTitan's HuggingFaceTokenizer does."""
    words, lines, merges = folder / "vocab.json", folder / "vocab.txt", folder / "merges.txt"
    tokenizer: tokenizers.Tokenizer
    if (folder / "tokenizer.json").exists() or not (words.exists() or lines.exists()):
        tokenizer = library().Tokenizer.from_file(str(folder / "tokenizer.json"))
        return tokenizer
    if words.exists():
        vocabulary = json.loads(words.read_text("utf-8"))
    else:
        vocabulary = {line.strip(): i for i, line in enumerate(_lines(lines)) if line.strip()}
    if not merges.exists():
        tokenizer = library().Tokenizer(library().models.WordLevel(vocab=vocabulary, unk_token="[UNK]"))
        return tokenizer
    parts = [line.split() for line in _lines(merges) if not line.strip().startswith("#")]
    pairs = [(p[0], p[1]) for p in parts if len(p) >= 2]
    tokenizer = library().Tokenizer(library().models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = library().pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library().decoders.ByteLevel()
    tokenizer.post_processor = library().processors.ByteLevel(trim_offsets=True)
    return tokenizer


# ---- what the files beside it say


def _table(file: Path) -> dict[str, Any]:
    """A JSON file of settings; {} if there is none. Raises ``TokenizerError``."""
    try:
        found = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{str(file)!r} is not valid JSON: {error}.") from None
    if not isinstance(found, dict):
        raise TokenizerError(f"{str(file)!r} is not a {file.name}: it must be a table of settings.")
    return found


def _tokens_table(file: Path) -> dict[str, Any]:
    """A ``_table`` in which every token is a string, or a table with one. Raises ``TokenizerError``."""
    config = _table(file)
    decoder = config.get("added_tokens_decoder", {})
    if not isinstance(decoder, dict):
        raise TokenizerError(f"{str(file)!r}: added_tokens_decoder = {decoder!r} is not a table of tokens.")
    stated = {key: config.get(key) for key in _CONFIG_TOKENS}
    for key, token in (*stated.items(), *((f"added_tokens_decoder.{k}", v) for k, v in decoder.items())):
        if token is not None and not isinstance(_content(token), str):
            raise TokenizerError(f"{str(file)!r}: {key} = {token!r} is neither a string nor a table with `content`.")
    return config


def _content(token: Any) -> Any:
    return token.get("content") if isinstance(token, dict) else token


def spec_of(
    tokenizer: tokenizers.Tokenizer,
    folder: Path,
    *,
    add_bos: bool,
    add_eos: bool,
    special_tokens_in_text: str = "plain",
) -> TokenizerSpec:
    """The spec of a loaded tokenizer with the files of ``folder`` beside it. Raises ``TokenizerError``."""
    _add_tokens(tokenizer, _tokens_table(folder / CONFIG))
    roles = find_roles(tokenizer, folder)
    return make_spec(tokenizer, roles, add_bos=add_bos, add_eos=add_eos, special_tokens_in_text=special_tokens_in_text)


def _add_tokens(tokenizer: tokenizers.Tokenizer, config: dict[str, Any]) -> None:
    """Add the tokens of ``tokenizer_config.json`` with their flags, in TorchTitan's order, which numbers new ones.

    TorchTitan makes every one of them special. Here a token is special if it has a role, or if either file marks it
    so: others, such as ``<think>``, are one token wherever a text has them.
    """
    known = {token.content: token.special for token in tokenizer.get_added_tokens_decoder().values()}
    roles = [token for key in _CONFIG_TOKENS if (token := config.get(key)) is not None]
    listed = [token for token in config.get("added_tokens_decoder", {}).values() if isinstance(token, dict)]
    special = {_content(token) for token in roles} | {content for content, marked in known.items() if marked}

    def marked(token: Any) -> bool:
        content = _content(token)
        return content in special or bool(token.get("special", content not in known))

    for is_special, tokens in itertools.groupby([*roles, *listed], marked):
        added = [_added_token(token, is_special) for token in tokens]
        (tokenizer.add_special_tokens if is_special else tokenizer.add_tokens)(added)


def _added_token(token: Any, special: bool) -> Any:
    """A token of ``tokenizer_config.json``, a string or a table with flags, as TorchTitan reads it."""
    if not isinstance(token, dict):
        return library().AddedToken(token, special=special)
    flags = {name: token.get(name, False) for name in ("single_word", "lstrip", "rstrip")}
    return library().AddedToken(token["content"], normalized=token.get("normalized", True), special=special, **flags)


def find_roles(tokenizer: tokenizers.Tokenizer, folder: Path) -> Roles:
    """BOS and EOS by the files of ``folder``, as this module's docstring has it. Raises ``TokenizerError``."""
    found: dict[str, tuple[int | None, str]] = {}
    for name in (CONFIG, SPECIAL_MAP):
        table = _tokens_table(folder / name)
        for role in ("bos", "eos"):
            if role not in found and f"{role}_token" in table:
                token = table[f"{role}_token"]
                found[role] = (None if token is None else _role_id(tokenizer, token)), name
        if "eos" in found or template(tokenizer)[1]:
            break
    else:
        for role, numbered in _model_roles(tokenizer, folder).items():
            found.setdefault(role, numbered)
    (bos, bos_by), (eos, eos_by) = (found.get(role, (None, "")) for role in ("bos", "eos"))
    told = [
        f"{name} by {by}" if i is not None else f"no {name} by {by}" if by else f"no {name} named"
        for name, i, by in (("BOS", bos, bos_by), ("EOS", eos, eos_by))
    ]
    return Roles(bos=bos, eos=eos, told=", ".join(told))


def _role_id(tokenizer: tokenizers.Tokenizer, token: Any) -> int | None:
    """The id of a token with a role, which is special from now on."""
    content = _content(token)
    if not any(t.special and t.content == content for t in tokenizer.get_added_tokens_decoder().values()):
        tokenizer.add_special_tokens([_added_token(token, special=True)])
    found: int | None = tokenizer.token_to_id(content)
    return found


def _model_roles(tokenizer: tokenizers.Tokenizer, folder: Path) -> dict[str, tuple[int | None, str]]:
    """The roles by the model's files, which name ids; one that the tokenizer does not have is passed over."""
    found: dict[str, tuple[int | None, str]] = {}
    for role in ("bos", "eos"):
        named = [
            (token, name)
            for name in MODEL_FILES
            for i in _ids(folder / name, f"{role}_token_id")
            if (token := tokenizer.id_to_token(i)) is not None
        ]
        if named:
            token, name = next((n for n in named if n[0] in DOCUMENT_ENDS), named[0])
            several = list(dict.fromkeys(t for t, _ in named))
            more = f" (of {', '.join(several)})" if len(several) > 1 else ""
            found[role] = _role_id(tokenizer, token), name + more
    return found


def _ids(file: Path, key: str) -> list[int]:
    """The ids under ``key``: one, a list or none; of a model that is more than text, those of its text part."""
    table = _table(file)
    text = table.get("text_config")
    value = table.get(key, text.get(key) if isinstance(text, dict) else None)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(i) is not int or i < 0 for i in ids):
        raise TokenizerError(f"{str(file)!r}: {key} = {value!r} is neither a token id nor a list of them.")
    return ids


def make_spec(
    tokenizer: tokenizers.Tokenizer, roles: Roles, *, add_bos: bool, add_eos: bool, special_tokens_in_text: str
) -> TokenizerSpec:
    """Add BOS and EOS where asked, unless the tokenizer's own template has BOS, or has EOS behind the text.

    So EOS ends a document too where the template has it before the text only (OPT, whose BOS it is).
    """
    if tokenizer.padding is not None:  # padding with EOS is not an EOS; the trainer's own object stays as it is
        tokenizer = library().Tokenizer.from_str(tokenizer.to_str())
        tokenizer.no_padding()
    before, after = template(tokenizer)
    return TokenizerSpec(
        tokenizer.to_str(),
        roles.bos if add_bos and roles.bos not in before + after else None,
        roles.eos if add_eos and roles.eos not in after else None,
        special_tokens_in_text,
        roles.told,
    )
