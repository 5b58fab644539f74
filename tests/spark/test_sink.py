"""The sink on real Spark, over HTTP, into the emulator."""

from __future__ import annotations

import datetime
import decimal
import os
import random
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import Receipt, SinkOptions, StarRocksSink, TableRoute
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import InputError, OptionError, RowsRejected, ServerRefused
from starrocks_txn_sink.telemetry import Event
from tests.support.query_port import query
from tests.support.servers import place_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.emulator(
        "CREATE TABLE shop.orders (id BIGINT NOT NULL, part VARCHAR(32), amount DECIMAL(10,2) DEFAULT '0')"
        " PRIMARY KEY(id) DISTRIBUTED BY HASH(id)",
        "CREATE TABLE shop.items (id BIGINT NOT NULL, part VARCHAR(32), position BIGINT) DUPLICATE KEY(id)"
        " DISTRIBUTED BY HASH(id)",
    ),
]

ROWS = "source_partition string, position long, seq long, table string, op string, row string, transaction_end boolean"


_LOADS = "SELECT count(*) FROM information_schema.loads WHERE DB_NAME = 'shop' AND TYPE <> 'INSERT'"
"""Loads of the test; a server lists INSERT statements, too, those into the ledger among them."""


def options(server: Emulator, **changes: Any) -> SinkOptions:
    values = {**place_of(server), "job": "test"}
    return SinkOptions(**{**values, **changes})


def row(partition: str, position: int, seq: int, table: str, last: bool, op: str | None = None) -> tuple[Any, ...]:
    key = position * 100 + seq
    content = {"id": key, "part": partition} | ({"position": position} if table == "items" else {"amount": "1.50"})
    return partition, position, seq, table, op, orjson.dumps(content).decode(), last


def transactions(spark: SparkSession, partitions: int, per_partition: int, size: int = 4, seed: int = 1) -> DataFrame:
    """Whole source transactions over two tables, shuffled: Spark promises no order."""
    rows = [
        row(f"p-{partition}", position * partitions + partition, seq, ["orders", "items"][seq % 2], seq == size - 1)
        for partition in range(partitions)
        for position in range(1, per_partition + 1)
        for seq in range(size)
    ]
    random.Random(seed).shuffle(rows)
    return spark.createDataFrame(rows, ROWS).repartition(3)


def test_a_micro_batch_over_partitions_and_tables_is_one_starrocks_transaction(
    spark: SparkSession, server: Emulator
) -> None:
    receipts = StarRocksSink(options(server, lanes=1)).write(transactions(spark, partitions=5, per_partition=40))
    (receipt,) = receipts
    assert receipt.rows == 5 * 40 * 4
    assert receipt.source_transactions == 200
    assert receipt.loads == 2
    assert receipt.label.startswith("test-")
    assert query(server, "SELECT count(*), count(DISTINCT id) FROM shop.orders") == [(400, 400)]
    assert query(server, "SELECT count(*), count(DISTINCT id) FROM shop.items") == [(400, 400)]


def test_four_lanes_write_one_transaction_with_each_source_partition_in_one_lane(
    spark: SparkSession, server: Emulator
) -> None:
    (receipt,) = StarRocksSink(options(server, lanes=4)).write(transactions(spark, partitions=8, per_partition=10))
    assert len(receipt.positions) == 8
    assert receipt.loads == 8  # of two tables by four lanes
    assert query(server, "SELECT count(*) FROM shop.items") == [(160,)]


def test_the_last_change_of_a_key_wins_and_deletes_delete(spark: SparkSession, server: Emulator) -> None:
    def change(position: int, key: int, op: str | None, amount: str) -> tuple[Any, ...]:
        return "p-0", position, 0, "orders", op, f'{{"id": {key}, "part": "p", "amount": "{amount}"}}', True

    rows = [
        change(1, 1, "insert", "1"),
        change(2, 2, None, "2"),
        change(3, 1, "update", "3"),
        change(4, 2, "delete", "0"),
        change(5, 3, "DELETE", "0"),
        change(6, 3, "upsert", "4"),
    ]
    StarRocksSink(options(server)).write(spark.createDataFrame(rows[::-1], ROWS).repartition(2))
    assert query(server, "SELECT id, amount FROM shop.orders ORDER BY id") == [
        (1, decimal.Decimal("3.00")),
        (3, decimal.Decimal("4.00")),
    ]


def test_streaming_through_foreach_batch(spark: SparkSession, server: Emulator, tmp_path: Path) -> None:
    source = tmp_path / "source"
    events: list[Event] = []
    source.mkdir()
    for number in range(3):
        lines = [
            dict(zip(ROWS_NAMES, row("p-0", number * 10 + n, seq, "items", seq == 1), strict=True))
            for n in range(1, 4)
            for seq in range(2)
        ]
        file = source / f"{number}.json"
        file.write_bytes(b"\n".join(orjson.dumps(line) for line in lines))
        os.utime(file, (number, number))  # Spark takes the oldest file first
    sink = StarRocksSink(options(server, job=None), listener=events.append)
    stream = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1).json(str(source))
    query_ = (
        stream.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query_.awaitTermination(120)
    assert query(server, "SELECT count(*) FROM shop.items") == [(18,)]
    receipts: list[Receipt] = [event.fields["receipt"] for event in events if event.name == "receipt.collected"]
    assert [receipt.batch_id for receipt in receipts] == [0, 1, 2]
    assert all(receipt.label.startswith(f"query-{query_.id}-") for receipt in receipts)
    assert sum(event.name == "batch.completed" for event in events) == 3


ROWS_NAMES = [part.split()[0] for part in ROWS.split(", ")]


def test_an_empty_batch_leaves_nothing(spark: SparkSession, server: Emulator) -> None:
    assert StarRocksSink(options(server)).write(spark.createDataFrame([], ROWS)) == []
    assert query(server, _LOADS) == [(0,)]


@pytest.mark.deep
def test_a_source_transaction_of_200_mb_flows_through_the_buffer_limit(spark: SparkSession, server: Emulator) -> None:
    count, filler = 400_000, "x" * 500
    rows = spark.range(count).select(
        F.lit("p-0").alias("source_partition"),
        F.lit(7).cast("long").alias("position"),
        F.col("id").alias("seq"),
        F.when(F.col("id") % 2 == 0, "items").otherwise("orders").alias("table"),
        F.concat(
            F.lit('{"ignored":"'), F.lit(filler), F.lit('","part":"p","id":'), F.col("id").cast("string"), F.lit("}")
        ).alias("row"),
        (F.col("id") == count - 1).alias("transaction_end"),
    )
    limits = {"buffer_bytes": 32 << 20, "chunk_bytes": 4 << 20, "load_bytes": 4 << 20}
    (receipt,) = StarRocksSink(options(server, **limits, schema_changes="ignore")).write(rows)
    assert receipt.bytes > 190 << 20
    assert receipt.loads >= receipt.bytes / (32 << 20)
    assert query(server, "SELECT count(*) FROM shop.items") == [(count // 2,)]
    assert query(server, "SELECT count(*) FROM shop.orders") == [(count // 2,)]


def test_rejected_rows_fail_the_job_and_leave_nothing(spark: SparkSession, server: Emulator) -> None:
    good = transactions(spark, partitions=2, per_partition=2)
    bad = spark.createDataFrame([("p-9", 1, 0, "orders", None, '{"part": "no key"}', True)], ROWS)
    with pytest.raises(RowsRejected):
        StarRocksSink(options(server)).write(good.union(bad))
    assert query(server, "SELECT count(*) FROM shop.items") == [(0,)]


def test_an_unknown_table_is_named(spark: SparkSession, server: Emulator) -> None:
    bad = spark.createDataFrame([("p-9", 1, 0, "nowhere", None, "{}", True)], ROWS)
    with pytest.raises(ServerRefused, match="Failed to find table nowhere"):
        StarRocksSink(options(server)).write(bad)


def test_typed_columns_become_json_in_the_jvm(spark: SparkSession, server: Emulator) -> None:
    query(
        server,
        "CREATE TABLE shop.typed (id BIGINT NOT NULL, d DECIMAL(38,10), ts DATETIME, dt DATE, s STRING, b BOOLEAN,"
        " f DOUBLE) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)",
    )
    values = (
        1,
        decimal.Decimal("1234567890123456789012345678.0123456789"),
        datetime.datetime(2026, 1, 2, 3, 4, 5, 678901),
        datetime.date(2026, 1, 2),
        'quo"te\\ 😀\n',
        True,
        0.1,
    )
    frame = spark.createDataFrame(
        [values], "key long, d decimal(38,10), ts timestamp_ntz, dt date, s string, b boolean, f double"
    )
    columns = {"id": "key", **{name: name for name in ("d", "ts", "dt", "s", "b", "f")}}
    StarRocksSink(options(server), routes=[TableRoute("typed", columns)]).write(frame)
    ((*values_read,),) = query(server, "SELECT id, d, ts, dt, s, b, f FROM shop.typed")
    values_read[5] = bool(values_read[5])
    assert tuple(values_read) == values


def test_two_routes_split_typed_rows_by_table(spark: SparkSession, server: Emulator) -> None:
    frame = spark.createDataFrame(
        [(1, "orders", "a", 5), (2, "items", "b", 6)], "id long, table string, part string, position2 long"
    )
    routes = [
        TableRoute("orders", ["id", "part"]),
        TableRoute("items", {"id": "id", "part": "part", "position": "position2"}),
    ]
    (receipt,) = StarRocksSink(options(server), routes=routes).write(frame)
    assert receipt.tables == {"orders": 1, "items": 1}
    assert query(server, "SELECT id, part, position FROM shop.items") == [(2, "b", 6)]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"op": "merge"}, "unknown op .merge. at source partition p-., position [23]"),
        ({"op": "delete", "table": "items"}, "delete for the table items, which has no primary key"),
        ({"database": "other"}, "a row for database 'other'.*this sink writes '.*shop'"),
    ],
)
def test_rows_that_cannot_be_written_fail_with_their_place(
    spark: SparkSession, server: Emulator, change: dict[str, str], text: str
) -> None:
    frame = transactions(spark, partitions=2, per_partition=1, size=1)
    for name, value in change.items():
        frame = frame.withColumn(name, F.lit(value))
    with pytest.raises(Exception, match=text):
        StarRocksSink(options(server)).write(frame)
    assert query(server, "SELECT count(*) FROM shop.orders") == [(0,)]


def test_torn_input_is_refused(spark: SparkSession, server: Emulator) -> None:
    cut_frame = transactions(spark, partitions=1, per_partition=3).filter(
        ~((F.col("position") == 2) & F.col("transaction_end"))
    )
    with pytest.raises(InputError, match="position 2 of source partition p-0 has no row marked as its end"):
        StarRocksSink(options(server)).write(cut_frame)
    assert query(server, "SELECT count(*) FROM shop.orders") == [(0,)]


def test_missing_columns_and_wrong_types_are_named_at_call_time(spark: SparkSession, server: Emulator) -> None:
    frame = transactions(spark, partitions=1, per_partition=1)
    sink = StarRocksSink(options(server))
    with pytest.raises(InputError, match="lacks the columns position, row; it has source_partition"):
        sink.write(frame.drop("position", "row"))
    with pytest.raises(InputError, match="Column position of the sink's input is string, not integer"):
        sink.write(frame.withColumn("position", F.col("position").cast("string")))
    with pytest.raises(OptionError, match="more than one TableRoute for orders"):
        StarRocksSink(options(server), routes=[TableRoute("orders", ["id"]), TableRoute("orders", ["id"])])


def test_a_stop_in_the_middle_is_not_swallowed(spark: SparkSession, server: Emulator, tmp_path: Path) -> None:
    """A swallowed stop would make Spark write the batch's commit file, and the batch would be lost."""
    errors: list[BaseException] = []

    class Recording(StarRocksSink):
        def __call__(self, batch: DataFrame, batch_id: int) -> None:
            try:
                super().__call__(batch, batch_id)
            except BaseException as error:
                errors.append(error)
                raise

    server.faults.replace({"rules": [{"operation": "commit", "action": "hold_commit", "seconds": 600}]})
    rows = row("p-0", 1, 0, "items", True)
    source = tmp_path / "source"
    source.mkdir()
    (source / "1.json").write_bytes(orjson.dumps(dict(zip(ROWS_NAMES, rows, strict=True))))
    checkpoint = tmp_path / "checkpoint"
    stream = spark.readStream.schema(ROWS).json(str(source))
    query_ = stream.writeStream.foreachBatch(Recording(options(server))).option("checkpointLocation", str(checkpoint))
    running = query_.start()
    try:
        deadline = Deadline.after(60, SystemClock())
        while not query(server, "SELECT 1 FROM information_schema.loads") and not deadline.expired():
            running.awaitTermination(1)
    finally:
        running.stop()
    assert running.exception() is None
    assert len(errors) == 1
    assert "Py4J" in type(errors[0]).__name__
    assert not list((checkpoint / "commits").glob("0"))
