"""Documents that a stage holds across a flush, as plain values of a checkpoint and back.

Ids take 3 bytes each in base64, which is 4 bytes a token; ``Tokenize`` refuses ids of 2**24 and more. The origin names
its sources, so that it means the same whatever other sources a recipe has.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from ..records import Documents


def to_plain(documents: Documents, names: Sequence[str]) -> dict[str, Any]:
    """``documents``, which are tokenised, as a table. ``names``: of all sources, in the order in which they count."""
    assert documents.ids.max(initial=0) < 1 << 24
    raw = documents.ids.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    used, numbers = np.unique(documents.origin[:, 0], return_inverse=True)
    return {
        "ids": base64.b64encode(raw).decode(),
        "offsets": documents.offsets.tolist(),
        "sources": [names[s] for s in used.tolist()],
        "origin": np.column_stack([numbers.reshape(-1), documents.origin[:, 1:]]).tolist(),
    }


def from_plain(value: Any, names: Sequence[str]) -> Documents:
    """What ``to_plain`` was given. Raises ``ValueError`` for anything that it does not give."""
    try:
        raw = np.frombuffer(base64.b64decode(value["ids"], validate=True), np.uint8).reshape(-1, 3)
        ids = np.zeros((len(raw), 4), np.uint8)
        ids[:, :3] = raw
        numbers = [*value["offsets"], *chain.from_iterable(value["origin"])]
        if any(type(n) is not int or not 0 <= n < 2**63 for n in numbers):
            raise ValueError
        offsets = np.array(value["offsets"], np.int64)
        origin = np.array(value["origin"], np.int64).reshape(-1, 4)
        origin[:, 0] = np.array([names.index(name) for name in value["sources"]], np.int64)[origin[:, 0]]
        documents = Documents({}, {"ids": ids.view("<u4").reshape(-1).astype(np.int32)}, offsets, origin)
        if (
            (offsets[0], offsets[-1]) == (0, len(raw))
            and len(offsets) == len(origin) + 1
            and (np.diff(offsets) >= 0).all()
            and to_plain(documents, names) == value
        ):
            return documents
    except (KeyError, ValueError, IndexError, TypeError, AttributeError):
        pass
    raise ValueError("these are no documents that a stage held")
