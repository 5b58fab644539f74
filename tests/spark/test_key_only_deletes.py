"""Deletes that carry only their key, in every way into a table with NOT NULL columns: the server judges them like any
row (wire contract 5.6), so the sink fills what is missing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F

from starrocks_emulator.server import Emulator
from starrocks_spark_stages.assemble.debezium import assemble_debezium
from starrocks_spark_stages.parse.debezium import parse_debezium, parse_debezium_transactions
from starrocks_txn_sink import SinkOptions, StarRocksSink, TableRoute, TransactionAssembly
from starrocks_txn_sink.changelog import to_changelog
from starrocks_txn_sink.errors import RowsRejected
from starrocks_txn_sink.rows.columns import KEY_DELETES
from starrocks_txn_sink.sink.projection import lane_input
from starrocks_txn_sink.sink.typed.terms import TableTerms
from starrocks_txn_sink.telemetry import Event
from tests.support.key_only_rows import KEY_ONLY, REQUIRED
from tests.support.query_port import query
from tests.support.servers import database_of, place_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.emulator(
        "CREATE TABLE shop.people (id BIGINT NOT NULL, name VARCHAR(32) NOT NULL, amount DECIMAL(10,2) NOT NULL"
        " DEFAULT '7', day DATE NOT NULL, at DATETIME NOT NULL, good BOOLEAN NOT NULL, doc JSON NOT NULL,"
        " tags ARRAY<STRING> NOT NULL, `größe` INT NOT NULL, note VARCHAR(9)) PRIMARY KEY(id)"
        " DISTRIBUTED BY HASH(id)"
    ),
]

MARKS = "source_partition string, position long, seq long, transaction_end boolean, op string"
FULL: dict[str, Any] = {
    "id": 1,
    "name": "Ann",
    "amount": "1.50",
    "day": "2026-01-02",
    "at": "2026-01-02 03:04:05",
    "good": True,
    "doc": {"a": 1},
    "tags": ["a"],
    "größe": 3,
    "note": None,
}


def options(server: Emulator, **changes: Any) -> SinkOptions:
    values = {**place_of(server), "job": "test"}
    return SinkOptions(**{**values, **changes})


def ready(spark: SparkSession) -> DataFrame:
    """Three people, and deletes of two of them: by key alone, and with NULLs, as Debezium makes them."""
    rows = [
        *(({**FULL, "id": number}, "c") for number in (1, 2, 3)),
        ({"id": 1}, "d"),
        ({**dict.fromkeys(FULL), "id": 2}, "d"),
    ]
    return spark.createDataFrame(
        [("p", at, 0, True, op, "people", json.dumps(row)) for at, (row, op) in enumerate(rows)],
        f"{MARKS}, table string, row string",
    )


def left(server: Emulator) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in query(server, "SELECT id FROM shop.people ORDER BY id")]


def test_ready_rows(spark: SparkSession, server: Emulator) -> None:
    StarRocksSink(options(server)).write(ready(spark))
    assert left(server) == [(3,)]


def test_ready_rows_of_which_only_the_last_is_sent(spark: SparkSession, server: Emulator) -> None:
    StarRocksSink(options(server)).write(ready(spark))
    assert left(server) == [(3,)]


def test_lanes_that_assemble(spark: SparkSession, server: Emulator) -> None:
    frame = ready(spark)
    data = frame.select(
        "source_partition",
        (F.col("position") + 2).alias("position"),
        F.lit("DATA").alias("type"),
        F.lit("t").alias("txn_id"),
        F.lit(database_of(server)).alias("database"),
        "table",
        "op",
        "row",
    )
    ends = spark.createDataFrame([("p", 1, "BEGIN", "t"), ("p", 9, "END", "t")], data.schema.names[:4])
    events = data.unionByName(ends, allowMissingColumns=True).coalesce(1).sortWithinPartitions("position")
    StarRocksSink(options(server), assemble=TransactionAssembly()).write(events)
    assert left(server) == [(3,)]


def said(events: list[Event]) -> list[str]:
    return [event.name for event in events if event.name in ("deletes.unfilled", "receipt.collected", "batch.failed")]


@pytest.mark.deep
def test_without_sql_they_are_said_before_the_first_load(
    spark: SparkSession, server: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    """The server refuses such deletes from a table with NOT NULL columns, and takes them where all may be NULL."""
    query(server, "CREATE TABLE shop.notes (id BIGINT NOT NULL, note INT) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)")
    keyed = ready(spark).withMetadata("op", {KEY_DELETES: True})
    blind = options(server, query_url=None, delivery="at-least-once")
    events: list[Event] = []
    sink = StarRocksSink(blind, listener=events.append)
    with pytest.raises(RowsRejected):
        sink.write(keyed)
    assert said(events) == ["deletes.unfilled", "batch.failed"]
    notes = keyed.filter("op = 'd'").withColumns({"table": F.lit("notes"), "row": F.lit('{"id":1}')})
    for _ in range(2):
        sink.write(notes)
    assert said(events)[2:] == ["deletes.unfilled", "receipt.collected", "receipt.collected"]
    StarRocksSink(options(server), listener=events.append).write(keyed)
    assert said(events)[5:] == ["receipt.collected"]
    lines = [record for record in caplog.records if "deletes.unfilled" in record.getMessage()]
    assert {line.levelname for line in lines} == {"WARNING"}
    assert all(line.getMessage().endswith("give deletes their whole row.'") for line in lines)


@pytest.mark.deep
def test_frames_know_that_deletes_carry_only_their_key(spark: SparkSession) -> None:
    changes = spark.createDataFrame(
        [("k", "v", "t", 0, 0)], "key string, value string, topic string, partition int, offset int"
    )
    for deleted_row, marked in (("key", True), ("before", None)):
        rows = parse_debezium(changes, deleted_row=deleted_row)  # type: ignore[arg-type]
        assembled = assemble_debezium(rows, parse_debezium_transactions(changes))
        assert [frame.schema["op"].metadata.get(KEY_DELETES) for frame in (rows, assembled)] == [marked, marked]
    kinds = spark.createDataFrame([("-D", 1, "a")], "row_kind string, id int, v string")
    for full, marked in ((False, True), (True, None)):
        events = to_changelog(kinds, partition_by="id", produces_full_deletes=full)
        assert events.schema["op"].metadata.get(KEY_DELETES) is marked
    only_upserts = to_changelog(kinds, partition_by="id", produces_full_deletes=False, op_mapping={"INSERT": "c"})
    assert KEY_DELETES not in only_upserts.schema["op"].metadata


def test_typed_columns(spark: SparkSession, server: Emulator) -> None:
    query(server, "CREATE TABLE shop.n (id BIGINT NOT NULL, v VARCHAR(4) NOT NULL, b BOOLEAN NOT NULL, n INT NOT NULL,"
          " d DATE NOT NULL) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)")  # fmt: skip
    rows = [("p", 1, 0, True, "c", 1, "v", True, 5), ("p", 2, 0, True, "c", 2, "w", False, 6)]
    rows.append(("p", 3, 0, True, "d", 1, None, None, None))  # type: ignore[arg-type]
    frame = spark.createDataFrame(rows, f"{MARKS}, id long, v string, b boolean, n int")
    frame = frame.withColumn("d", F.when(F.col("op") == "c", F.current_date()))
    sink = StarRocksSink(options(server), routes=[TableRoute("n", ["id", "v", "b", "n", "d"])])
    sink.write(frame)
    assert query(server, "SELECT id, v FROM shop.n") == [(2, "w")]
    upsert = frame.filter("op = 'd'").withColumns({"op": F.lit("u"), "position": F.lit(9)})
    with pytest.raises(Exception, match="column v of table n is NULL, but the column is NOT NULL"):
        sink.write(upsert)


def test_the_jvm_and_arrow_make_the_same_payloads(spark: SparkSession) -> None:
    rows = [("p", at, 0, True, op, "items", row) for at, (row, _) in enumerate(KEY_ONLY) for op in ("d", "u")]
    rows.append(("p", 99, 0, True, "d", "others", '{"id":1}'))
    frame = spark.createDataFrame(rows, f"{MARKS}, table string, row string")
    sink_options = SinkOptions(load_url="fe", database="shop", delivery="at-least-once")
    projected = lane_input(frame, TableTerms(sink_options, REQUIRED), 1)
    payloads = [row["payload"] for row in projected.collect() if row["table"]]
    assert payloads[0:-1:2] == [f',{{"__op":1,{expected}' for _, expected in KEY_ONLY]
    assert payloads[1:-1:2] == [f",{row}" for row, _ in KEY_ONLY]
    assert payloads[-1] == ',{"__op":1,"id":1}'
