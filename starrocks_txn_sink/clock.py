"""Time as an argument: a replaceable clock, and one deadline for all steps of a micro-batch."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from starrocks_txn_sink.errors import DeadlineExceeded


class Clock(Protocol):
    """Clock of the core, in seconds; `monotonic` never goes back, `wall` counts from the Unix epoch."""

    def monotonic(self) -> float: ...

    def wall(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def microseconds() -> int:
    """The machine's time since the Unix epoch: it grows, so that it numbers runs and batches."""
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in a clock's monotonic time; every step limits its timeout to the remaining seconds."""

    clock: Clock
    at: float

    @classmethod
    def after(cls, seconds: float, clock: Clock) -> Deadline:
        return cls(clock, clock.monotonic() + seconds)

    def remaining(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self.at - self.clock.monotonic())

    def expired(self) -> bool:
        return self.remaining() <= 0.0

    def bounded(self, seconds: float, step: str) -> float:
        """The smaller of `seconds` and the remaining time; raises DeadlineExceeded with `step` if no time remains."""
        left = self.remaining()
        if left <= 0.0:
            raise DeadlineExceeded(f"The batch's deadline passed before {step} was done.")
        return min(seconds, left)

    def earlier(self, seconds: float) -> Deadline:
        """The earlier of this deadline and `seconds` from now."""
        return Deadline(self.clock, min(self.at, self.clock.monotonic() + seconds))
