"""Every error a user can cause. Each message says what, which value, why, and the way out.

::

    ZephonError(ValueError)
    ├── ConfigError            a setting that cannot work, or a key that does not exist
    ├── SourceError            a path, a file or a manifest that cannot feed the stream
    │   └── RecordError        one record of one shard (carries source, shard, place)
    ├── TokenizerError         a tokenizer that is missing or does not fit the model
    ├── FunctionError          a user's map or filter function failed (carries the record)
    ├── RunnerError            the loader's own process died, or cannot be had
    └── StateError             a checkpoint that cannot be continued from
        ├── RecipeChangedError the recipe differs from the checkpoint's, field by field
        └── ReplayError        the replayed data is not what was trained on

They derive from ``ValueError`` so that code which knows nothing of this package still
treats them as bad input. ``assert`` is kept for our own mistakes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_SECRET = (
    r"x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential)|awsaccesskeyid|googleaccessid|"
    r"signature|sig|key-pair-id|policy|(?:access_|session_|security_|refresh_|id_|hf_)?token|api_?key|"
    r"account_?key|(?:client_|aws_)?secret(?:_access)?(?:_?key)?|password|private_key"
)
_REDACTED = (
    (re.compile(r"(https?://)[^/@\s'\"]+@", re.I), r"\1***@"),
    (re.compile(r"(\w+://)[^/@\s'\":]+:(?!\d+/)[^@\s'\"]*@"), r"\1***@"),
    (re.compile(r"(https?://[^\s'\"<>?]*\?)[^\s'\"<>]+", re.I), r"\1***"),
    (re.compile(r"\b(bearer|basic|aws4-hmac-sha256)\s+[^\s'\",;][^'\"\n;]*", re.I), r"\1 ***"),
    (re.compile(rf"(?<![\w-])({_SECRET})(['\"]\s*:\s*['\"]?|\s*=\s*['\"]?)[^\s'\"&;,<>]+", re.I), r"\1\2***"),
    (re.compile(r"\b(?:hf_[A-Za-z0-9]{8,}|A[KS]IA[A-Z0-9]{12,}|ya29\.[\w.-]+|eyJ[\w-]+\.[\w-]+\.[\w-]*)"), "***"),
)


def redacted(text: str) -> str:
    """``text`` without what opens a door: passwords in a URL, the queries of links (signed ones), keys and tokens."""
    for shape, replacement in _REDACTED:
        text = shape.sub(replacement, text)
    return text


class ZephonError(ValueError):
    """Base of all errors raised on purpose by this package. Their texts hold no secret, whatever they quote."""

    of_all_ranks = False
    """Whether every rank of the job raises the same error at the same place."""

    def __init__(self, *texts: str) -> None:
        super().__init__(*map(redacted, texts))


class ConfigError(ZephonError):
    """A setting that cannot work, or a key that does not exist; ``ConfigError(a, b)`` tells of two such problems."""

    def __str__(self) -> str:
        return (
            str(self.args[0]) if len(self.args) == 1 else f"there are {len(self.args)} problems.{numbered(self.args)}"
        )


class SourceError(ZephonError):
    """A path, a file or a manifest that cannot feed the stream."""


class RecordError(SourceError):
    """One bad record. ``source``, ``shard`` (relative path) and ``place`` say which."""

    def __init__(self, problem: str, *, source: str, shard: str, place: str) -> None:
        super().__init__(f"source {source!r}, shard {shard!r}, {place}: {problem}")
        self.source, self.shard, self.place = source, shard, place


class TokenizerError(ZephonError):
    """A tokenizer that is missing or does not fit the model."""


class FunctionError(ZephonError):
    """A user's ``map`` or ``filter`` function failed; the cause is chained."""


class RunnerError(ZephonError):
    """The process of ``runner = "process"`` died, failed unexpectedly, or cannot be had."""


class StateError(ZephonError):
    """A checkpoint that cannot be continued from."""


class RecipeChangedError(StateError):
    """The recipe differs from the checkpoint's; ``changes`` lists ``field: old -> new``."""

    def __init__(self, message: str, changes: list[str]) -> None:
        super().__init__(message)
        self.changes = changes


class ReplayError(StateError):
    """The data replayed during a restore is not what was trained on."""


class Problems:
    """What independent checks refuse, each problem once, so that a user hears of all of them at once.

    ``with problems: check()`` notes the ``ZephonError`` of one check and continues behind it.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __enter__(self) -> Problems:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, ZephonError):
            return False
        for text in error.args if isinstance(error, ConfigError) else (str(error),):
            self.note(text)
        return True

    def note(self, text: str) -> int:
        """Add a problem unless it is known. Returns its number, from 1."""
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text) + 1

    def refuse(self) -> None:
        """Raise one ``ConfigError`` of all problems, if there are any."""
        if self.texts:
            raise ConfigError(*self.texts)


def numbered(texts: Iterable[str]) -> str:
    """Each text on a line of its own, numbered from 1."""
    return "".join(f"\n{n}. {text}" for n, text in enumerate(texts, 1))


def nearest(name: str, valid: Iterable[str]) -> str:
    """The hint for a misspelt ``name``: the nearest valid one, or all of them."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}?" if close else f"Valid: {', '.join(names)}."
