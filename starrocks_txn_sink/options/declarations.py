"""Declarations of options: dataclass fields that carry kind, unit, default and meaning.

Construction (`apply_declarations`) and docs/reference/options.md both read them. A kind has two inputs: `check` takes a
Python value, `parse` takes text from a configuration file or Spark's `.option(…)`. Both raise OptionError that names
the option, the value (never a secret one) and the allowed values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from typing import Any

from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options.addresses import split_list

Check = Callable[[str, Any], Any]


def refusal(option: str, value: object, allowed: str) -> OptionError:
    """The error for an invalid value."""
    return OptionError(f"{option} is {repr(value)[:80]}.", hint=f"Allowed is {allowed}.", option=option)


@dataclass(frozen=True, slots=True)
class OptionKind:
    """A type of option values; a call declares an option. The reference page shows `name` and `unit`.

    `read` turns text into a value; it returns unreadable text unchanged, and `check` refuses that.
    """

    name: str
    check: Check
    read: Callable[[str], object] = str
    unit: str = ""

    def parse(self, option: str, text: str) -> Any:
        """The checked value of a text."""
        return self.check(option, self.read(text))

    def __call__(
        self,
        meaning: str,
        *,
        default: Any = MISSING,
        derive: Callable[[Any], Any] | None = None,
        default_text: str = "",
        secret: bool = False,
    ) -> Any:
        """Declare an option. With `derive`, an omitted option gets a default computed from the other options."""
        default_shown = default_text or ("required" if default is MISSING else _show(default, self.unit))
        metadata = {"option": Declaration(self, meaning, default, derive, default_shown)}
        if isinstance(default, dict):
            return field(default_factory=dict, metadata=metadata, repr=not secret)
        return field(default=None if derive else default, metadata=metadata, repr=not secret)


@dataclass(frozen=True, slots=True)
class Declaration:
    """All properties of one option except its name."""

    kind: OptionKind
    meaning: str
    default: Any
    derive: Callable[[Any], Any] | None
    default_text: str

    def default_for(self, options: Any) -> Any:
        """The value that the option has in `options` if it is left out."""
        return self.default if self.derive is None else self.derive(options)


def _number(convert: Callable[[str], float], digits: str, units: Mapping[str, float]) -> Callable[[str], object]:
    """A reader of numbers: text that matches `digits`, and then one of `units`."""

    def read(text: str) -> object:
        parts = re.fullmatch(rf"\s*({digits})\s*([a-z]*)\s*", text.lower())
        if parts is None or parts[2] not in units:
            return text
        return convert(parts[1]) * units[parts[2]]

    return read


_integer = _number(int, r"[+-]?\d{1,18}", {"": 1})
_seconds = _number(float, r"-?\d{1,12}(?:\.\d+)?", {"": 1.0, "s": 1.0, "ms": 0.001, "min": 60.0, "h": 3600.0})
_bytes = _number(int, r"-?\d{1,15}", {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30})


def text(allowed: str = "a non-empty text", pattern: str = r"[^\x00-\x1f\x7f]+", *, secret: bool = False) -> OptionKind:
    """The kind of texts that match `pattern` as a whole; errors say `allowed`, and never show a `secret` value."""

    def check(option: str, value: Any) -> str:
        if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
            raise refusal(option, "unusable (not shown)" if secret else value, allowed)
        return value

    return OptionKind("text", check)


def _check_whole(allowed: str, minimum: int = 1, maximum: float = math.inf) -> Check:
    def check(option: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise refusal(option, value, allowed)
        return value

    return check


COUNT = OptionKind("whole number", _check_whole("a whole number from 1 on"), _integer)
SIZE = OptionKind("size", _check_whole("a number of bytes above 0, in text also as 16 MiB"), _bytes, "bytes")


def whole_seconds(minimum: int, maximum: int) -> OptionKind:
    """The kind of whole seconds from `minimum` to `maximum`, as int; a text may have a unit, as in 10min."""
    check_whole = _check_whole(f"a whole number of seconds from {minimum} to {maximum}", minimum, maximum)

    def check(option: str, value: Any) -> Any:
        return check_whole(option, int(value) if isinstance(value, float) and value.is_integer() else value)

    return OptionKind("whole number", check, _seconds, "seconds")


def _check_seconds(option: str, value: Any) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0:
        raise refusal(option, value, "a number of seconds above 0, in text also as 500 ms")
    return float(value)


SECONDS = OptionKind("number", _check_seconds, _seconds, "seconds")
DURATION = OptionKind(
    "number",
    lambda option, value: _check_seconds(option, _seconds(value) if isinstance(value, str) else value),
    _seconds,
    "seconds",
)
"""SECONDS that Python may give as a text, too, as in `500 ms`."""


def _check_switch(option: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise refusal(option, value, "true or false")
    return value


SWITCH = OptionKind(
    "true or false", _check_switch, lambda text: {"true": True, "false": False}.get(text.strip().lower(), text)
)


def alternatives(values: type[Enum]) -> str:
    """The values in words: `a, b or c`."""
    *names, last = (str(member.value) for member in values)
    return f"{', '.join(names)} or {last}"


def choice(values: type[Enum]) -> OptionKind:
    """The kind of the members of an Enum, given as such, by value, or as a text in any case."""

    def check(option: str, value: Any) -> Enum:
        try:
            return values(value)
        except ValueError:
            raise refusal(option, value, alternatives(values)) from None

    return OptionKind("choice", check, lambda text: text.strip().lower())


def names(check_one: Check) -> OptionKind:
    """The kind of tuples of texts that `check_one` lets pass; a text is split at commas and semicolons."""

    def check(option: str, value: Any) -> tuple[str, ...]:
        if isinstance(value, str):
            value = split_list(value)
        if not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
            raise refusal(option, value, "a list of texts")
        for item in value:
            check_one(option, item)
        return tuple(value)

    return OptionKind("list", check)


def mapping(check_all: Check) -> OptionKind:
    """The kind of mappings, as `check_all` returns them; a text is a list of pairs, as in a=b,c=d."""

    def check(option: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            value_shown = "unusable (not shown)" if isinstance(value, str) else value
            raise refusal(option, value_shown, "a mapping, in text a list of pairs as in a=b,c=d")
        checked: dict[str, Any] = check_all(option, value)
        return checked

    return OptionKind("mapping", check, _pairs)


def _pairs(text: str) -> dict[str, str] | str:
    pairs = [part.partition("=") for part in split_list(text)]
    return {name.strip(): value.strip() for name, _, value in pairs} if all(sign for _, sign, _ in pairs) else text


def declarations(options: Any) -> Iterator[tuple[str, Declaration]]:
    """Name and declaration of each option of a dataclass, in field order."""
    for option_field in fields(options):
        yield option_field.name, option_field.metadata["option"]


def apply_declarations(options: Any) -> None:
    """Check every option of a frozen dataclass and fill in defaults; for its `__post_init__`.

    None means "omitted". Derived defaults come last, because they read other options. Raises OptionError for the first
    invalid option.
    """
    left_out = []
    for name, declaration in declarations(options):
        value = getattr(options, name)
        if value is not None:
            object.__setattr__(options, name, declaration.kind.check(name, value))
        elif declaration.derive is not None:
            left_out.append((name, declaration.derive))
        elif declaration.default is MISSING:
            raise OptionError(f"{name} is missing.", hint=f"Set {name}: {declaration.meaning}", option=name)
        elif declaration.default is not None:
            object.__setattr__(options, name, declaration.kind.check(name, declaration.default))
    for name, derive in left_out:
        object.__setattr__(options, name, derive(options))


def _show(default: Any, unit: str) -> str:
    if default is None:
        return "none"
    if unit == "bytes":
        return f"{default >> 20} MiB"
    if isinstance(default, Enum):
        return f"`{default.value}`"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if default in ({}, ()):
        return "empty"
    return f"`{default}`" if default != "" else "empty"
