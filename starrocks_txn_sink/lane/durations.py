"""Durations as counts per bucket: small enough to travel, and percentiles can be read from them."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

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
    """How many durations fell into each bucket of `bounds`, and their sum. `counts` has one bucket more than bounds."""

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
