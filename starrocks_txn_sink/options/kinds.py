"""The kinds of values an option can have: how each is checked, and how it is read from text.

`check` takes what Python code passes, `parse` takes what a configuration file or Spark's `.option(…)` passes. Both
raise OptionError that names the option, what was given and what is allowed; a secret value is never repeated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from starrocks_txn_sink.errors import OptionError

Check = Callable[[str, Any], Any]
Parse = Callable[[str, str], Any]


def refusal(option: str, value: object, allowed: str) -> OptionError:
    """The error for one bad value."""
    return OptionError(f"{option} is {repr(value)[:80]}.", hint=f"Allowed is {allowed}.", option=option)


@dataclass(frozen=True, slots=True)
class Kind:
    """`name` is what the reference page calls it."""

    name: str
    check: Check
    parse: Parse


def text(allowed: str = "a non-empty text", pattern: str = r"[^\x00-\x1f\x7f]+", *, secret: bool = False) -> Kind:
    def check(option: str, value: Any) -> str:
        if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
            raise refusal(option, "unusable (not shown)" if secret else value, allowed)
        return value

    return Kind("text", check, check)


def count(least: int = 1) -> Kind:
    def check(option: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise refusal(option, value, f"a whole number from {least} on")
        return value

    return Kind("whole number", check, lambda option, written: check(option, _integer(written)))


def whole_seconds(least: int, most: int) -> Kind:
    def check(option: str, value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise refusal(option, value, f"a whole number of seconds from {least} to {most}")
        return value

    return Kind("whole number", check, lambda option, written: check(option, _seconds(written)))


def seconds() -> Kind:
    def check(option: str, value: Any) -> float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value <= 0:
            raise refusal(option, value, "a number of seconds above 0")
        return float(value)

    return Kind("number", check, lambda option, written: check(option, _seconds(written)))


def size() -> Kind:
    def check(option: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise refusal(option, value, "a number of bytes above 0, in text also as 16 MiB")
        return value

    return Kind("size", check, lambda option, written: check(option, _bytes(written)))


def switch() -> Kind:
    def check(option: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise refusal(option, value, "true or false")
        return value

    def parse(option: str, written: str) -> bool:
        return check(option, {"true": True, "false": False}.get(written.strip().lower(), written))

    return Kind("true or false", check, parse)


def choice(values: type[Enum]) -> Kind:
    def check(option: str, value: Any) -> Enum:
        try:
            return values(value)
        except ValueError:
            raise refusal(option, value, " or ".join(str(one.value) for one in values)) from None

    return Kind("choice", check, lambda option, written: check(option, written.strip().lower()))


def names(check_one: Check) -> Kind:
    def check(option: str, value: Any) -> tuple[str, ...]:
        if isinstance(value, str):
            value = [part.strip() for part in re.split(r"[,;]", value) if part.strip()]
        if not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
            raise refusal(option, value, "a list of texts")
        for one in value:
            check_one(option, one)
        return tuple(value)

    return Kind("list", check, check)


def mapping(check_all: Check) -> Kind:
    def check(option: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise refusal(option, value, "a mapping")
        checked: dict[str, Any] = check_all(option, value)
        return checked

    def parse(option: str, written: str) -> dict[str, Any]:
        pairs = [part.partition("=") for part in re.split(r"[,;]", written) if part.strip()]
        if not all(sign for _, sign, _ in pairs):
            raise refusal(option, written, "a list of pairs, as in a=b,c=d")
        return check(option, {name.strip(): value.strip() for name, _, value in pairs})

    return Kind("mapping", check, parse)


def custom(name: str, check: Check) -> Kind:
    return Kind(name, check, check)


_TIME_UNITS = {"": 1.0, "s": 1.0, "ms": 0.001, "min": 60.0, "h": 3600.0}
_SIZE_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def _integer(written: str) -> int | str:
    return int(written) if re.fullmatch(r"\s*[+-]?\d{1,18}\s*", written) else written


def _seconds(written: str) -> float | str:
    found = re.fullmatch(r"\s*(-?\d{1,12}(?:\.\d+)?)\s*([a-z]*)\s*", written.lower())
    if found is None or found[2] not in _TIME_UNITS:
        return written
    return float(found[1]) * _TIME_UNITS[found[2]]


def _bytes(written: str) -> int | str:
    found = re.fullmatch(r"\s*(-?\d{1,15})\s*([a-z]*)\s*", written.lower())
    if found is None or found[2] not in _SIZE_UNITS:
        return written
    return int(found[1]) * _SIZE_UNITS[found[2]]
