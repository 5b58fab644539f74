"""A clock that stands still until it is told to move; sleeping moves it. And waits without chance."""

from __future__ import annotations

import random


class ManualClock:
    """Seconds from 0; `slept` lists every sleep that was asked for."""

    def __init__(self, now: float = 0.0, epoch: float = 1_700_000_000.0) -> None:
        self._now = now
        self._epoch = epoch
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._epoch + self._now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._now += seconds

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self._now += seconds


class LongestWaits(random.Random):
    """Takes the longest wait each time."""

    def uniform(self, a: float, b: float) -> float:
        return max(a, b)
