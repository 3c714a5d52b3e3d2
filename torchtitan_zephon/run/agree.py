"""Ranks that would not read the same data stop before the first batch, all with the same error.

What flows in: an ``Exchange`` and what this rank is going to read, or the error that kept it from finding out. What
flows out: nothing where all ranks agree. Otherwise every rank raises one and the same error, which names the odd rank
and the first difference. A rank that has failed takes part with its error, so that no rank waits for it in vain.

Agreement costs one exchange of about 500 bytes a rank: a hash for each table of the statement. Only where they differ,
further exchanges narrow it down, each with at most ``PARTS`` hashes or entries a rank: three for 100,000 entries.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from ..errors import ConfigError, FunctionError, RunnerError, SourceError, StateError, TokenizerError, ZephonError
from .statement import Statement, Table

Exchange = Callable[[bytes], list[bytes]]
"""Hands this rank's bytes to all ranks and returns everybody's, in the order of ranks.

All ranks call it equally often and in the same order, each in the thread that opens or reads its stream."""

PARTS = 64
"""Hashes, or entries, that a rank sends at a time where tables differ."""
MOST_LEVELS = 10
"""More would use up the 64 bits by which names are dealt to parts."""
LONGEST_ERROR = 4000
"""Characters of an error that travel to the other ranks."""
MOST_NAMED = 8

KINDS: dict[str, tuple[type[ZephonError], str]] = {
    "versions": (ConfigError, "Install the same versions on all nodes."),
    "recipe": (ConfigError, "Start all ranks with the same job, overrides and tokenizer files."),
    "shards": (
        SourceError,
        "Give all ranks the same files and start again. Their folders may differ, their content not.",
    ),
    "layout": (ConfigError, "Start all ranks with the same job and overrides."),
    "place": (StateError, "Let all ranks see the same checkpoint folder."),
    "estimate": (
        SourceError,
        "The same files gave other numbers of tokens: a map or filter function is not pure, or a file was being "
        "written.",
    ),
    "lanes": (StateError, "Let all ranks see the same checkpoint folder."),
}
"""A kind of table -> the error where ranks differ in it, and the way out. In this order differences are looked for:
causes before what follows from them."""

NO_DATA = "cannot read its data, so no rank begins"
_ERRORS = (ConfigError, SourceError, TokenizerError, FunctionError, RunnerError, StateError, ZephonError)
T = TypeVar("T")


def alone(data: bytes) -> list[bytes]:
    """The ``Exchange`` of a rank that has nobody to ask."""
    return [data]


def agree(exchange: Exchange, look: Callable[[], T], say: Callable[[T], Statement]) -> T:
    """What ``look`` finds, once ``say`` has made the same statement of it on all ranks.

    Raises the same ``ZephonError`` on every rank if they differ, or if ``look`` failed on one of them; only what is
    no ``ZephonError`` is raised as it is on the rank that has it.
    """
    if exchange is alone:
        return look()
    found: list[tuple[T, Statement]] = []

    def summary() -> dict[str, Any]:
        value = look()
        found.append((value, say(value)))
        return _summary(found[0][1])

    ranks, said = _gathered(exchange, summary)
    value, own = found[0]
    for kind in KINDS:
        if kind == "lanes":  # same on ranks of the same dp rank
            _check_places(ranks, [words["dp"] for words in said])
            ranks = ranks._replace(groups=[words["dp"] and words["dp"][0] for words in said])
        hashes = [tuple(words["tables"][kind]) for words in said]
        if ranks.differ(hashes):
            raise _difference(kind, ranks, _narrowed(exchange, ranks, own.table(kind), max(n for n, _ in hashes)))
    return value


def gather(exchange: Exchange, look: Callable[[], Any]) -> list[Any]:
    """What ``look`` returns on each rank, as JSON brings it; raises as ``agree`` does if it failed on one of them."""
    return [look()] if exchange is alone else _gathered(exchange, look)[1]


def _gathered(exchange: Exchange, look: Callable[[], Any]) -> tuple[Ranks, list[Any]]:
    own: dict[str, Any] = {"host": os.uname().nodename}
    failure: Exception | None = None
    try:
        own["found"] = look()
    except Exception as error:
        failure = error
        own["error"] = told(error)
    said = [json.loads(data) for data in exchange(_json(own))]
    ranks = Ranks([words["host"] for words in said], [None] * len(said))
    if any("error" in words for words in said):
        raise _failed(ranks, [words.get("error") for words in said], failure)
    return ranks, [words["found"] for words in said]


def told(error: Exception) -> list[str]:
    """The kind and the text of an error, as other ranks are told of it."""
    return [
        next((e.__name__ for e in _ERRORS if isinstance(error, e)), type(error).__name__),
        str(error)[:LONGEST_ERROR],
    ]


def as_told(kind: str, text: str, *, who: str) -> ZephonError:
    """The error to raise for one that ``who`` told of: the same, unless it is of a kind that nobody expects."""
    known = {e.__name__: e for e in _ERRORS}
    error = known[kind](text) if kind in known else SourceError(f"{who} {NO_DATA}: {kind}: {text}")
    error.of_all_ranks = True
    return error


def attempt(look: Callable[[], T]) -> Callable[[], T]:
    """Look now and tell later: what comes back returns the result of ``look``, or raises its error."""
    try:
        found = look()
    except Exception as error:
        failure = error

        def fail() -> T:
            raise failure

        return fail
    return lambda: found


class Ranks(NamedTuple):
    """The host of each rank, and its group: only ranks of one group are compared."""

    hosts: list[str]
    groups: list[int | None]

    def differ(self, values: Sequence[Any]) -> bool:
        """Whether two ranks of a group have different ones of ``values``."""
        return len(set(zip(self.groups, values, strict=True))) > len(set(self.groups))

    def named(self, ranks: Sequence[int]) -> str:
        """``ranks`` in words."""
        shown = ", ".join(map(str, ranks[:MOST_NAMED])) + f" and {len(ranks) - MOST_NAMED} more" * (
            len(ranks) > MOST_NAMED
        )
        hosts = list(dict.fromkeys(self.hosts[r] for r in ranks))
        where = ", ".join(hosts[:MOST_NAMED]) + ", ..." * (len(hosts) > MOST_NAMED)
        return f"rank{'s' * (len(ranks) > 1)} {shown} of {len(self.hosts)} (on {where})"


def _summary(own: Statement) -> dict[str, Any]:
    """What a rank says first, of fixed size."""
    return {
        "dp": None if own.dp_rank is None else [own.dp_rank, own.dp_degree],
        "tables": {kind: [len(own.table(kind)), _hash(own.table(kind))] for kind in KINDS},
    }


def _failed(ranks: Ranks, errors: list[list[str] | None], failure: Exception | None) -> Exception:
    """The error to raise where some ranks have failed; on a rank alone with what is no ``ZephonError``, that."""
    if failure is not None and not isinstance(failure, ZephonError):
        return failure
    failed = [r for r, error in enumerate(errors) if error]
    kind, text = errors[failed[0]] or ("", "")
    if failure is not None and all(error == [kind, text] for error in errors):
        failure.of_all_ranks = True
        return failure
    alike = [r for r in failed if errors[r] == [kind, text]]
    rest = f"\n{len(failed) - len(alike)} other ranks failed in other ways." if failed != alike else ""
    who = ranks.named(alike)
    known = kind in {e.__name__ for e in _ERRORS}
    error = as_told(kind, f"{who} {NO_DATA}: {text}{rest}" if known else f"{text}{rest}", who=who)
    error.__cause__ = failure
    return error


def _check_places(ranks: Ranks, places: list[list[int] | None]) -> None:
    """Raise ``ConfigError`` unless each dp rank is there, as often as any other."""
    if None in places:
        return
    degree = max(place[1] for place in places if place)
    holders: dict[int, list[int]] = {dp_rank: [] for dp_rank in range(degree)}
    for rank, place in enumerate(places):
        assert place is not None
        holders[place[0]].append(rank)
    least, most = (choose(holders, key=lambda r: len(holders[r])) for choose in (min, max))
    if len(holders[least]) == len(holders[most]):
        return
    by = ranks.named(holders[least]) if holders[least] else "no process"
    error = ConfigError(
        f"dp rank {least} of {degree} is taken by {by}, dp rank {most} by {ranks.named(holders[most])}, so a part of "
        "every global batch would be read too often and another too seldom. Give the processes that share "
        "an exchange each its own dp_rank, from 0 to dp_degree - 1."
    )
    error.of_all_ranks = True
    raise error


def _narrowed(exchange: Exchange, ranks: Ranks, own: Table, largest: int) -> list[Table]:
    """Of a table in which ranks differ, a part of at most ``PARTS`` entries in which they do, from every rank.

    Names are dealt to parts by their hash, so that one that is missing moves no other. ``largest``: entries in the
    largest table of all ranks.
    """
    for level in range(MOST_LEVELS):
        if largest <= PARTS:
            break
        parts: list[Table] = [{} for _ in range(PARTS)]
        for name, value in own.items():
            parts[_place(name) // PARTS**level % PARTS][name] = value
        said = [json.loads(data) for data in exchange(_json([[len(part), _hash(part)] for part in parts]))]
        first = next(i for i in range(PARTS) if ranks.differ([tuple(hashes[i]) for hashes in said]))
        own, largest = parts[first], max(hashes[first][0] for hashes in said)
    return [json.loads(data) for data in exchange(_json(own))]


def _difference(kind: str, ranks: Ranks, said: list[Table]) -> ZephonError:
    """The error that names the first entry in which ``said``, one table a rank, differ, and the odd ranks."""
    names = [n for n in sorted(set().union(*said)) if ranks.differ([table.get(n) for table in said])]
    values = [table.get(names[0]) for table in said]
    group = next(g for g in ranks.groups if len({v for v, h in zip(values, ranks.groups, strict=True) if h == g}) > 1)
    members = [rank for rank, g in enumerate(ranks.groups) if g == group]
    usual = Counter(values[rank] for rank in members).most_common(1)[0][0]
    odd = [rank for rank in members if values[rank] != usual]
    alike = [rank for rank in odd if values[rank] == values[odd[0]]]
    rest = len(members) - len(odd)
    others = f"rank {next(r for r in members if r not in odd)} has" if rest == 1 else f"the other {rest} have"
    found = "is missing" if values[odd[0]] is None else f"is {values[odd[0]]}"
    more = [f"{len(odd) - len(alike)} more ranks differ"] * (odd != alike)
    more += [f"{len(names) - 1} more differences of this kind"] * (len(names) > 1)
    further = f" ({', '.join(more)})" if more else ""
    error_type, way_out = KINDS[kind]
    error = error_type(
        f"the ranks of this job would not read the same data, so none begins:\n    {ranks.named(alike)}: {names[0]} "
        f"{found}; {others} {'no such entry' if usual is None else usual}{further}\n{way_out}"
    )
    error.of_all_ranks = True
    return error


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _hash(table: Table) -> str:
    names = sorted(table)  # no name or value holds a zero byte
    text = "\0".join([*names, *map(table.__getitem__, names)])
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _place(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(_json(name), digest_size=8).digest())
