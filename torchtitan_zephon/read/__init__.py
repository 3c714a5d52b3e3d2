"""(shard, range) to records. Owns every file; one format a file; nothing here knows a lane."""

from __future__ import annotations


class BadRecord(Exception):
    """Raised by a reader; becomes a ``RecordError`` where source and shard are known."""

    def __init__(self, problem: str, place: int) -> None:
        super().__init__(problem)
        self.place = place
