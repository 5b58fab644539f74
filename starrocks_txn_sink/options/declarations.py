"""Declarations of options: dataclass fields that carry kind, unit, default and meaning.

Construction (`apply_declarations`) and docs/options.md both read them. A kind has two inputs: `check` takes a Python
value, `parse` takes text from a configuration file or Spark's `.option(…)`. Both raise OptionError that names the
option, the value (never a secret one) and the allowed values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from typing import Any

from starrocks_txn_sink.errors import OptionError


class Delivery(Enum):
    """The effect of a replayed micro-batch on the tables."""

    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"


class SchemaChanges(Enum):
    """The reaction to a typed route that differs from its table."""

    FAIL = "fail"
    IGNORE = "ignore"
    APPLY = "apply"


class OnBadRows(Enum):
    """The reaction to rows that the server rejects."""

    FAIL = "fail"
    QUARANTINE = "quarantine"


class Compression(Enum):
    """Compression of load bodies: `value` is the option's text, `header` the header `compression`."""

    NONE = "none"
    GZIP = "gzip"
    LZ4_FRAME = "lz4_frame"
    ZSTD = "zstd"

    @property
    def header(self) -> str | None:
        return None if self is Compression.NONE else self.value

    @property
    def csv_format(self) -> str:
        """The property `format` of compressed CSV: the compression is part of its name (wire contract 5.2)."""
        return {"none": "csv", "lz4_frame": "lz4"}.get(self.value, self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Options of one table: `properties` override the stream-load properties of all tables."""

    properties: Mapping[str, str] = field(default_factory=dict)


Check = Callable[[str, Any], Any]
Parse = Callable[[str, str], Any]


def refusal(option: str, value: object, allowed: str) -> OptionError:
    """The error for an invalid value."""
    return OptionError(f"{option} is {repr(value)[:80]}.", hint=f"Allowed is {allowed}.", option=option)


@dataclass(frozen=True, slots=True)
class OptionKind:
    """A type of option values; `name` is its name on the reference page."""

    name: str
    check: Check
    parse: Parse


def text(allowed: str = "a non-empty text", pattern: str = r"[^\x00-\x1f\x7f]+", *, secret: bool = False) -> OptionKind:
    def check(option: str, value: Any) -> str:
        if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
            raise refusal(option, "unusable (not shown)" if secret else value, allowed)
        return value

    return OptionKind("text", check, check)


def count(least: int = 1) -> OptionKind:
    def check(option: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise refusal(option, value, f"a whole number from {least} on")
        return value

    return OptionKind("whole number", check, lambda option, written: check(option, _integer(written)))


def whole_seconds(least: int, most: int) -> OptionKind:
    def check(option: str, value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise refusal(option, value, f"a whole number of seconds from {least} to {most}")
        return value

    return OptionKind("whole number", check, lambda option, written: check(option, _seconds(written)))


def seconds() -> OptionKind:
    def check(option: str, value: Any) -> float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value <= 0:
            raise refusal(option, value, "a number of seconds above 0")
        return float(value)

    return OptionKind("number", check, lambda option, written: check(option, _seconds(written)))


def size() -> OptionKind:
    def check(option: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise refusal(option, value, "a number of bytes above 0, in text also as 16 MiB")
        return value

    return OptionKind("size", check, lambda option, written: check(option, _bytes(written)))


def switch() -> OptionKind:
    def check(option: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise refusal(option, value, "true or false")
        return value

    def parse(option: str, written: str) -> bool:
        return check(option, {"true": True, "false": False}.get(written.strip().lower(), written))

    return OptionKind("true or false", check, parse)


def choice(values: type[Enum]) -> OptionKind:
    def check(option: str, value: Any) -> Enum:
        try:
            return values(value)
        except ValueError:
            raise refusal(option, value, " or ".join(str(one.value) for one in values)) from None

    return OptionKind("choice", check, lambda option, written: check(option, written.strip().lower()))


def names(check_one: Check) -> OptionKind:
    def check(option: str, value: Any) -> tuple[str, ...]:
        if isinstance(value, str):
            value = [part.strip() for part in re.split(r"[,;]", value) if part.strip()]
        if not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
            raise refusal(option, value, "a list of texts")
        for one in value:
            check_one(option, one)
        return tuple(value)

    return OptionKind("list", check, check)


def mapping(check_all: Check) -> OptionKind:
    def check(option: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise refusal(option, value, "a mapping")
        checked: dict[str, Any] = check_all(option, value)
        return checked

    def parse(option: str, written: str) -> dict[str, Any]:
        pairs = [part.partition("=") for part in re.split(r"[,;]", written) if part.strip()]
        if not all(sign for _, sign, _ in pairs):
            raise refusal(option, "unusable (not shown)", "a list of pairs, as in a=b,c=d")
        return check(option, {name.strip(): value.strip() for name, _, value in pairs})

    return OptionKind("mapping", check, parse)


def custom(name: str, check: Check) -> OptionKind:
    return OptionKind(name, check, check)


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


_REQUIRED: Any = MISSING


@dataclass(frozen=True, slots=True)
class Declaration:
    """All properties of one option except its name."""

    kind: OptionKind
    meaning: str
    unit: str
    default: Any
    derive: Callable[[Any], Any] | None
    default_text: str


def option(
    kind: OptionKind,
    meaning: str,
    *,
    default: Any = _REQUIRED,
    unit: str = "",
    derive: Callable[[Any], Any] | None = None,
    default_text: str = "",
    secret: bool = False,
) -> Any:
    """Declare an option. With `derive`, an omitted option gets a default computed from the other options."""
    shown = default_text or ("required" if default is MISSING else _show(default))
    declaration = Declaration(kind, meaning, unit, default, derive, shown)
    metadata = {"option": declaration}
    if default is MISSING and derive is None:
        return field(metadata=metadata, repr=not secret)
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata, repr=not secret)
    return field(default=None if derive else default, metadata=metadata, repr=not secret)


def declarations(options: Any) -> Iterator[tuple[str, Declaration]]:
    """Name and declaration of each option of a dataclass, in field order."""
    for one in fields(options):
        yield one.name, one.metadata["option"]


def apply_declarations(options: Any) -> None:
    """Check every option of a frozen dataclass and fill in defaults; for its `__post_init__`.

    None means "omitted". Derived defaults come last, because they read other options. Raises OptionError for the first
    invalid option.
    """
    left_out = []
    for name, declared in declarations(options):
        value = getattr(options, name)
        if value is not None:
            object.__setattr__(options, name, declared.kind.check(name, value))
        elif declared.derive is not None:
            left_out.append((name, declared.derive))
        elif declared.default is MISSING:
            raise OptionError(f"{name} is missing.", hint=f"Set {name}: {declared.meaning}", option=name)
        elif declared.default is not None:
            object.__setattr__(options, name, declared.kind.check(name, declared.default))
    for name, derive in left_out:
        object.__setattr__(options, name, derive(options))


def _show(default: Any) -> str:
    if default is None:
        return "none"
    if isinstance(default, Enum):
        return f"`{default.value}`"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if default in ({}, ()):
        return "empty"
    return f"`{default}`" if default != "" else "empty"
