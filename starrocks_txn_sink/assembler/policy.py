"""What the assembler does with source transactions that cannot simply be released whole."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, get_args

from starrocks_txn_sink.errors import OptionError

OnOpenTimeout = Literal["fail", "drop"]
MissingBegin = Literal["fail", "drop", "accept"]

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_WORDS: Final = {"millisecond": "ms", "second": "s", "sec": "s", "minute": "min", "hour": "h", "day": "d"}


@dataclass(frozen=True, slots=True)
class Policy:
    """The assembler's options, validated.

    `interleaved`    several source transactions of one source partition may be open at once, told apart by `txn_id`
    `open_timeout`   seconds of processing time a source transaction may stay open; None: for ever
    `on_open_timeout`  `fail` stops the job, `drop` skips the transaction whole, its later rows included
    `missing_begin`  DATA or END whose BEGIN was never seen: `fail`; `drop` skips the transaction to its END; `accept`
                     takes its first event for the BEGIN, as a hand-written assembler that only clears its buffer does
    """

    interleaved: bool = False
    open_timeout: float | None = None
    on_open_timeout: OnOpenTimeout = "fail"
    missing_begin: MissingBegin = "fail"

    def __post_init__(self) -> None:
        _one_of("on_open_timeout", self.on_open_timeout, get_args(OnOpenTimeout))
        _one_of("missing_begin", self.missing_begin, get_args(MissingBegin))
        if self.open_timeout is not None and not self.open_timeout > 0:
            raise OptionError("open_timeout must be above zero.", hint="Leave it out to wait for ever.")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise OptionError(f"{name} is {value!r}.", hint=f"Use one of: {', '.join(allowed)}.")


def seconds(value: float | timedelta | str | None) -> float | None:
    """`value` in seconds: a number of seconds, a timedelta, or text such as `500ms`, `30 seconds`, `2 min`, `1h`."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        return _parsed(value)
    return float(value)


def _parsed(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]*)", text.strip().lower().replace(" ", ""))
    unit = match and (match[2] or "s")
    if match and unit:
        unit = unit if unit in _UNITS else _WORDS.get(unit.removesuffix("s"), unit)
        if unit in _UNITS:
            return float(match[1]) * _UNITS[unit]
    raise OptionError(f"{text!r} is not a duration.", hint="Write it like 500ms, 30s, 2min or 1h.")
