"""What a table needs, told by a frame, by rows or by the source's schema: one statement."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import types as T

from starrocks_txn_sink.coordinator.model import missing_of_words
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.options import TableOptions
from starrocks_txn_sink.rows.target import NO_KEYS, parse_type
from starrocks_txn_sink.sink.schema.plan import TableLayout, plan_missing
from starrocks_txn_sink.sink.schema.source_plan import plan_sources
from starrocks_txn_sink.sink.typed.evolution import plan_changes
from starrocks_txn_sink.sink.typed.route import TableRoute
from starrocks_txn_sink.sources.formats.connect_types import SourceTable

DECIMAL = "org.apache.kafka.connect.data.Decimal"


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {
        "type": "bytes",
        "name": DECIMAL,
        "parameters": {"scale": str(scale), "connect.decimal.precision": str(precision)},
    }


COLUMNS: list[tuple[T.DataType, dict[str, Any], list[str], str, str]] = [
    (T.StringType(), {"type": "string"}, ["TEXT"], "VARCHAR(1048576)", "VARCHAR(65533)"),
    (T.BooleanType(), {"type": "boolean"}, ["TRUTH"], "BOOLEAN", "BOOLEAN"),
    (T.IntegerType(), {"type": "int32"}, ["INTEGER", "=INT"], "INT", "INT"),
    (T.LongType(), {"type": "int64"}, ["INTEGER"], "BIGINT", "BIGINT"),
    (T.FloatType(), {"type": "float"}, ["FRACTION", "=FLOAT"], "FLOAT", ""),
    (T.DoubleType(), {"type": "double"}, ["FRACTION"], "DOUBLE", ""),
    (T.DecimalType(10, 2), decimal(10, 2), ["TEXT", "=DECIMAL(10,2)"], "DECIMAL(10,2)", ""),
    (T.DecimalType(20, 0), decimal(20, 0), ["TEXT", "=DECIMAL(20,0)"], "DECIMAL(20,0)", "LARGEINT"),
    (T.DateType(), {"type": "int32", "name": "io.debezium.time.Date"}, ["TEXT", "=DATE"], "DATE", "DATE"),
    (
        T.TimestampType(),
        {"type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        ["TEXT", "=DATETIME"],
        "DATETIME",
        "DATETIME",
    ),
]
"""A column of a frame, of a schema and of rows; its type, and its type in a key ("": StarRocks takes none)."""


def created(columns: str) -> str:
    return f"CREATE TABLE IF NOT EXISTS `d`.`t` ({columns}) PRIMARY KEY (`k`) DISTRIBUTED BY HASH (`k`)"


def by_frame(columns: dict[str, T.DataType], key: str) -> list[str]:
    frame = T.StructType([T.StructField(name, kind) for name, kind in columns.items()])
    return [change.sql for change in plan_changes("d", [TableRoute("t", [*columns], keys=[key])], frame, {})]


def by_schema(columns: dict[str, dict[str, Any]], key: str) -> list[str]:
    fields = [{"field": name, "optional": True, **kind} for name, kind in columns.items()]
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    plan = plan_sources(
        "d", {"t": [SourceTable("public.t", json.dumps(schema), (key,))]}, {}, {}, {}, lambda _: TableLayout()
    )
    return [change.sql for change in plan.changes]


def by_rows(columns: dict[str, list[str]], key: str) -> list[str]:
    return [
        change.sql
        for change in plan_missing("d", missing_of_words({"t": columns}), {}, {"t": TableOptions(keys=[key])})
    ]


@pytest.mark.parametrize(("frame", "schema", "rows", "type_", "of_key"), COLUMNS)
def test_three_inputs_make_one_table(
    frame: T.DataType, schema: dict[str, Any], rows: list[str], type_: str, of_key: str
) -> None:
    expected = created(f"`k` INT NOT NULL, `v` {type_} NULL")
    assert by_frame({"k": T.IntegerType(), "v": frame}, "k") == [expected]
    assert by_schema({"k": {"type": "int32"}, "v": schema}, "k") == [expected]
    assert by_rows({"k": ["INTEGER", "=INT"], "v": rows}, "k") == [expected]
    if of_key:
        expected = (
            f"CREATE TABLE IF NOT EXISTS `d`.`t` (`k` {of_key} NOT NULL) PRIMARY KEY (`k`) DISTRIBUTED BY HASH (`k`)"
        )
        assert by_frame({"k": frame}, "k") == by_schema({"k": schema}, "k") == by_rows({"k": rows}, "k") == [expected]
        return
    assert parse_type(type_).name in NO_KEYS
    assert by_schema({"k": schema}, "k") == []  # a refusal
    with pytest.raises(StarRocksSinkError, match="takes no such key"):
        by_frame({"k": frame}, "k")
    with pytest.raises(StarRocksSinkError, match="takes no such key"):
        by_rows({"k": rows}, "k")
