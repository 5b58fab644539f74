"""The result of a run: as the JSON object that programs read, and as lines that people read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from starrocks_demo.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of one run, measured on the stand-in. Freshness is None when no transaction was seen.

    `phases` are median seconds of the parts of a micro-batch.
    """

    verdict: Verdict
    committed: int
    aborted: int
    loads: int
    freshness_p50: float | None
    freshness_p99: float | None
    wall_seconds: float
    phases: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> str:
        """One line."""
        return orjson.dumps(self.as_dict()).decode()

    def as_dict(self) -> dict[str, Any]:
        verdict = self.verdict
        return {
            "source_transactions": {
                "written": verdict.written,
                "visible": verdict.visible,
                "lost": verdict.lost,
                "duplicated": verdict.duplicated,
            },
            "rows": {table.table: table.rows for table in verdict.tables},
            "reader": {"samples": verdict.samples, "torn": verdict.torn},
            "starrocks_transactions": {"committed": self.committed, "aborted": self.aborted},
            "loads": self.loads,
            "freshness_seconds": {"p50": _rounded(self.freshness_p50), "p99": _rounded(self.freshness_p99)},
            "micro_batch_seconds": {name: _rounded(seconds) for name, seconds in self.phases.items()},
            "wall_seconds": _rounded(self.wall_seconds),
        }

    def as_lines(self) -> list[str]:
        verdict = self.verdict
        rows = ", ".join(f"{table.table} {table.rows:,}" for table in verdict.tables)
        per_commit = verdict.visible / self.committed if self.committed else 0.0
        lines = [
            f"source transactions    {verdict.written:,} written, {verdict.visible:,} visible, "
            f"{verdict.lost:,} lost, {verdict.duplicated:,} duplicated",
            f"rows                   {rows}; compared one by one",
            f"concurrent reader      {verdict.samples:,} samples, {verdict.torn:,} torn",
            f"StarRocks transactions {self.committed:,} committed, {self.aborted:,} aborted, {self.loads:,} loads "
            f"({per_commit:.1f} source transactions each)",
            f"freshness              p50 {_seconds(self.freshness_p50)}, p99 {_seconds(self.freshness_p99)} "
            "from file to visible",
            f"wall time              {self.wall_seconds:.1f} s",
        ]
        if verdict.right:
            return [*lines, "RIGHT: every source transaction is visible exactly once, and none was ever seen in part."]
        return [*lines, "WRONG:", *(f"  {difference}" for difference in verdict.differences)]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"
