"""Documents to rows of exactly ``seq_len`` tokens: the accumulator around a packer.

What flows in: ``Documents`` in order. What flows out: ``Rows``. The packer chooses (``packers``), ``render`` makes the
columns, and what is here holds the documents that still have tokens to place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..errors import ConfigError
from ..records import Contents, Documents, Rows
from ..settings import setting
from .carried import from_plain, to_plain
from .first_fit import FirstFit
from .packers import Choice, Packer
from .ready_rows import ReadyRows
from .render import render
from .wrap import Wrap

PACKERS: dict[str, type[Packer]] = {
    "wrap": Wrap,
    "first_fit": FirstFit,
    "rows": ReadyRows,
}
"""By the name that a recipe gives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """How rows are made. ``padding_id``: the input of padding."""

    algorithm: str
    label_shift: str
    seq_len: int
    padding_id: int

    @property
    def ready(self) -> bool:
        """Whether documents are rows already."""
        return self.algorithm == "rows"

    @property
    def id_lengths(self) -> tuple[int, ...]:
        """The lengths that a document of ids may have; none if any will do."""
        return (self.seq_len, self.seq_len + 1) if self.ready else ()

    def usable(self, documents: Documents) -> int:
        """Tokens of ``documents`` that can be an input: within documents, all of a document but its last."""
        return len(documents.ids) if self.label_shift == "sequence" else documents.num_inputs


@dataclass(frozen=True, kw_only=True)
class PackSettings:
    """How documents become sequences."""

    pack: str = setting(
        "wrap",
        "`wrap` cuts the token stream at seq_len, never pads; `first_fit` keeps documents "
        "whole where they fit and pads the rest; `rows` takes each record of token ids, which must have seq_len + 1 or "
        "seq_len of them, as a row as it is.",
        choices=PACKERS,
    )
    label_shift: Literal["document", "sequence"] = setting(
        "document",
        "Labels are the next token within each `document`, so that none is predicted across a border (TorchTitan "
        "0.3.0's stock loader), or within the whole `sequence`, borders included (0.2.2's).",
    )

    def check_packing(self) -> None:
        """Raise ``ConfigError`` for settings that do not go together."""
        if self.label_shift not in PACKERS[self.pack].label_shifts:
            others = " or ".join(repr(name) for name, of in PACKERS.items() if self.label_shift in of.label_shifts)
            raise ConfigError(
                f"recipe: pack = {self.pack!r} puts unrelated documents side by side, so label_shift = "
                f"{self.label_shift!r} would train on their borders; use label_shift = 'document', or pack = {others}."
            )

    def check_contents(self, contents: Mapping[str, Contents]) -> None:
        """Raise ``ConfigError`` for sources of text where documents are to be rows already."""
        if self.pack == "rows" and (texts := [repr(name) for name, of in contents.items() if of == "text"]):
            raise ConfigError(
                f"recipe: pack = 'rows' takes rows of token ids as they are, and there are sources of text: "
                f"{', '.join(texts)}. Use pack = 'wrap', or sources of token ids."
            )

    def packing(self, seq_len: int, padding_id: int) -> Packing:
        """How rows are made by these settings."""
        return Packing(algorithm=self.pack, label_shift=self.label_shift, seq_len=seq_len, padding_id=padding_id)


class Pack:
    """One lane's packing. Conserved: tokens in = inputs of rows + last + unused + held.

    ``last_tokens``: tokens so far that are a label and no input. ``unused_tokens``: those that are neither; a
    document, or a lane's end, of one token has nothing to predict.
    """

    def __init__(self, packing: Packing, held: Documents) -> None:
        self.held = held
        self.last_tokens = self.unused_tokens = 0
        self._packing = packing
        self._packer = PACKERS[packing.algorithm](packing.seq_len, packing.label_shift, np.diff(held.offsets))

    @classmethod
    def carried(cls, packing: Packing, carry: Any, names: Sequence[str]) -> Pack:
        """A packer that goes on from its ``carry``, None for nothing. Raises ``ValueError`` if that is none."""
        return cls(packing, Documents.empty() if carry is None else from_plain(carry, names))

    def carry(self, names: Sequence[str]) -> Any:
        """What is held, as plain values; None for nothing. ``names``: of the sources."""
        return to_plain(self.held, names) if len(self.held) else None

    def add(self, documents: Documents) -> Rows:
        """All rows that are now full."""
        choice = self._packer.add(np.diff(documents.offsets))
        return self._placed(Documents.join(self.held, documents), choice)

    def flush(self) -> Rows:
        """What must leave where a segment ends; the rest is held."""
        return self._placed(self.held, self._packer.flush())

    def finish(self) -> Rows:
        """Everything left, the last row padded; the end of a finite stream."""
        return self._placed(self.held, self._packer.finish())

    def _placed(self, documents: Documents, choice: Choice) -> Rows:
        rows = render(documents, choice.placement, self._packing.padding_id, self._packing.seq_len)
        self.held = documents.take(choice.kept, choice.used)
        dropped = len(documents.ids) - len(self.held.ids) - int(choice.placement[:, 4].sum())
        self.unused_tokens += choice.unused
        self.last_tokens += dropped - choice.unused
        return rows
