"""Where the time of a micro-batch goes: Spark's parts of it, and the lane's within the sink's."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

SPARK: Final = {
    "triggerExecution": "micro-batch",
    "latestOffset": "new files",
    "walCommit": "offset log",
    "queryPlanning": "planning",
    "addBatch": "sink",
    "commitOffsets": "commit log",
}
"""Spark's names for what it measures, and ours; these are milliseconds in a query's progress."""


def median_seconds(progress: Sequence[Any], laps: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of each phase, over the micro-batches with rows; `laps` are seconds of the lane's phases."""
    busy = [each.durationMs for each in progress if each.numInputRows]
    found = {
        name: statistics.median(durations[key] for durations in busy) / 1000
        for key, name in SPARK.items()
        if busy and all(key in durations for durations in busy)
    }
    return found | {f"lane: {name}": statistics.median(seconds) for name, seconds in laps.items()}
