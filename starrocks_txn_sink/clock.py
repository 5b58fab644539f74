"""Time as an argument: a replaceable clock, one deadline for all steps of a micro-batch, durations as text."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import timedelta
from numbers import Real
from typing import Final, Protocol

from starrocks_txn_sink.errors import DeadlineExceeded

_SECONDS: Final = {
    "ms": 0.001, "millisecond": 0.001, "s": 1.0, "sec": 1.0, "second": 1.0, "m": 60.0, "min": 60.0, "minute": 60.0,
    "h": 3600.0, "hour": 3600.0, "d": 86400.0, "day": 86400.0,
}  # fmt: skip


class Clock(Protocol):
    """Clock of the core, in seconds; `monotonic` never goes back, `wall` counts from the Unix epoch."""

    def monotonic(self) -> float:
        """Seconds since any moment: only differences mean something."""

    def wall(self) -> float:
        """Seconds since the Unix epoch; goes back when somebody sets the time back."""

    def sleep(self, seconds: float) -> None:
        """Let the calling thread wait for `seconds`."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Seconds since a moment that differs from machine to machine."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the Unix epoch, as the machine has them."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Let the calling thread wait for `seconds`; raises ValueError below 0."""
        time.sleep(seconds)


def microseconds() -> int:
    """The machine's time since the Unix epoch: it grows, so that it numbers runs and batches."""
    return time.time_ns() // 1000


def parse_duration(value: object) -> float | None:
    """The seconds of a number, a timedelta, or a text such as `500ms`, `30 seconds`, `2 min`, `1h` or `30`.

    None for any other value.
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not isinstance(value, bool) and isinstance(value, Real):
        return float(value)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", value.strip().lower()) if isinstance(value, str) else None
    if match is None:
        return None
    unit = match[2] or "s"
    factor = _SECONDS.get(unit) or _SECONDS.get(unit.removesuffix("s"))
    return None if factor is None else float(match[1]) * factor


def ago(now: float, then: float) -> str:
    """Time from `then` to `now` as text."""
    seconds = max(0.0, now - then)
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in a clock's monotonic time; every step limits its timeout to the remaining seconds."""

    clock: Clock
    at: float

    @classmethod
    def after(cls, seconds: float, clock: Clock) -> Deadline:
        """The deadline in `seconds` from now."""
        return cls(clock, clock.monotonic() + seconds)

    def remaining(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self.at - self.clock.monotonic())

    def expired(self) -> bool:
        """Whether no time remains."""
        return self.remaining() <= 0.0

    def limit(self, seconds: float, step: str) -> float:
        """The smaller of `seconds` and the remaining time; raises DeadlineExceeded with `step` if no time remains."""
        remaining = self.remaining()
        if remaining <= 0.0:
            raise DeadlineExceeded(f"The batch's deadline passed before {step} was done.")
        return min(seconds, remaining)

    def earlier(self, seconds: float) -> Deadline:
        """The earlier of this deadline and `seconds` from now."""
        return Deadline(self.clock, min(self.at, self.clock.monotonic() + seconds))
