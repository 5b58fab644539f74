"""How values become fields of a CSV row, for routes of a table whose property `format` is csv.

The separators are two control characters, and no text may hold them: quoting and escaping is where readers of CSV
differ. What CSV has no form for (arrays, maps, structs) goes as JSON only. A NULL is `\\N` (wire contract 5.3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql import types as T  # noqa: N812

from starrocks_txn_sink.options.load_properties import CSV_COLUMN, CSV_ROW
from starrocks_txn_sink.sink.typed.fit import Fault
from starrocks_txn_sink.sink.typed.target import TargetType

NULL = r"\N"
Forms = Mapping[str, str]
"""Options of to_json: the forms of dates and timestamps, and the time zone."""
Text = Callable[[Column, Forms], Column]
"""Turns a column, as its `Fit` has encoded it, into texts."""

UNWRITABLE = Fault(
    lambda column: column.contains(CSV_COLUMN) | column.contains(CSV_ROW) | (column == NULL),
    r"holds a separator of CSV (character 1 or 2), or is \N",
    silent=True,
)


def csv_text(source: T.DataType, target: TargetType) -> Text | str:
    """How encoded values of `source` are written into a column of type `target`, or why they are not.

    A text for a JSON column is written as it came, not as it was parsed: give `as_it_came` those.
    """
    if target.name in ("ARRAY", "MAP", "STRUCT"):
        return "arrays, maps and structs are written as JSON only; set the property format of this table to json"
    if target.name == "JSON":
        return _document(source)
    if isinstance(source, (T.DateType, T.TimestampType, T.TimestampNTZType)):
        return lambda column, forms: F.get_json_object(F.to_json(F.struct(column.alias("v")), dict(forms)), "$.v")
    if isinstance(source, T.BooleanType):
        return lambda column, _: column.cast("int").cast("string")
    return lambda column, _: column.cast("string")


def as_it_came(source: T.DataType, target: TargetType) -> bool:
    """Whether a value is written without being encoded first."""
    return target.name == "JSON" and isinstance(source, T.StringType)


def holds_text(source: T.DataType) -> bool:
    """Whether a value may hold separators."""
    return isinstance(source, T.StringType)


def csv_row(fields: list[Column]) -> Column:
    """A row without what separates it from others."""
    return F.concat_ws(CSV_COLUMN, *(F.coalesce(field, F.lit(NULL)) for field in fields))


def _document(source: T.DataType) -> Text | str:
    if isinstance(source, T.StringType):
        return lambda column, _: column
    if isinstance(source, (T.VariantType, T.ArrayType, T.MapType, T.StructType)):
        return lambda column, forms: F.to_json(column, dict(forms))
    return "only documents are written into JSON columns as CSV; set the property format of this table to json"
