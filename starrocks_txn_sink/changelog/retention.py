"""`state_ttl`: how long the state of a key outlives its last access, in processing time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from starrocks_txn_sink.errors import OptionError

Duration = str | int | float | timedelta

_SECONDS: Final = {
    "ms": 0.001, "millisecond": 0.001, "s": 1.0, "sec": 1.0, "second": 1.0, "m": 60.0, "min": 60.0, "minute": 60.0,
    "h": 3600.0, "hour": 3600.0, "d": 86400.0, "day": 86400.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Retention:
    """State expires `seconds` after its last access; 0 keeps it for ever."""

    seconds: float = 0.0

    @classmethod
    def of(cls, state_ttl: Duration | None) -> Retention:
        """Retention from "10 minutes", a timedelta or seconds; None and 0 mean for ever. Raises OptionError."""
        return cls(0.0 if state_ttl is None else _seconds(state_ttl))

    def has_expired(self, last_access: float, now: float) -> bool:
        """Whether state has expired at `now`, given the time of its last access (both in seconds)."""
        return self.seconds > 0 and now >= last_access + self.seconds


def _seconds(value: Duration) -> float:
    amount: float | None = None
    if isinstance(value, timedelta):
        amount = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        amount = float(value)
    elif isinstance(value, str):
        amount = _parse(value)
    if amount is None or not 0 <= amount < float("inf"):
        raise OptionError(
            f"state_ttl is {value!r}.",
            hint="Write it like '10 minutes', '36 h' or timedelta(hours=1), or as seconds; 0 keeps state for ever.",
        )
    return amount


def _parse(text: str) -> float | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if match is None:
        return None
    unit = match[2] or "s"
    factor = _SECONDS.get(unit) or _SECONDS.get(unit.removesuffix("s"))
    return None if factor is None else float(match[1]) * factor
