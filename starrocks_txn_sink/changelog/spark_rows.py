"""Rows as text between the JVM and a state operator, and the checks that every changelog function makes.

The JVM writes a row as JSON and reads it back; Python keeps and compares the text and never looks into it. The formats
below keep every value: microseconds, full decimals, NaN, NULL and empty, dates of all centuries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql import types as T  # noqa: N812

from starrocks_txn_sink.changelog.kinds import RowKind
from starrocks_txn_sink.changelog.parameters import check_names, named
from starrocks_txn_sink.errors import InputError, OptionError

FORMATS: Final = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
}
_WRITE: Final = {**FORMATS, "ignoreNullFields": "false"}
_READ: Final = {**FORMATS, "mode": "FAILFAST"}  # text that cannot be read is an error, never a NULL
_KEPT: Final = (
    T.BooleanType, T.NumericType, T.StringType, T.BinaryType, T.DateType, T.TimestampType, T.TimestampNTZType,
    T.NullType,
)  # fmt: skip

# Columns that tell where a row came from; an error shows those that the frame has.
PLACES: Final = ("topic", "partition", "offset", "source_partition", "position", "seq")

KINDS: Final = tuple(str(kind) for kind in RowKind)


def column(name: str) -> Column:
    """The column of exactly that name, dots and all."""
    return F.col(quoted(name))


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def to_text(columns: Iterable[Column]) -> Column:
    """`columns` as one JSON object."""
    return F.to_json(F.struct(*columns), _WRITE)


def from_text(text: Column, fields: Sequence[T.StructField]) -> Column:
    """The struct that `to_text` wrote."""
    kept = [T.StructField(field.name, field.dataType) for field in fields]
    return F.from_json(text, T.StructType(kept), _READ)


def names(value: str | Sequence[str] | None, parameter: str, frame: DataFrame) -> tuple[str, ...]:
    """A parameter that names columns, as a tuple; InputError for a column that the frame does not have."""
    found = named(parameter, value)
    missing = [name for name in found if name not in frame.columns]
    if missing:
        raise InputError(
            f"{parameter} names the column {', '.join(map(repr, missing))}, which the DataFrame does not have.",
            hint=f"It has {', '.join(frame.columns)}.",
        )
    if len(set(found)) < len(found):
        raise OptionError(f"{parameter} names a column twice: {', '.join(found)}.", hint="Name each column once.")
    return found


def refuse_clash(new: Iterable[str], there: Iterable[str], what: str) -> None:
    """OptionError where columns to be added have names that are taken."""
    clash = sorted(set(new) & set(there))
    if clash:
        raise OptionError(f"{what} would collide with the column {', '.join(clash)}.", hint="Rename one of them.")


def require_kept(fields: Iterable[T.StructField]) -> None:
    """InputError for columns whose values cannot be kept as text."""
    for field in fields:
        if not _can_be_kept(field.dataType):
            raise InputError(
                f"The column {field.name} is {field.dataType.simpleString()}, which cannot be kept in state.",
                hint="Cast it (maps need string keys), or drop it.",
            )


def _can_be_kept(kind: T.DataType) -> bool:
    if isinstance(kind, T.StructType):
        return all(_can_be_kept(field.dataType) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return _can_be_kept(kind.elementType)
    if isinstance(kind, T.MapType):
        return isinstance(kind.keyType, T.StringType) and _can_be_kept(kind.valueType)
    return isinstance(kind, _KEPT)


def sortable(frame: DataFrame, sequence: Sequence[str]) -> list[Column]:
    """The sequence columns as bigint or string; InputError for a type that has no order here."""
    return [_sortable(frame.schema[name]) for name in sequence]


def _sortable(field: T.StructField) -> Column:
    value, kind = column(field.name), field.dataType
    if isinstance(kind, T.IntegralType):
        return value.cast("bigint")
    if isinstance(kind, T.TimestampType):
        return F.unix_micros(value)
    if isinstance(kind, T.DateType):
        return F.unix_date(value).cast("bigint")
    if isinstance(kind, T.StringType):
        return value
    raise InputError(
        f"The sequence column {field.name} is {kind.simpleString()}, not an integer, a timestamp, a date or a string.",
        hint="Cast it to one of these.",
    )


# --- checks that a running query makes ---


class Refusal(NamedTuple):
    """Rows for which `condition` holds fail the query with `message`, their place and `hint`."""

    condition: Column
    message: str
    hint: str


def guarded(frame: DataFrame, *refusals: Refusal, place: Sequence[str]) -> DataFrame:
    """Fail the query at a row that is refused, naming the row's place and never its content.

    A filter, because nothing that reads the result can prune it.
    """
    verdict = F.lit(True)
    for refusal in reversed(refusals):
        text = F.concat(F.lit(refusal.message), *shown(place), F.lit(f". {refusal.hint}"))
        verdict = F.when(refusal.condition, F.raise_error(text).cast("boolean")).otherwise(verdict)
    return frame.filter(verdict) if refusals else frame


def place_of(frame: DataFrame, sequence: Sequence[str]) -> tuple[str, ...]:
    """The columns that tell a row's place: its sequence, and those of a source that the frame has."""
    return tuple(dict.fromkeys([*sequence, *(name for name in PLACES if name in frame.columns)]))


def shown(place: Sequence[str]) -> list[Column]:
    """` at offset 7, partition 0`; nothing when no column tells the place."""
    parts: list[Column] = []
    for number, name in enumerate(place):
        value = F.coalesce(column(name).cast("string"), F.lit("NULL"))
        parts += [F.lit(f"{', ' if number else ' at '}{name} "), value]
    return parts


def any_null(columns: Sequence[Column]) -> Column:
    """Whether one of `columns` is NULL."""
    found = F.lit(False)
    for each in columns:
        found = found | each.isNull()
    return found


def null_checks(key: Sequence[Column], sequence: Sequence[str], what: str) -> list[Refusal]:
    """The refusals of NULL in the key and in the sequence."""
    checks = []
    if key:
        hint = "Updates and deletes cannot be told apart without a key: filter such rows out before."
        checks.append(Refusal(any_null(key), f"{what}: a NULL in the key", hint))
    if sequence:
        nulls = any_null([column(name) for name in sequence])
        hint = "Give every row its place in the order."
        checks.append(Refusal(nulls, f"{what}: a NULL in the order ({', '.join(sequence)})", hint))
    return checks


def kind_checks(row_kind: str, keys: Sequence[str], sequence: Sequence[str], what: str) -> list[Refusal]:
    """The refusals of every function that reads a changelog: unknown kind, NULL in the key or in the sequence."""
    kind = column(row_kind)
    unknown = Refusal(
        kind.isNull() | ~kind.isin(*KINDS), f"{what}: no row kind in {row_kind}", "Row kinds are +I, -U, +U and -D."
    )
    return [unknown, *null_checks([column(key) for key in keys], sequence, what)]


def require_row_kind(frame: DataFrame, row_kind: str) -> None:
    """OptionError or InputError for a frame without a string column of row kinds."""
    check_names({"row_kind": row_kind}, {})
    names(row_kind, "row_kind", frame)
    if not isinstance(frame.schema[row_kind].dataType, T.StringType):
        raise InputError(
            f"The column {row_kind} is {frame.schema[row_kind].dataType.simpleString()}, not string.",
            hint="It holds the row kinds +I, -U, +U and -D.",
        )
