"""Open source transactions of the assembler, from the counts that each stage reports for a micro-batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OTHERS = "all others"
STAGES = 20
"""Assembling stages at most; the one that reported longest ago is dropped."""


@dataclass(frozen=True, slots=True)
class AssemblerLevel:
    """Open source transactions, their rows and Arrow bytes; `oldest` is since when (Unix epoch), 0 for none.

    `each` lists the oldest ones (partition, position, since, rows, bytes), if the stage reports them singly.
    """

    open: int = 0
    rows: int = 0
    bytes: int = 0
    oldest: float = 0.0
    each: Sequence[Mapping[str, Any]] = ()


class AssemblerLevels:
    """Levels by stage name. Not thread-safe."""

    def __init__(self) -> None:
        self._levels: dict[str, AssemblerLevel] = {}

    def add_counts(
        self, name: str, counts: Mapping[str, float], now: float, each: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, int]:
        """Add the counts of one stage and micro-batch (assembler.counters); return source transactions by outcome."""
        # A micro-batch without events says nothing about the source transactions that are still open.
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
        """Open source transactions, oldest first: stage, place (None: all of the stage), open, rows, bytes, since."""
        found = [one for name, level in self._levels.items() if level.open for one in _open_entries(name, level)]
        return sorted(found, key=lambda one: (one["since"], one["place"] == OTHERS))

    def level(self) -> AssemblerLevel:
        """Sum over all stages; `oldest` of all."""
        levels = self._levels.values()
        oldest = min((level.oldest for level in levels if level.oldest), default=0.0)
        return AssemblerLevel(
            sum(level.open for level in levels),
            sum(level.rows for level in levels),
            sum(level.bytes for level in levels),
            oldest,
        )


def _open_entries(stage: str, level: AssemblerLevel) -> list[dict[str, Any]]:
    """Entries of a stage: the transactions that it reports singly, and one entry for the remaining ones."""
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
