"""Bad rows on real Spark, through the emulator: the error's text, the quarantine, and that counts add up."""

from __future__ import annotations

import random
import re
from typing import Any

import orjson
import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import SinkOptions, StarRocksSink, TableRoute
from starrocks_txn_sink.errors import InputError, OptionError, RowsRejected, UnfitValue
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE
from tests.support.query_port import query
from tests.support.servers import place_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.emulator(
        "CREATE TABLE shop.orders (id BIGINT NOT NULL, amount INT NOT NULL, note VARCHAR(4)) PRIMARY KEY(id)"
        " DISTRIBUTED BY HASH(id)",
        "CREATE TABLE shop.items (id BIGINT NOT NULL, place INT) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id)",
    ),
]

ROWS = "source_partition string, position long, seq long, table string, row string, transaction_end boolean"
SECRET = 987654321987


def sink(server: Emulator, **changes: Any) -> StarRocksSink:
    routes = changes.pop("routes", ())
    values = {**place_of(server), "job": "test"}
    return StarRocksSink(SinkOptions(**{**values, **changes}), routes=routes)


def frame(spark: SparkSession, bad: set[int], partitions: int = 3, per_partition: int = 20) -> DataFrame:
    """Source transactions of an order and two items; those of a number in `bad` have an order without an amount."""
    rows = []
    for number in range(partitions * per_partition):
        place = (f"p-{number % partitions}", number // partitions + 1)
        order = {"id": number} if number in bad else {"id": number, "amount": number}
        rows.append((*place, 0, "orders", orjson.dumps(order).decode(), False))
        rows += [(*place, seq, "items", f'{{"id": {number}, "place": {seq}}}', seq == 2) for seq in (1, 2)]
    random.Random(1).shuffle(rows)
    return spark.createDataFrame(rows, ROWS).repartition(3)


def test_the_error_names_table_count_and_reasons_but_no_values(spark: SparkSession, server: Emulator) -> None:
    """The server gives reasons where a row of the load is left (wire contract 7.5)."""
    bad = (F.col("table") == "orders") & ~((F.col("source_partition") == "p-0") & (F.col("position") == 1))
    rows = frame(spark, set()).withColumn(
        "row", F.when(bad, F.lit(f'{{"id": 1, "amount": {SECRET}}}')).otherwise(F.col("row"))
    )
    with pytest.raises(RowsRejected) as failure:
        sink(server, compact=False, check_values=False).write(rows)  # the rows have one key
    message = str(failure.value)
    assert "The server rejected 59 rows of orders" in message
    assert "column amount (59)" in message
    assert str(SECRET) not in message
    with pytest.raises(UnfitValue) as unfit:
        sink(server).write(rows)
    message = str(unfit.value)
    assert re.search(r"column amount of table orders at source partition p-\d, position \d+: it is outside", message)
    assert str(SECRET) not in message


@pytest.mark.parametrize("lanes", [pytest.param(1, marks=pytest.mark.deep), 2])
def test_bad_source_transactions_are_dead_lettered_whole(spark: SparkSession, server: Emulator, lanes: int) -> None:
    bad = {4, 5, 33, 59}
    receipts = sink(server, on_bad_rows="quarantine", lanes=lanes).write(frame(spark, bad))
    good = [(number,) for number in range(60) if number not in bad]
    assert query(server, "SELECT id FROM shop.orders ORDER BY id") == good
    assert query(server, "SELECT count(*), count(DISTINCT id) FROM shop.items") == [(112, 56)]
    columns = "source_partition, position, table_name, content"
    dead_letters = query(server, f"SELECT {columns} FROM shop.{DEAD_LETTER_TABLE}")
    assert len(dead_letters) == 12
    assert {(int(p[-1]), x) for p, x, _, _ in dead_letters} == {(n % 3, n // 3 + 1) for n in bad}
    assert {orjson.loads(content)["id"] for _, _, _, content in dead_letters} == bad
    assert sum(receipt.rows for receipt in receipts) + sum(receipt.dead_lettered_rows for receipt in receipts) == 180
    ledger = "SELECT name, position FROM shop._starrocks_txn_sink_ledger WHERE kind = 'position' ORDER BY name"
    assert query(server, ledger) == [("p-0", 20), ("p-1", 20), ("p-2", 20)]
    reasons = query(server, f"SELECT DISTINCT reason FROM shop.{DEAD_LETTER_TABLE}")
    assert all("column amount: it is missing in a row, and the column is NOT NULL" in reason for (reason,) in reasons)
    again = sink(server, on_bad_rows="quarantine", lanes=lanes).write(frame(spark, bad))
    assert sum(receipt.rows + receipt.dead_lettered_rows for receipt in again) == 0


@pytest.mark.deep
def test_a_row_that_is_no_json_is_dead_lettered(spark: SparkSession, server: Emulator) -> None:
    spoilt_row = F.when((F.col("position") == 7) & (F.col("seq") == 1), F.lit('{"id": ')).otherwise(F.col("row"))
    receipts = sink(server, on_bad_rows="quarantine").write(frame(spark, set(), 1).withColumn("row", spoilt_row))
    assert sum(receipt.dead_lettered_rows for receipt in receipts) == 3
    assert query(server, "SELECT count(*) FROM shop.items") == [(38,)]
    assert ('{"id": ',) in query(server, f"SELECT content FROM shop.{DEAD_LETTER_TABLE}")


def test_typed_rows_are_judged_by_the_server_in_strict_mode(spark: SparkSession, server: Emulator) -> None:
    typed = (
        frame(spark, set(), 1, 4)
        .filter("table = 'orders'")
        .drop("row")
        .withColumns(
            {
                "id": F.col("position"),
                "amount": F.when(F.col("position") != 2, F.lit(1)),
                "note": F.when(F.col("position") == 3, F.lit("far too long")).otherwise(F.lit("ok")),
                "transaction_end": F.lit(True),
            }
        )
    )
    receipts = sink(server, on_bad_rows="quarantine", routes=[TableRoute("orders", ["id", "amount", "note"])]).write(
        typed
    )
    assert query(server, "SELECT id FROM shop.orders ORDER BY id") == [(1,), (4,)]
    assert sum(receipt.dead_lettered_rows for receipt in receipts) == 2
    columns = query(server, f"SELECT DISTINCT load_columns FROM shop.{DEAD_LETTER_TABLE}")
    assert columns == [("`id`,`amount`,`note`",)]


def test_what_a_quarantine_needs_is_asked_for(spark: SparkSession, server: Emulator) -> None:
    with pytest.raises(OptionError, match="there is no query_url"):
        sink(server, on_bad_rows="quarantine", query_url=None, delivery="at-least-once")
    plain = spark.createDataFrame([("orders", '{"id": 1}')], "table string, row string")
    with pytest.raises(InputError, match="no source transactions to dead-letter"):
        sink(server, on_bad_rows="quarantine").write(plain)


def test_a_key_that_is_too_long_is_named_and_not_sent(spark: SparkSession, server: Emulator) -> None:
    query(server, "CREATE TABLE shop.named (name VARCHAR(200) NOT NULL, id BIGINT NOT NULL) PRIMARY KEY(name, id)")
    rows = [
        ("p", place, "named", f'{{"name": "{"x" * (119 if place == 2 else 118)}", "id": {place}}}') for place in (1, 2)
    ]
    named = spark.createDataFrame(rows, "source_partition string, position long, table string, row string").withColumns(
        {"seq": F.lit(0).cast("long"), "transaction_end": F.lit(True)}
    )
    said = r"A row has a primary key of 129 bytes \(columns name, id\), and StarRocks takes at most 128"
    with pytest.raises(RowsRejected, match=said) as refused:
        sink(server).write(named)
    assert refused.value.context["table"] == "named"
    (receipt,) = sink(server, on_bad_rows="quarantine").write(named)
    assert (receipt.rows, receipt.dead_lettered_rows) == (1, 1)
    assert query(server, "SELECT id FROM shop.named") == [(1,)]
    ((position, reason),) = query(server, f"SELECT position, reason FROM shop.{DEAD_LETTER_TABLE}")
    assert position == 2
    assert "A row of named has a primary key of 129 bytes (columns name, id)" in reason
