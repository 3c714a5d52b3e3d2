"""The batch ledger: the SHA-256 of every global batch, the same for every rank count.

What flows in: the hashes of what each lane gave in a step. Each process appends a line a lane and step
to a file of its own (no rank waits for another), in a folder named after the recipe, so that a new
stream in the same run folder does not mix with the old. What flows out: ``read_ledger`` joins the files:
the hash of a step is the hash over its lanes' hashes in lane order. A step seen twice (tensor-
parallel peers, a stretch run again after a restart) must agree with itself, or reading fails.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .errors import ZephonError
from .plan.layout import Layout


class LaneEntry(NamedTuple):
    """What one lane gave in a step: the hash over its sequences' hashes; what it read, a source each."""

    lane: int
    sha256: str
    source_digests: tuple[str, ...]


class LedgerWriter:
    """Appends to ``<folder>/dp<rank>-of-<degree>.<host>.<pid>.jsonl``, a whole step at a time."""

    def __init__(self, folder: Path, layout: Layout, source_names: tuple[str, ...]) -> None:
        self._names, self._lanes = source_names, layout.lanes
        name = f"dp{layout.dp_rank}-of-{layout.dp_degree}.{socket.gethostname()}.{os.getpid()}.jsonl"
        self._file = folder / name
        # A process of the same name may have been killed in the middle of a line.
        self._before = "\n" if self._file.exists() else ""

    def write(self, step: int, entries: list[LaneEntry]) -> None:
        """Write the lines of this rank's lanes for one step."""
        lines = []
        for entry in entries:
            digests = {n: d for n, d in zip(self._names, entry.source_digests, strict=True) if d}
            line = {"step": step, "lane": entry.lane, "lanes": self._lanes, "sha256": entry.sha256, "sources": digests}
            lines.append(json.dumps(line) + "\n")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with open(self._file, "a", encoding="utf-8") as f:
                f.write(self._before + "".join(lines))
        except OSError as error:
            raise ZephonError(
                f"the ledger at {str(self._file)!r} cannot be written: {error.strerror}. Make room or give another "
                "job.dump_folder; ledger = false does without."
            ) from None
        self._before = ""


@dataclass(frozen=True, slots=True)
class LaneRecord:
    """One lane's part of a step. ``sources``: digest of the tokens read from each in this segment."""

    sha256: str
    sources: dict[str, str]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One global batch; ``lanes`` in lane order."""

    sha256: str
    lanes: tuple[LaneRecord, ...]


def read_ledger(folder: str | Path) -> dict[int, StepRecord]:
    """The complete steps in the ledger at ``folder`` or in its only subfolder. Raises ``ZephonError``.

    A step that some lane did not write (a run that was killed) is left out.
    """
    files = sorted(Path(folder).rglob("*.jsonl"))
    streams = sorted({f.parent.name for f in files})
    if len(streams) > 1:
        raise ZephonError(
            f"{str(folder)!r} holds the ledgers of {len(streams)} streams (a changed recipe or global batch size "
            f"begins a new one): {', '.join(streams)}. Name one of these subfolders."
        )
    if not files:
        raise ZephonError(
            f"there is no ledger at {str(folder)!r}; a job writes one to <dump_folder>/ledger with "
            "`ledger = true` in its [zephon] table."
        )
    steps: dict[int, dict[int, LaneRecord]] = {}
    expected: set[int] = set()
    for file in files:
        for text in file.read_text("utf-8", "replace").splitlines():
            if (line := _parse(text)) is None:
                continue  # the last line of a process that was killed while writing
            step, lane, lanes, record = line
            expected.add(lanes)
            before = steps.setdefault(step, {}).setdefault(lane, record)
            if before.sha256 != record.sha256:
                raise ZephonError(
                    f"{str(folder)!r}: step {step}, lane {lane} was written twice with different content "
                    f"({before.sha256[:16]}, then {record.sha256[:16]} in {file.name}): two processes that should "
                    "have been given the same data were not, or two different jobs share the folder."
                )
    if not expected:
        raise ZephonError(f"no file in {str(folder)!r} has a whole line of a ledger.")
    if len(expected) > 1:
        raise ZephonError(f"{str(folder)!r} mixes jobs with {' and '.join(map(str, sorted(expected)))} lanes.")
    count = expected.pop()
    return {t: _join([lanes[n] for n in range(count)]) for t, lanes in sorted(steps.items()) if len(lanes) == count}


def _parse(text: str) -> tuple[int, int, int, LaneRecord] | None:
    """Step, lane, number of lanes and record of one line; None if it is no whole line of a ledger."""
    try:
        line = json.loads(text)
        numbers = [line[name] for name in ("step", "lane", "lanes")]
        record = LaneRecord(line["sha256"], line["sources"])
        whole = all(type(n) is int for n in numbers) and numbers[1] < numbers[2] and isinstance(record.sources, dict)
        return (*numbers, record) if whole and len(bytes.fromhex(record.sha256)) == 32 else None
    except (ValueError, KeyError, TypeError):
        return None


def _join(lanes: list[LaneRecord]) -> StepRecord:
    h = hashlib.sha256()
    for lane in lanes:
        h.update(bytes.fromhex(lane.sha256))
    return StepRecord(h.hexdigest(), tuple(lanes))
