"""From change events of three tables, through `from_changelog` and `to_starrocks_ops`, into StarRocks tables."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import RowOrder
from starrocks_txn_sink import SinkOptions, StarRocksSink, TableRoute
from starrocks_txn_sink.changelog import from_changelog, to_starrocks_ops
from tests.support.changelog_feed import Feed
from tests.support.query_port import query
from tests.support.servers import place_of

pytestmark = pytest.mark.spark

TABLES = {
    "customers": "id BIGINT, name STRING",
    "orders": "id BIGINT, customer BIGINT, amount BIGINT",
    "items": "order_id BIGINT, line BIGINT, article STRING",
}
KEYS = {"customers": ["id"], "orders": ["id"], "items": ["order_id", "line"]}
COLUMNS = {table: [part.split()[0] for part in columns.split(", ")] for table, columns in TABLES.items()}
EVENTS = "op string, lsn long, `table` string, before string, after string"
DEBEZIUM = {"c, r": "INSERT", "u": "UPDATE_BEFORE, UPDATE_AFTER", "d": "DELETE"}

Row = tuple[Any, ...]


def _ddl(table: str) -> str:
    columns = TABLES[table].replace("STRING", "VARCHAR(64)").split(", ")
    declarations = [column + " NOT NULL" * (column.split()[0] in KEYS[table]) for column in columns]
    keys = ", ".join(KEYS[table])
    return f"CREATE TABLE shop.{table} ({', '.join(declarations)}) PRIMARY KEY({keys}) DISTRIBUTED BY HASH({keys})"


in_any_order = pytest.mark.emulator(*map(_ddl, TABLES), row_order=RowOrder.ARBITRARY, row_order_seed=5)


class Source:
    """Three tables that change, and the events that tell of it: inserts, updates, moved keys, deletes."""

    def __init__(self, seed: int) -> None:
        self._random, self._lsn = Random(seed), 0
        self.tables: dict[str, dict[Row, Row]] = {table: {} for table in TABLES}

    def changes(self, count: int) -> list[dict[str, Any]]:
        return [self._change(self._random.choice(list(TABLES))) for _ in range(count)]

    def _change(self, table: str) -> dict[str, Any]:
        rows, random = self.tables[table], self._random
        if not rows or (len(rows) < 12 and random.random() < 0.4):
            after = self._free(table)
            rows[self._key(table, after)] = after
            return self._event("c", table, None, after)
        key = random.choice(list(rows))
        before = rows.pop(key)
        if random.random() < 0.25:
            return self._event("d", table, before, None)
        after = self._free(table) if random.random() < 0.4 else (*key, *self._row(table)[len(key) :])
        rows[self._key(table, after)] = after
        return self._event("u", table, before, after)

    def _free(self, table: str) -> Row:
        row = self._row(table)
        while self._key(table, row) in self.tables[table]:
            row = self._row(table)
        return row

    def _row(self, table: str) -> Row:
        number = self._random.randrange
        return {
            "customers": (number(20), f"name {number(99)}"),
            "orders": (number(20), number(20), number(999)),
            "items": (number(5), number(5), f"article {number(99)}"),
        }[table]

    def _key(self, table: str, row: Row) -> Row:
        return row[: len(KEYS[table])]

    def _event(self, op: str, table: str, before: Row | None, after: Row | None) -> dict[str, Any]:
        self._lsn += 1
        images = [None if row is None else _json(table, row) for row in (before, after)]
        return {"op": op, "lsn": self._lsn, "table": table, "before": images[0], "after": images[1]}


def _json(table: str, row: Row) -> str:
    return orjson.dumps(dict(zip(COLUMNS[table], row, strict=True))).decode()


def operations(events: DataFrame, table: str) -> DataFrame:
    """The operations for one table out of the events of all."""
    images = [F.from_json(side, TABLES[table]).alias(side) for side in ("before", "after")]
    shaped = events.filter(F.col("table") == table).select("op", "lsn", *images)
    changes = from_changelog(
        shaped,
        before="before",
        after="after",
        op_mapping=DEBEZIUM,
        partition_by=KEYS[table],
        sequence="lsn",
        passthrough="lsn",
    )
    return to_starrocks_ops(changes, sink_key=KEYS[table], sequence="lsn").withColumn("table", F.lit(table))


@in_any_order
def test_the_tables_equal_the_source(spark: SparkSession, server: Emulator, tmp_path: Path) -> None:
    source, feed = Source(seed=11), Feed(spark, tmp_path, EVENTS)
    parts = [operations(feed.frame, table) for table in TABLES]
    rows = reduce(lambda frame, right: frame.unionByName(right, allowMissingColumns=True), parts)
    sink = StarRocksSink(
        SinkOptions(**place_of(server), job="cdc"),
        routes=[TableRoute(table, COLUMNS[table]) for table in TABLES],
    )
    writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
    running = writer.start()
    try:
        for _ in range(2):
            events = source.changes(150)
            Random(1).shuffle(events)
            feed.add(*events)
            running.processAllAvailable()
            for table, truth in source.tables.items():
                stored = query(server, f"SELECT {', '.join(COLUMNS[table])} FROM shop.{table}")
                assert sorted(stored) == sorted(truth.values()), table
    finally:
        running.stop()
    assert running.exception() is None


@in_any_order
@pytest.mark.deep
def test_without_the_last_change_per_key_an_arbitrary_order_decides(spark: SparkSession, server: Emulator) -> None:
    """Why `to_starrocks_ops` chooses before the load: the same changes, written as they are, end otherwise."""
    rows = [("+I", key, "old", 1) for key in range(20)] + [("+U", key, "new", 2) for key in range(20)]
    changes = spark.createDataFrame(rows, "row_kind string, id long, name string, lsn long").coalesce(1)
    options = SinkOptions(**place_of(server), job="order")
    sink = StarRocksSink(options, routes=[TableRoute("customers", ["id", "name"])])
    sink.write(changes.withColumnRenamed("row_kind", "op"), batch_id=1)
    assert {name for (name,) in query(server, "SELECT name FROM shop.customers")} == {"old", "new"}
    sink.write(to_starrocks_ops(changes, sink_key="id", sequence="lsn"), batch_id=2)
    assert {name for (name,) in query(server, "SELECT name FROM shop.customers")} == {"new"}


@pytest.mark.emulator(
    "CREATE TABLE shop.report (name VARCHAR(64) NOT NULL, level DOUBLE) PRIMARY KEY(name) DISTRIBUTED BY HASH(name)"
)
def test_an_aggregate_in_output_mode_update_is_written_as_it_is(
    spark: SparkSession, server: Emulator, tmp_path: Path
) -> None:
    """Also with a key that is made of the grouping columns: no changelog, no materializer."""
    feed = Feed(spark, tmp_path, "id long, name string, level long")
    groups = feed.frame.groupBy("id", "name").agg(F.avg("level").alias("level"))
    rows = groups.select(F.concat(F.lit("id:"), "id", F.lit(",name:"), "name").alias("name"), "level")
    sink = StarRocksSink(
        SinkOptions(**place_of(server), job="report"), routes=[TableRoute("report", ["name", "level"])]
    )
    writer = rows.writeStream.outputMode("update").foreachBatch(sink)
    running = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        for level, average in ((2, 2.0), (4, 3.0)):
            feed.add({"id": 1, "name": "Ann", "level": level})
            running.processAllAvailable()
            assert query(server, "SELECT name, level FROM shop.report") == [("id:1,name:Ann", average)]
    finally:
        running.stop()
