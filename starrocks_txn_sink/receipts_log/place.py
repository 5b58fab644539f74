"""Where a source transaction is: what the ledger and the log tell together. Pure.

The ledger has the last position of each source partition; whatever is not above it is visible. The log says under which
label. A position between two logged ends belongs to the source transaction that ends at the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Standing(Enum):
    """The answer in a word; the value is what `--json` shows."""

    CONTAINED = "contained"
    VISIBLE = "visible"
    NOT_YET = "not yet"


@dataclass(frozen=True, slots=True)
class LedgerPosition:
    """The ledger's row of a source partition; times are the server's or the lane's UTC, as text."""

    position: int
    label: str
    batch: int
    since: str


@dataclass(frozen=True, slots=True)
class LoggedSpan:
    """A row of the log: the positions that a label brought of a source partition."""

    first: int
    last: int
    label: str
    lane: int
    batch: int
    rows: int
    tables: str
    since: str


@dataclass(frozen=True, slots=True)
class LocatedPosition:
    """Where a position is. `span` is set when it is contained, `reached` is the ledger's row, None without one.

    `upper` is what is known of the time when only that is known: it was visible then, perhaps before.
    """

    standing: Standing
    reached: LedgerPosition | None
    span: LoggedSpan | None = None
    upper: str = ""


def locate(position: int, reached: LedgerPosition | None, around: Sequence[LoggedSpan]) -> LocatedPosition:
    """`around` are the log's rows next to it: the first that ends there or above, the last that ends below."""
    if reached is None or position > reached.position:
        return LocatedPosition(Standing.NOT_YET, reached)
    above = min((span for span in around if span.last >= position), key=lambda span: span.last, default=None)
    if above is None:
        return LocatedPosition(Standing.VISIBLE, reached, upper=reached.since)
    below = any(span.last < position for span in around)
    if above.first <= position or below:
        return LocatedPosition(Standing.CONTAINED, reached, above)
    return LocatedPosition(Standing.VISIBLE, reached, upper=above.since)
