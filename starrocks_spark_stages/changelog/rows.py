"""Rows as text between the JVM and a state operator; images and checks that all changelog functions share.

The JVM writes a row as JSON and reads it back; Python only keeps and compares the text. The formats below lose no
value: microseconds, full decimals, NaN, NULL and empty, dates of all centuries.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, functions as F, types as T

from starrocks_spark_stages.changelog.rules.conversions import RowKind
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.protocol.ledger import quote

FORMATS: Final = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
}
_WRITE: Final = {**FORMATS, "ignoreNullFields": "false"}
_READ: Final = {**FORMATS, "mode": "FAILFAST"}  # text that cannot be read is an error, never a NULL
_STORABLE: Final = (
    T.BooleanType, T.NumericType, T.StringType, T.BinaryType, T.DateType, T.TimestampType, T.TimestampNTZType,
    T.NullType,
)  # fmt: skip

# Columns with a row's origin; an error shows the ones that the frame has.
PLACES: Final = ("topic", "partition", "offset", "source_partition", "position", "seq")

KIND_CODES: Final = tuple(str(kind) for kind in RowKind)


def column(name: str) -> Column:
    """The column of exactly this name, even with dots."""
    return F.col(quote(name))


def to_text(columns: Iterable[Column]) -> Column:
    """`columns` as one JSON object."""
    return F.to_json(F.struct(*columns), _WRITE)


def from_text(text: Column, fields: Sequence[T.StructField]) -> Column:
    """The struct that `to_text` has written."""
    members = [T.StructField(field.name, field.dataType) for field in fields]
    return F.from_json(text, T.StructType(members), _READ)


@dataclass(frozen=True, slots=True)
class Images:
    """The columns with the row before and after the change; they may be one, or be missing."""

    before: str | None
    after: str | None

    @property
    def nested(self) -> bool:
        """Whether the row is in images; a flat event is the row itself."""
        return self.before is not None or self.after is not None

    @property
    def both(self) -> bool:
        """Whether before and after image are two columns."""
        return None not in (self.before, self.after) and self.before != self.after


def column_names(parameter: str, value: str | Sequence[str] | None) -> tuple[str, ...]:
    """A parameter that names any number of columns, as a tuple; OptionError for a value that is no name."""
    if value is None or isinstance(value, str):
        return () if value is None else (value,)
    if isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise OptionError(f"{parameter} is {value!r}.", hint="Name columns by text: one name, or a list or tuple of names.")


def check_names(values_given: Mapping[str, str], or_none: Mapping[str, str | None]) -> None:
    """OptionError unless each parameter is one name; parameters in `or_none` may be None."""
    for parameter, value in {
        **values_given,
        **{name: value for name, value in or_none.items() if value is not None},
    }.items():
        if not isinstance(value, str) or not value:
            optional = ", or leave it out" if parameter in or_none else ""
            raise OptionError(f"{parameter} is {value!r}.", hint=f"Give one name, as text{optional}.")


def check_flags(**flags: bool) -> None:
    """OptionError for a flag that is no bool: the text "false" would count as true."""
    for parameter, value in flags.items():
        if not isinstance(value, bool):
            raise OptionError(f"{parameter} is {value!r}.", hint="Use True or False.")


def require_columns(value: str | Sequence[str] | None, parameter: str, frame: DataFrame) -> tuple[str, ...]:
    """A parameter that names columns, as a tuple; InputError for a column that the frame does not have."""
    column_list = column_names(parameter, value)
    missing = [name for name in column_list if name not in frame.columns]
    if missing:
        raise InputError(
            f"{parameter} names the column {', '.join(map(repr, missing))}, which the DataFrame does not have.",
            hint=f"It has {', '.join(frame.columns)}.",
        )
    if len(set(column_list)) < len(column_list):
        raise OptionError(f"{parameter} names a column twice: {', '.join(column_list)}.", hint="Name each column once.")
    return column_list


def refuse_clash(new: Iterable[str], existing: Iterable[str], subject: str) -> None:
    """OptionError if a column to add has the name of an existing one."""
    clash = sorted(set(new) & set(existing))
    if clash:
        raise OptionError(f"{subject} would collide with the column {', '.join(clash)}.", hint="Rename one of them.")


def require_storable(fields: Iterable[T.StructField]) -> None:
    """InputError for a column whose values cannot be kept as text."""
    for field in fields:
        if not _is_storable(field.dataType):
            raise InputError(
                f"The column {field.name} is {field.dataType.simpleString()}, which cannot be kept in state.",
                hint="Cast it (maps need string keys), or drop it.",
            )


def _is_storable(kind: T.DataType) -> bool:
    if isinstance(kind, T.StructType):
        return all(_is_storable(field.dataType) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return _is_storable(kind.elementType)
    if isinstance(kind, T.MapType):
        return isinstance(kind.keyType, T.StringType) and _is_storable(kind.valueType)
    return isinstance(kind, _STORABLE)


def sort_columns(frame: DataFrame, sequence: Sequence[str]) -> list[Column]:
    """The sequence columns as bigint or string; InputError for a type that has no order here."""
    return [_sort_column(frame.schema[name]) for name in sequence]


def _sort_column(field: T.StructField) -> Column:
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
    """A row for which `condition` holds fails the query with `message`, its place and `hint`."""

    condition: Column
    message: str
    hint: str


def refuse_rows(frame: DataFrame, *refusals: Refusal, place: Sequence[str]) -> DataFrame:
    """`frame`, whose query fails at the first refused row; the error names the row's place, never its content."""
    # A filter, because no later projection can prune it.
    accepted = F.lit(True)
    for refusal in reversed(refusals):
        text = F.concat(F.lit(refusal.message), *place_text(place), F.lit(f". {refusal.hint}"))
        accepted = F.when(refusal.condition, F.raise_error(text).cast("boolean")).otherwise(accepted)
    return frame.filter(accepted) if refusals else frame


def place_columns(frame: DataFrame, sequence: Sequence[str]) -> tuple[str, ...]:
    """The columns that name a row's place: its sequence, then the columns of PLACES that the frame has."""
    return tuple(dict.fromkeys([*sequence, *(name for name in PLACES if name in frame.columns)]))


def place_text(place: Sequence[str]) -> list[Column]:
    """Parts of a text such as ` at offset 7, partition 0`; empty without columns."""
    parts: list[Column] = []
    for number, name in enumerate(place):
        value = F.coalesce(column(name).cast("string"), F.lit("NULL"))
        parts += [F.lit(f"{', ' if number else ' at '}{name} "), value]
    return parts


def any_null(columns: Sequence[Column]) -> Column:
    """Whether any of `columns` is NULL."""
    return reduce(or_, (column.isNull() for column in columns), F.lit(False))


def null_checks(key: Sequence[Column], sequence: Sequence[str], subject: str) -> list[Refusal]:
    """The refusals of NULL in the key and in the sequence."""
    checks = []
    if key:
        hint = "An update or delete needs its key: filter such rows out before."
        checks.append(Refusal(any_null(key), f"{subject}: a NULL in the key", hint))
    if sequence:
        nulls = any_null([column(name) for name in sequence])
        hint = "Give every row a value in these columns."
        checks.append(Refusal(nulls, f"{subject}: a NULL in the order ({', '.join(sequence)})", hint))
    return checks


def refuse_bad_changes(
    frame: DataFrame, row_kind: str, keys: Sequence[str], sequence: Sequence[str], subject: str
) -> DataFrame:
    """`frame`, whose query fails at a row with an unknown kind, or with NULL in the key or in the sequence.

    InputError for a sequence column that has no order.
    """
    sort_columns(frame, sequence)
    kind = column(row_kind)
    unknown = kind.isNull() | ~kind.isin(*KIND_CODES)
    wrong = Refusal(unknown, f"{subject}: no row kind in {row_kind}", "Row kinds are +I, -U, +U and -D.")
    nulls = null_checks([column(key) for key in keys], sequence, subject)
    return refuse_rows(frame, wrong, *nulls, place=place_columns(frame, sequence))


def require_row_kind(frame: DataFrame, row_kind: str) -> None:
    """OptionError or InputError for a frame without a string column of row kinds."""
    check_names({"row_kind": row_kind}, {})
    if row_kind not in frame.columns:
        raise InputError(
            f"row_kind names the column {row_kind!r}, which the DataFrame does not have, so it is no changelog.",
            hint=f"It has {', '.join(frame.columns)}. from_changelog makes row kinds of operation codes. Aggregates of "
            "Spark give rows, not changes: write them with the sink as they are, in output mode update.",
        )
    if not isinstance(frame.schema[row_kind].dataType, T.StringType):
        raise InputError(
            f"The column {row_kind} is {frame.schema[row_kind].dataType.simpleString()}, not string.",
            hint="Name the column with the row kinds +I, -U, +U and -D.",
        )
