"""What the assembler has open, as far as the driver is told: counts of a micro-batch, levels after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STAGES = 20
"""Assembling stages whose levels are remembered."""


@dataclass(frozen=True, slots=True)
class Level:
    """Open source transactions, their rows and Arrow bytes; `oldest` is since when one has been open, 0 for none."""

    open: int = 0
    rows: int = 0
    bytes: int = 0
    oldest: float = 0.0


class Assembly:
    """The levels of each stage (`name`). For one thread at a time."""

    def __init__(self) -> None:
        self._levels: dict[str, Level] = {}

    def counted(self, name: str, counts: Mapping[str, float], now: float) -> dict[str, int]:
        """Take in the counts of one stage and micro-batch (assembler.counters); returns the flows by fate.

        A micro-batch without events says nothing about what is open.
        """
        if counts.get("events"):
            before = self._levels.pop(name, Level())
            opened = int(counts.get("open", 0))
            oldest = counts.get("oldest_open") or before.oldest or now
            rows, size = int(counts.get("open_rows", 0)), int(counts.get("state_bytes", 0))
            self._levels[name] = Level(opened, rows, size, float(oldest) if opened else 0.0)
            if len(self._levels) > STAGES:
                del self._levels[next(iter(self._levels))]
        return {fate: int(counts.get(fate, 0)) for fate in ("abandoned", "dropped", "empty")}

    def open_transactions(self) -> list[dict[str, Any]]:
        """What is open, the oldest first: stage, source transactions, rows, bytes, since when."""
        levels = [(name, level) for name, level in self._levels.items() if level.open]
        return [
            {"stage": name, "open": level.open, "rows": level.rows, "bytes": level.bytes, "since": level.oldest}
            for name, level in sorted(levels, key=lambda item: item[1].oldest)
        ]

    def level(self) -> Level:
        """All stages together."""
        levels = self._levels.values()
        oldest = min((level.oldest for level in levels if level.oldest), default=0.0)
        return Level(
            sum(level.open for level in levels),
            sum(level.rows for level in levels),
            sum(level.bytes for level in levels),
            oldest,
        )
