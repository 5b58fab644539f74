"""The table of docs/types.md, made from the rules themselves."""

from __future__ import annotations

from pyspark.sql import types as T  # noqa: N812 - everybody's name for it

from starrocks_txn_sink.sink.typed.fit import Fit, fit
from starrocks_txn_sink.sink.typed.target import parse_type

SOURCES: tuple[T.DataType, ...] = (
    T.BooleanType(),
    T.ByteType(),
    T.ShortType(),
    T.IntegerType(),
    T.LongType(),
    T.DecimalType(38, 0),
    T.DecimalType(10, 2),
    T.FloatType(),
    T.DoubleType(),
    T.DateType(),
    T.TimestampType(),
    T.TimestampNTZType(),
    T.StringType(),
    T.BinaryType(),
    T.VariantType(),
    T.ArrayType(T.IntegerType()),
    T.MapType(T.StringType(), T.DoubleType()),
    T.StructType([T.StructField("a", T.IntegerType()), T.StructField("b", T.StringType())]),
)
"""One of each Spark type that goes somewhere."""

TARGETS = (
    *("boolean", "tinyint(4)", "smallint(6)", "int(11)", "bigint(20)", "bigint(20) unsigned", "float", "double"),
    *("decimal(10, 2)", "decimal(38, 18)", "date", "datetime", "char(10)", "varchar(20)", "varbinary(8)", "json"),
    *("array<int(11)>", "map<varchar(20),double>", "struct<a int(11), b varchar(20)>"),
)
"""`COLUMN_TYPE` of one column of each StarRocks type."""


def render_types() -> str:
    """The Markdown table: where each Spark type may go, and what is checked row by row on the way."""
    lines = ["| Spark | StarRocks column | checked in each row |", "|---|---|---|"]
    for source in SOURCES:
        targets, checks = [], []
        for text in TARGETS:
            target = parse_type(text)
            found = fit(source, target)
            if isinstance(found, Fit):
                targets.append(f"{target}{' (through `to_binary`)' if found.hexed else ''}")
                checks += [fault.text for fault in found.faults]
        told = "; ".join(dict.fromkeys(checks)) or "-"
        lines.append(f"| `{source.simpleString()}` | {', '.join(targets)} | {told} |")
    return "\n".join(lines) + "\n"
