"""Kinds of JSON values, and the type of StarRocks that holds all values of some kinds.

| values | type |
|---|---|
| true, false | BOOLEAN |
| integers of 64 bits | BIGINT |
| integers of 128 bits | LARGEINT |
| numbers with a fraction or an exponent, also mixed with integers up to 2^53 | DOUBLE |
| texts up to 1 MiB | VARCHAR(1048576) |
| objects, arrays | JSON |

Values of other mixtures have no type: one of them would be changed. NULL is of no kind, because each type has it.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any, Final

from starrocks_txn_sink.rows.target import MOST_BYTES, TEXT


class ValueKind(Enum):
    """What a JSON value needs of a column; `value` names the kind in errors."""

    TRUTH = "true or false"
    INTEGER = "integers up to 2^53"
    LONG = "integers of 64 bits"
    LARGE = "integers of 128 bits"
    HUGE = "numbers beyond all types"
    FRACTION = "numbers with a fraction"
    PRECISE = "numbers with more digits than a DOUBLE has"
    TEXT = "texts"
    OVERSIZE = "texts of more than 1 MiB"
    DOCUMENT = "objects or arrays"


_K = ValueKind
_TYPES: Final[tuple[tuple[str, frozenset[ValueKind]], ...]] = (
    ("BOOLEAN", frozenset({_K.TRUTH})),
    ("BIGINT", frozenset({_K.INTEGER, _K.LONG})),
    ("LARGEINT", frozenset({_K.INTEGER, _K.LONG, _K.LARGE})),
    ("DOUBLE", frozenset({_K.INTEGER, _K.FRACTION})),
    (TEXT, frozenset({_K.TEXT})),
    ("JSON", frozenset({_K.DOCUMENT})),
)
"""Types from narrow to wide, with the kinds whose values each holds unchanged."""

_EXACT: Final = 1 << 53  # up to here a DOUBLE has every integer
_DOUBLES_DIGITS: Final = 15  # every number of so few digits comes back from a DOUBLE


def type_for(kinds: Collection[ValueKind]) -> str | None:
    """The narrowest type that holds all values of the `kinds`; None if no type does."""
    return next((name for name, kinds_held in _TYPES if kinds_held.issuperset(kinds)), None) if kinds else None


class _Fraction(str):
    """The text of a number with a fraction or an exponent."""

    __slots__ = ()


def members_of(text: bytes | memoryview) -> dict[str, Any] | None:
    """The members of a JSON object for `kind_of`; None for text that is no JSON object."""
    try:
        row = json.loads(bytes(text), parse_float=_Fraction)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def kind_of(value: Any) -> ValueKind | None:
    """The kind of a value of `members_of`; None for NULL."""
    if value is None:
        return None
    if isinstance(value, bool):
        return ValueKind.TRUTH
    if isinstance(value, int):
        return _kind_of_integer(value)
    if isinstance(value, _Fraction):
        return _kind_of_fraction(value)
    if isinstance(value, str):
        return ValueKind.TEXT if len(value.encode("utf-8", "replace")) <= MOST_BYTES else ValueKind.OVERSIZE
    return ValueKind.HUGE if isinstance(value, float) else ValueKind.DOCUMENT  # NaN and Infinity are no JSON


def _kind_of_integer(value: int) -> ValueKind:
    if -_EXACT <= value <= _EXACT:
        return ValueKind.INTEGER
    bits = (value if value >= 0 else ~value).bit_length()
    return ValueKind.LONG if bits < 64 else ValueKind.LARGE if bits < 128 else ValueKind.HUGE


def _kind_of_fraction(text: str) -> ValueKind:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return ValueKind.HUGE
    double = float(text)
    if double in (float("inf"), float("-inf")) or (double == 0 and number != 0):
        return ValueKind.HUGE
    digits = len(number.normalize().as_tuple().digits)
    if digits <= _DOUBLES_DIGITS or number in (Decimal(repr(double)), Decimal(f"{double:.17g}")):
        return ValueKind.FRACTION
    return ValueKind.PRECISE
