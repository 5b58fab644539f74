"""What the assembler has open, as far as the driver is told: counts of a micro-batch, levels after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OTHERS = "all others"
STAGES = 20
"""Assembling stages whose levels are remembered."""


@dataclass(frozen=True, slots=True)
class AssemblerLevel:
    """Open source transactions, their rows and Arrow bytes; `oldest` is since when one has been open, 0 for none.

    `each` are the oldest ones (partition, position, since, rows, bytes), where the stage tells of them one by one.
    """

    open: int = 0
    rows: int = 0
    bytes: int = 0
    oldest: float = 0.0
    each: Sequence[Mapping[str, Any]] = ()


class AssemblerLevels:
    """The levels of each stage (`name`). For one thread at a time."""

    def __init__(self) -> None:
        self._levels: dict[str, AssemblerLevel] = {}

    def add_counts(
        self, name: str, counts: Mapping[str, float], now: float, each: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, int]:
        """Take in the counts of one stage and micro-batch (assembler.counters); returns the flows by outcome.

        A micro-batch without events says nothing about what is open.
        """
        if counts.get("events"):
            before = self._levels.pop(name, AssemblerLevel())
            opened = int(counts.get("open", 0))
            oldest = counts.get("oldest_open") or before.oldest or now
            rows, size = int(counts.get("open_rows", 0)), int(counts.get("state_bytes", 0))
            self._levels[name] = AssemblerLevel(
                opened, rows, size, float(oldest) if opened else 0.0, tuple(each) if opened else ()
            )
            if len(self._levels) > STAGES:
                del self._levels[next(iter(self._levels))]
        return {outcome: int(counts.get(outcome, 0)) for outcome in ("abandoned", "dropped", "empty")}

    def open_transactions(self) -> list[dict[str, Any]]:
        """What is open, the oldest first: stage, place (None for all of a stage), how many, rows, bytes, since when."""
        found = [one for name, level in self._levels.items() if level.open for one in _open_entries(name, level)]
        return sorted(found, key=lambda one: (one["since"], one["place"] == OTHERS))

    def level(self) -> AssemblerLevel:
        """All stages together."""
        levels = self._levels.values()
        oldest = min((level.oldest for level in levels if level.oldest), default=0.0)
        return AssemblerLevel(
            sum(level.open for level in levels),
            sum(level.rows for level in levels),
            sum(level.bytes for level in levels),
            oldest,
        )


def _open_entries(stage: str, level: AssemblerLevel) -> list[dict[str, Any]]:
    """The transactions of a stage one by one, as far as they are told, and the others together."""
    shown = [
        {
            "stage": stage,
            "place": f"{one['partition']} at {one['position']}",
            "open": 1,
            "rows": one["rows"],
            "bytes": one["bytes"],
            "since": one["since"],
        }
        for one in level.each
    ]
    if len(shown) == level.open:
        return shown
    rest = {
        "stage": stage,
        "place": OTHERS if shown else None,
        "open": level.open - len(shown),
        "rows": level.rows - sum(one["rows"] for one in shown),
        "bytes": level.bytes - sum(one["bytes"] for one in shown),
        "since": max((one["since"] for one in shown), default=level.oldest),
    }
    return [*shown, rest]
