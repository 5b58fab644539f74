"""What operators get from a real pipeline: the auditor beside the sink."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pyspark.sql import DataFrame, SparkSession

from starrocks_txn_sink import Audit, SinkOptions, StarRocksSink
from starrocks_txn_sink.emulator.server import Emulator
from starrocks_txn_sink.events import Event

pytestmark = pytest.mark.spark

ROWS = "source_partition string, position long, seq long, table string, row string, transaction_end boolean"
MONEY = (
    "SELECT * FROM (SELECT (SELECT coalesce(sum(cents), 0) FROM bank.a) + (SELECT coalesce(sum(cents), 0) FROM bank.b)"
    " AS total) t WHERE total <> 0"
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(tmp_path / "emulator") as emulator:
        execute(emulator, "CREATE DATABASE bank")
        for table in "ab":
            execute(
                emulator,
                f"CREATE TABLE bank.{table} (id BIGINT NOT NULL, cents BIGINT, note VARCHAR(99)) PRIMARY KEY(id)"
                " DISTRIBUTED BY HASH(id)",
            )
        yield emulator


def execute(server: Emulator, sql: str) -> list[tuple[Any, ...]]:
    connection = pymysql.connect(host="127.0.0.1", port=server.query_port, user="root", autocommit=True)
    with connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def options(server: Emulator, **changes: Any) -> SinkOptions:
    values = {"load_url": server.load_url, "query_url": server.query_url, "database": "bank", "job": "move"}
    return SinkOptions(**{**values, **changes})


def moves(spark: SparkSession, first: int, count: int, note: str = "") -> DataFrame:
    """Source transactions that move a cent from one table to the other: the sum over both stays."""
    rows = [
        ("p-0", position, seq, table, f'{{"id": {position}, "cents": {cents}, "note": "{note}"}}', seq == 1)
        for position in range(first, first + count)
        for seq, (table, cents) in enumerate((("a", 1), ("b", -1)))
    ]
    return spark.createDataFrame(rows, ROWS)


def test_an_audit_beside_the_sink_sees_nothing_torn_and_tells_what_is(spark: SparkSession, server: Emulator) -> None:
    told: list[Event] = []
    sink = StarRocksSink(options(server), listener=told.append, audit=Audit(MONEY, interval=0.02))
    assert sink.auditing is not None
    sink.write(moves(spark, 1, 20))
    auditor = sink.auditing.auditor
    assert auditor.samples > 0
    assert auditor.violations == 0
    execute(server, "INSERT INTO bank.a (id, cents) VALUES (999, 7)")
    sink.write(moves(spark, 21, 20))
    sink.auditing.stop()
    assert auditor.first is not None
    assert auditor.first.rows == (("7",),)
    violated = [event.fields for event in told if event.name == "integrity.violated"]
    assert violated[0]["kind"] == "torn"
    assert len(violated) == auditor.violations
