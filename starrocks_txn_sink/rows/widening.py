"""Which type of a column has room for which other values, and to which wider type StarRocks can change a column."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from starrocks_txn_sink.rows.target import BITS, MOST_BYTES, STRING_BYTES, TargetColumn, TargetType, parse_type

_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19, "LARGEINT": 39}
_EXACT_BITS = {"FLOAT": 24, "DOUBLE": 53}
_EXACT_DIGITS = {"FLOAT": 6, "DOUBLE": 15}
_TEXTS = ("CHAR", "VARCHAR", "STRING")
_WIDTHS = {"BOOLEAN": 5, "DATE": 10, "DATETIME": 26, "FLOAT": 24, "DOUBLE": 24}  # bytes of a value's text


def holds(type_: TargetType, other: TargetType) -> bool:
    """Whether a column of `type_` has room for each value of a column of type `other`, as rows write it."""
    if type_.name in _TEXTS and other.name not in ("OTHER", "VARBINARY"):
        return (type_.length or STRING_BYTES) >= _width(other)
    if type_.name in BITS and other.name == "DECIMAL":
        return other.scale == 0 and other.precision < _DIGITS[type_.name]
    if type_.name in BITS and other.name in ("BOOLEAN", *BITS):
        return other.name == "BOOLEAN" or BITS[type_.name] >= BITS[other.name]
    if type_.name == "DECIMAL":
        whole = (
            other.precision - other.scale if other.name == "DECIMAL" else _DIGITS.get(other.name, type_.precision + 1)
        )
        return type_.precision - type_.scale >= whole and type_.scale >= other.scale
    if type_.name in _EXACT_BITS and other.name in BITS:
        return _EXACT_BITS[type_.name] >= BITS[other.name]
    if type_.name in _EXACT_BITS and other.name == "DECIMAL":
        return other.scale == 0 and 10**other.precision <= 1 << _EXACT_BITS[type_.name]
    if type_.items:
        pairs = zip(type_.items, other.items, strict=False)
        return type_.name == other.name and all(holds(item[1], other_item[1]) for item, other_item in pairs)
    return type_.name in ("JSON", other.name) or (type_.name, other.name) in (
        ("DOUBLE", "FLOAT"),
        ("DATETIME", "DATE"),
    )


def rounds(type_: TargetType, other: TargetType) -> bool:
    """Whether the server changes some values of type `other` in silence when it stores them as `type_`."""
    if holds(type_, other):
        return False
    exact = other.precision if other.name == "DECIMAL" else _DIGITS.get(other.name, 0)
    fraction = other.name in _EXACT_BITS or (other.name == "DECIMAL" and other.scale > 0)
    if type_.name in _EXACT_BITS:
        return other.name == "DOUBLE" or exact > _EXACT_DIGITS[type_.name]
    if type_.name == "DECIMAL":
        return other.name in _EXACT_BITS or other.scale > type_.scale
    return (type_.name in BITS and fraction) or (type_.name, other.name) == ("DATE", "DATETIME")


def _width(kind: TargetType) -> int:
    if kind.name == "DECIMAL":
        return kind.precision + (3 if kind.scale else 1)  # a sign; a point, and a zero in front of it
    if kind.name in _DIGITS:
        return _DIGITS[kind.name] + 1
    return kind.length or _WIDTHS.get(kind.name, STRING_BYTES)


def wider_type(types: Iterable[str]) -> str | None:
    """The one of the types that holds the values of all; None if none does."""
    type_list = list(types)
    return next(
        (kind for kind in type_list if all(holds(parse_type(kind), parse_type(other)) for other in type_list)),
        None,
    )


def fits_or_widens(column: TargetColumn, other: TargetType) -> bool:
    """Whether a column holds the values of type `other`, or StarRocks can change it so that it does."""
    return holds(column.type, other) or widened(column, other) is not None


def widened(column: TargetColumn, other: TargetType) -> TargetType | None:
    """The type to which StarRocks can change a column so that it holds its values and those of `other`; else None.

    A key cannot be changed, nor a column that gives rows their places; and a change would drop a DEFAULT.
    """
    own = column.type
    if column.key or column.fixed or column.defaulted or column.generated:
        return None
    if own.name == other.name == "DECIMAL":
        whole, scale = (
            max(own.precision - own.scale, other.precision - other.scale),
            max(own.scale, other.scale),
        )
        return TargetType("DECIMAL", precision=whole + scale, scale=scale) if whole + scale <= 38 else None
    if own.name in _TEXTS and other.name in _TEXTS:
        unlimited = other.name == "STRING"  # as for a new column
        return TargetType("VARCHAR", length=MOST_BYTES if unlimited else other.length)
    if (own.name in BITS and other.name in BITS) or (own.name, other.name) == ("FLOAT", "DOUBLE"):
        return other
    return None


def changed_by_hand(column: TargetColumn, other: TargetType) -> TargetType | None:
    """The type to which a user's statement can change a column so that it holds its values and those of `other`.

    Beside `widened` these are changes of the kind of type, and those of columns with a DEFAULT.
    """
    if column.key or column.fixed or column.generated:
        return None
    names = (column.type.name, other.name)
    converts = names == ("DATE", "DATETIME") or (other.name in _EXACT_BITS and holds(other, column.type))
    return widened(replace(column, defaulted=False), other) or (other if converts else None)


def widened_for(column: TargetColumn, types: Iterable[str]) -> TargetType | None:
    """The type to which StarRocks can change a column so that it holds also the values of `types`; None without need.

    A type for which there is no such change counts for nothing.
    """
    wider = column
    for other in map(parse_type, types):
        if not holds(wider.type, other):
            wider = replace(wider, type=widened(wider, other) or wider.type)
    return None if wider.type == column.type else wider.type
