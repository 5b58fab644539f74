"""A lane's report: what its task did beside committing, for the driver's metrics.

A task runs in another process, so whatever it counts travels (`lane.messages`): with the receipts when it succeeded, in
its error when it failed. A task of Spark's that failed and was run again is not told of twice: only what reaches the
driver is counted.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

BOUNDS = (
    *(0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 21600.0),
)
"""Upper bounds in seconds, inclusive; one more bucket takes what is longer."""


@dataclass(slots=True)
class Durations:
    """How many durations fell into each bucket of `bounds`, and their sum: small enough to travel, and percentiles can
    be read from them. `counts` has one bucket more than bounds."""

    counts: list[int] = field(default_factory=list)
    total: float = 0.0
    bounds: Sequence[float] = BOUNDS

    def __post_init__(self) -> None:
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, value: float) -> None:
        """Count one duration; below zero (clocks differ) counts as zero."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += max(0.0, value)

    def add_all(self, values: Floats) -> None:
        """Count many at once."""
        if values.size:
            positive = np.maximum(values, 0.0)
            found = np.bincount(np.searchsorted(self.bounds, positive), minlength=len(self.counts))
            self.counts = [have + more for have, more in zip(self.counts, found.tolist(), strict=True)]
            self.total += float(positive.sum())

    def merge(self, counts: Sequence[int], total: float) -> None:
        """Add what another one counted, with the same bounds."""
        self.counts = [have + more for have, more in zip(self.counts, counts, strict=True)]
        self.total += total

    def percentile(self, share: float) -> float | None:
        """The value below which `share` of all lie, interpolated within its bucket; None without any.

        What is longer than the last bound is given as that bound.
        """
        if not (wanted := share * self.count):
            return None
        for number, reached in enumerate(itertools.accumulate(self.counts)):
            if reached >= wanted and self.counts[number]:
                break
        if number == len(self.bounds):
            return self.bounds[-1]
        low = self.bounds[number - 1] if number else 0.0
        inside = (wanted - (reached - self.counts[number])) / self.counts[number]
        return low + (self.bounds[number] - low) * inside


@dataclass(frozen=True, slots=True)
class TableLoads:
    """Loads of one table that the server accepted: bytes as sent, and durations per bucket of BOUNDS."""

    table: str
    encoding: str
    loads: int
    bytes: int
    seconds: float
    buckets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LaneReport:
    """What one try of a lane did in one micro-batch. Pairs count by (operation, what): `requests` by the reply's status
    or the error's code, `retries` by the reason; `errors` counts by code, `aborted` and `in_doubt` StarRocks
    transactions that were rolled back, and whose commit's outcome was unknown at first.

    `unsettled` are those whose outcome stayed unknown. Event times are seconds since the Unix epoch, by partition.
    `committed` counts receipts: they do not reach the driver when the lane fails later.
    """

    job: str
    lane: int
    batch_id: int
    committed: int = 0
    aborted: int = 0
    in_doubt: int = 0
    unsettled: int = 0
    requests: tuple[tuple[str, str, int], ...] = ()
    retries: tuple[tuple[str, str, int], ...] = ()
    errors: tuple[tuple[str, int], ...] = ()
    error: str = ""
    loads: tuple[TableLoads, ...] = ()
    deletes: dict[str, int] = field(default_factory=dict)
    replayed_rows: int = 0
    replayed_transactions: int = 0
    buffer_peak: int = 0
    inflight_peak: int = 0
    task_retry: bool = False
    latency: tuple[int, ...] = ()
    latency_seconds: float = 0.0
    event_times: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, value: dict[str, Any]) -> LaneReport:
        """The report with the fields of `value`, in JSON's types."""
        lists = ("requests", "retries", "errors")
        fields: dict[str, Any] = {
            name: tuple(map(tuple, found)) if name in lists else found for name, found in value.items()
        }
        loads = tuple(TableLoads(**{**one, "buckets": tuple(one["buckets"])}) for one in value["loads"])
        return cls(**{**fields, "loads": loads, "latency": tuple(value["latency"])})
