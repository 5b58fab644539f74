"""In which order the rows of one StarRocks transaction are applied: as they arrived, or in an arbitrary order.

The server promises no order between rows of one key inside one transaction. A stand-in that shuffles them shows who
relies on it; the same seed shuffles the same rows alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class RowOrder(Enum):
    """How rows of one key inside one transaction follow each other."""

    ARRIVAL = "arrival"
    ARBITRARY = "arbitrary"


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Renumbers the arrivals of staged rows, or leaves them alone."""

    order: RowOrder = RowOrder.ARRIVAL
    seed: int = 0

    def of(self, rows: str) -> str:
        """The relation `rows` with `__arrival` in the order in which its rows are to be applied."""
        if self.order is RowOrder.ARRIVAL:
            return rows
        return f"(SELECT * REPLACE (hash(__arrival, {self.seed:d}) AS __arrival) FROM {rows})"
