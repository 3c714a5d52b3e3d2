"""Are two runs the same stream? Compares two ledgers, or two checkpoints, without any data.

What flows in: two folders. What flows out: a ``Verdict``: identical, or the first place where
they part, with the lane and the sources whose tokens differ there. Ledgers compare every step
that both have; checkpoints compare each lane's digest, which covers all it delivered so far.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import RecipeChangedError, StateError, ZephonError
from .ledger import StepRecord, read_ledger
from .state import LaneState, check_recipe, check_strays, decode_lane, decode_stream

MOST_LANES = 65536
"""As ``config.Recipe`` allows."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``same``, and why in words."""

    same: bool
    text: str


def verify(a: Path, b: Path) -> Verdict:
    """Compare ``a`` with ``b``; each a ledger folder, a run's dump folder, or a checkpoint folder.

    Raises ``ZephonError`` if one is neither, or if the two are not of one kind.
    """
    kinds = [_kind(a), _kind(b)]
    if kinds[0] != kinds[1]:
        raise ZephonError(f"{str(a)!r} is a {kinds[0]}, {str(b)!r} a {kinds[1]}; compare two of one kind.")
    if kinds[0] == "checkpoint":
        return compare_checkpoints(_loader_state(a), _loader_state(b))
    return compare_ledgers(read_ledger(_ledger_folder(a)), read_ledger(_ledger_folder(b)))


def compare_ledgers(a: dict[int, StepRecord], b: dict[int, StepRecord]) -> Verdict:
    """The first step that both have with different content."""
    steps = sorted(a.keys() & b.keys())
    if not steps:
        return Verdict(False, f"no step in common: the first has steps {_span(a)}, the second {_span(b)}.")
    for step in steps:
        if a[step].sha256 != b[step].sha256:
            return Verdict(False, _parting(step, a[step], b[step]))
    only = [
        f"the {name} alone has steps {_span(own)}"
        for name, own in (("first", a.keys() - b.keys()), ("second", b.keys() - a.keys()))
        if own
    ]
    note = f" ({'; '.join(only)})" if only else ""
    return Verdict(True, f"identical: {len(steps)} global batches, steps {_span(steps)}{note}.")


def _parting(step: int, a: StepRecord, b: StepRecord) -> str:
    if len(a.lanes) != len(b.lanes):
        return f"different from step {step} on: {len(a.lanes)} lanes against {len(b.lanes)}; these are two recipes."
    lanes = [n for n, (x, y) in enumerate(zip(a.lanes, b.lanes, strict=True)) if x.sha256 != y.sha256]
    x, y = a.lanes[lanes[0]].sources, b.lanes[lanes[0]].sources
    sources = sorted(s for s in x.keys() | y.keys() if x.get(s) != y.get(s))
    why = (
        f"the tokens of source {', '.join(map(repr, sources))} differ"
        if sources
        else "the same tokens were read, but packed or ordered in another way"
    )
    more = f" and {len(lanes) - 1} more lanes" if len(lanes) > 1 else ""
    return f"different from step {step} on, in lane {lanes[0]}{more}: {why}.\n    {a.sha256}\n    {b.sha256}"


def compare_checkpoints(a: dict[str, Any], b: dict[str, Any]) -> Verdict:
    """Two loader states as stored under ``dataloader``."""
    streams = [decode_stream(s["stream"]) for s in (a, b)]
    try:
        check_recipe(streams[0].recipe, streams[1].recipe)
    except RecipeChangedError as error:
        return Verdict(False, "two recipes (first -> second):\n    " + "\n    ".join(error.changes))
    if streams[0].lane_sequences != streams[1].lane_sequences:
        steps = f"step {streams[0].step} against step {streams[1].step}"
        sequences = f"{streams[0].lane_sequences} and {streams[1].lane_sequences} sequences a lane"
        return Verdict(False, f"one recipe, but {steps}: {sequences}.")
    sources, lanes = (streams[0].recipe.get(name) for name in ("sources", "lanes"))
    if not isinstance(sources, dict) or type(lanes) is not int or not 0 < lanes <= MOST_LANES:
        raise StateError(f"the recipe in both checkpoints is none of torchtitan_zephon: lanes = {lanes!r:.40}.")
    names = sorted(sources)
    for state in (a, b):
        check_strays(state["lane"], lanes)
    for key in sorted(a["lane"].keys() | b["lane"].keys()):
        if key not in a["lane"] or key not in b["lane"]:
            return Verdict(False, f"lane {int(key)} is in one of them only; that one was saved incompletely.")
        x, y = (decode_lane(s["lane"][key], int(key), names) for s in (a, b))
        if x.digest != y.digest:
            return Verdict(False, _lane_parting(x, y, names))
    return Verdict(True, f"identical up to step {streams[0].step}: {len(a['lane'])} lanes with equal digests.")


def _lane_parting(a: LaneState, b: LaneState, names: list[str]) -> str:
    sources = [name for name in names if a.source_digests[name] != b.source_digests[name]]
    where = f"; in the present segment the tokens of source {', '.join(map(repr, sources))} differ" if sources else ""
    return f"different data was delivered in lane {a.lane}{where}.\n    {a.digest}\n    {b.digest}"


def _kind(path: Path) -> str:
    if (path / ".metadata").is_file():
        return "checkpoint"
    if any(_ledger_folder(path).rglob("*.jsonl")):
        return "ledger"
    raise ZephonError(
        f"{str(path)!r} is neither a checkpoint (a folder step-N with .metadata) nor a ledger (a folder of "
        ".jsonl files, or a run's dump folder with a folder 'ledger' in it)."
    )


def _ledger_folder(path: Path) -> Path:
    return path / "ledger" if (path / "ledger").is_dir() else path


def _loader_state(path: Path) -> dict[str, Any]:
    try:
        from .titan.checkpoint import read_loader_state
    except ImportError as error:
        raise ZephonError(f"reading a checkpoint needs torch, in the build that fits the machine ({error}).") from None
    return read_loader_state(path)


def _span(steps: Any) -> str:
    ordered = sorted(steps)
    return f"{ordered[0]}" if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"
