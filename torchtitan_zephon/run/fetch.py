"""The chunks that a rank has in work: asked for ahead, taken in order.

What flows in: lanes, which say what to fetch and run. What flows out: their documents, handed to each lane in its
order. Workers read and tokenise ahead; the thread that wants a sequence also packs it. Credit: planned chunk bytes in
work or waiting, at most ``prefetch_bytes``, but one chunk a lane always, or a huge line could never be read.
Conserved: chunks planned = arrived + in work. Owner: the thread that iterates.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from ..config import RunSettings
from ..lane.machine import Lane, Trip
from ..plan.chunking import Chunk
from ..program import Program
from ..records import Documents, Packet
from .pool import Pool
from .waiting import wait_for


class Fetch:
    """Work of ``lanes``. ``active``: those that are read ahead, all at first."""

    def __init__(self, program: Program, lanes: Sequence[Lane], settings: RunSettings) -> None:
        self.active = list(lanes)
        self._program, self._settings = program, settings
        self._pool = Pool(settings.workers)
        self._close = weakref.finalize(self, self._pool.close)  # of a stream that nobody closes, too
        self._work: dict[int, deque[tuple[Future[Packet], Chunk]]] = {lane.number: deque() for lane in lanes}
        self._trips: dict[int, deque[tuple[Future[Documents], Trip]]] = {lane.number: deque() for lane in lanes}
        self._bytes_out = 0
        self._tapes = {lane.number: program.tapes(lane.program.plan, lane.tapes) for lane in lanes}

    def read_on(self, lane: Lane) -> None:
        """Let chunks arrive until ``lane`` has a sequence, or is dry."""
        if lane.ready:
            return
        work, trips = self._work[lane.number], self._trips[lane.number]
        while not lane.ready and not lane.dry:
            if trips:
                returned, trip = trips.popleft()
                lane.returned(trip, wait_for(returned, trip.packet.planned.chunk, self._program, self._pool))
            else:
                if not work:
                    self._ask(lane)
                arriving, chunk = work.popleft()
                lane.arrived(wait_for(arriving, chunk, self._program, self._pool))
                self._bytes_out -= chunk.num_bytes
            while lane.trips:  # before any chunk that is not read yet: so no lane waits for what it holds up itself
                trip = lane.trips.popleft()
                chunk, function = trip.packet.planned.chunk, lane.program.links[trip.link].function
                trips.append((self._pool.submit(_run, chunk, function, trip.packet.documents, urgent=True), trip))
            self.ahead()

    def ahead(self) -> None:
        """Keep a chunk of every active lane in work, and two calls a worker queued, as the credit goes."""
        depth = max(1, -(-2 * self._settings.workers // len(self.active)))
        for level in range(depth):
            for lane in self.active:
                waiting = len(self._work[lane.number])
                if waiting <= level and (not waiting or self._bytes_out < self._settings.prefetch_bytes):
                    self._ask(lane)

    def _ask(self, lane: Lane) -> None:
        if (chunk := lane.plan_chunk()) is not None:
            self._bytes_out += chunk.num_bytes
            tape = self._tapes[lane.number].get(chunk.source)
            turn = None if tape is None else tape.turn()
            self._work[lane.number].append((self._pool.submit(self._program.work, chunk, turn), chunk))

    def close(self) -> None:
        """End the workers. Safe to call twice."""
        self._close()


def _run(chunk: Chunk, function: Callable[[Documents], Documents], documents: Documents) -> Documents:
    """A later trip of ``chunk``, which is named so that a call that takes long can be told."""
    return function(documents)
