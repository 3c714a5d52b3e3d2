"""A stand-in for the package `tokenizers` where that does not install: one token a byte, nothing learned.

What flows in: the calls that the engine and `tests/scenarios.py` make. What flows out: ids that are the same for the
same text and reach up to the vocabulary size asked for. It is there to run the engine, its tests, and benchmarks of
sources that hold ids, on interpreters that `tokenizers` is not made for; say so with every result. With this folder
in front on PYTHONPATH it is found in place of the package.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class AddedToken:
    def __init__(self, content: str, **flags: bool) -> None:
        self.content = content


class Tokenizer:
    """Reads a vocabulary from ``tokenizer.json`` and keeps its special tokens; the lowest other ids are the bytes'."""

    padding = None

    def __init__(self, model: Any = None) -> None:
        self.vocabulary: dict[str, int] = dict(getattr(model, "vocab", {}))
        self.special: dict[str, int] = {}
        self.encode_special_tokens = False

    @classmethod
    def from_str(cls, text: str) -> Tokenizer:
        made, data = cls(), json.loads(text)
        made.vocabulary = data["model"]["vocab"]
        made.special = {token["content"]: token["id"] for token in data.get("added_tokens", [])}
        return made

    @classmethod
    def from_file(cls, path: str) -> Tokenizer:
        return cls.from_str(Path(path).read_text("utf-8"))

    def to_str(self) -> str:
        added = [{"id": i, "content": content} for content, i in self.special.items()]
        return json.dumps({"added_tokens": added, "model": {"type": "Bytes", "vocab": self.vocabulary}})

    def save(self, path: str) -> None:
        Path(path).write_text(self.to_str(), "utf-8")

    def train_from_iterator(self, texts: Any, trainer: Any) -> None:
        self.special = {token: i for i, token in enumerate(trainer.special_tokens)}
        self.vocabulary = {f"token {i}": i for i in range(len(self.special), trainer.vocab_size)}

    def get_vocab(self, with_added_tokens: bool = True) -> dict[str, int]:
        return {**self.vocabulary, **self.special}

    def token_to_id(self, token: str) -> int | None:
        return self.get_vocab().get(token)

    def add_special_tokens(self, tokens: list[AddedToken]) -> None:
        for token in tokens:
            known = self.get_vocab()
            self.special.setdefault(token.content, known.get(token.content, max(known.values(), default=-1) + 1))

    def no_truncation(self) -> None:
        pass

    no_padding = no_truncation

    def encode(self, text: str, add_special_tokens: bool = True) -> SimpleNamespace:
        taken = set(self.special.values())
        of_byte = [i for i in range(256 + len(taken)) if i not in taken]
        parts = [text]
        if self.special and not self.encode_special_tokens:
            parts = re.split(f"({'|'.join(map(re.escape, self.special))})", text)
        ids: list[int] = []
        for k, part in enumerate(parts):
            ids += [self.special[part]] if k % 2 else [of_byte[b] for b in part.encode()]
        return SimpleNamespace(ids=ids)

    def encode_batch_fast(self, texts: list[str], add_special_tokens: bool = True) -> list[SimpleNamespace]:
        return [self.encode(text) for text in texts]

    encode_batch = encode_batch_fast


class _Part:
    """A model, pre-tokenizer, decoder or trainer: what it was made with, and no more."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        self.__dict__.update(settings)

    @staticmethod
    def alphabet() -> list[str]:
        return []


models = SimpleNamespace(BPE=_Part, WordLevel=_Part)
pre_tokenizers = SimpleNamespace(ByteLevel=_Part)
decoders = SimpleNamespace(ByteLevel=_Part)
processors = SimpleNamespace(ByteLevel=_Part)
trainers = SimpleNamespace(BpeTrainer=_Part)
