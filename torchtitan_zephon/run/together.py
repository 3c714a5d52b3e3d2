"""The ranks of a job open its sources together: one of them lists the files, and all end with the same data.

What flows in: an ``Exchange``, and what a rank makes of its sources once it can open them. What flows out: that, after
all ranks have made the same of it; or on every rank the same error. The first rank lists, samples and makes its own
first. Then the others get its list, or its error. While it is at work it takes part in an exchange every
``STILL_HERE_S`` seconds, so that no collective runs into the time-out of its process group, however long it takes.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ..errors import ZephonError
from ..program import Program
from ..read.one_list import Listing, TakenListing
from ..read.source import Opening, open_source
from ..state import Snapshot
from .agree import Exchange, agree, alone, as_told, attempt, told
from .statement import Statement

STILL_HERE_S = 60.0
LOOKS_AT_ONCE = 16
T = TypeVar("T")


def open_together(exchange: Exchange, look: Callable[[Opening], T], say: Callable[[T], Statement]) -> T:
    """What ``look`` finds, given how to open a source, once ``say`` has made the same statement of it on all ranks.

    Raises as ``agree`` does. An error of the rank that lists is raised on all ranks as it is.
    """
    if exchange is alone:
        return look(open_source)
    own = uuid.uuid4().bytes
    ranks = exchange(own)
    if ranks[0] == own:
        found = _led(exchange, look)
        return agree(exchange, lambda: found, say)
    taken = _taken(exchange, f"rank {ranks.index(own)} of {len(ranks)}")
    return agree(exchange, lambda: look(taken), say)


def _led(exchange: Exchange, look: Callable[[Opening], T]) -> T:
    """The first rank's part: look, and tell the others the list, or the error."""
    listing = Listing()
    outcomes: list[Callable[[], T]] = []
    thread = threading.Thread(
        target=lambda: outcomes.append(attempt(lambda: look(listing))), name="zephon-listing", daemon=True
    )
    thread.start()
    thread.join(STILL_HERE_S)
    while thread.is_alive():
        exchange(b"")
        thread.join(STILL_HERE_S)
    try:
        found = outcomes[0]()
    except Exception as error:
        exchange(json.dumps({"error": told(error)}).encode())
        if isinstance(error, ZephonError):
            error.of_all_ranks = True
        raise
    exchange(json.dumps({"list": listing.text()}).encode())
    return found


def _taken(exchange: Exchange, rank: str) -> TakenListing:
    """The part of any other rank: wait for the list. Raises the first rank's error."""
    while not (said := exchange(b"")[0]):
        pass
    found = json.loads(said)
    if "error" in found:
        raise as_told(*found["error"], who="rank 0")
    return TakenListing(found["list"], rank)


def look_at_first_segments(program: Program, at: Snapshot) -> None:
    """Raise ``SourceError`` unless all files of the segments that the lanes of ``at`` are in are there as listed.

    Of a source that is read from the front it is the file at hand.
    """
    assert at.stream.tokens_per_mib is not None
    rates = [at.stream.tokens_per_mib[name] for name in program.names]
    states = {state.lane: state for state in at.lanes}
    pieces: dict[tuple[int, int], int] = {}
    for number, lane in program.lanes(states, rates).items():
        start = states[number].start
        tapes = program.tapes(lane.plan, start.tapes)
        place, shares = lane.plan.begin(tuple(start.sources.values()))
        while (step := lane.plan.next(place, shares)) is not None:
            s, place = step.chunk.source, step.behind
            piece = tapes[s].piece if s in tapes else step.chunk.piece
            pieces.setdefault((s, program.sources[s].reader.shard_of(piece)), piece)
            if step.ends:
                break
    with ThreadPoolExecutor(LOOKS_AT_ONCE, "zephon-look") as threads:
        for looked in [threads.submit(program.sources[s].look_at, piece) for (s, _), piece in sorted(pieces.items())]:
            looked.result()
