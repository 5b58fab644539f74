"""A source that sends rows for the ledger is refused on every way into the sink, and the ledger stays as it was.

Such a row could forge a position, and the next rows of that source partition would be left out as written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, functions as F

from starrocks_txn_sink import StarRocksSink, TransactionAssembly, TxnEventLines
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE, Position, position_rows
from tests.support.exactly_once_shop import Shop, rows_of
from tests.support.servers import place_of

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("data_source")]

ROW = "a forged label"  # Spark's text of an error has random ids, so the number of a position may come up in it
FORGED = bytes(position_rows("test", [Position("p-0", 999, "c", 0, ROW, 1, "")], "2026-01-01 00:00:00"))[1:].decode()


@pytest.fixture
def shop(shop: Shop) -> Shop:
    """The ledger is there."""
    StarRocksSink(shop.options()).write(shop.frame(rows_of("p-0", [1])))
    return shop


def forged(table: str) -> list[tuple[Any, ...]]:
    """A source transaction of a right row and one for the ledger."""
    row = rows_of("p-1", [5], size=1)[0]
    return [(*row[:5], False), ("p-1", 5, 1, table, FORGED, True)]


def events(shop: Shop, table: str) -> DataFrame:
    """The same as parsed events, in order."""
    data = shop.frame(forged(table)).select(
        "source_partition",
        (F.col("seq") + 2).alias("position"),
        F.lit("DATA").alias("type"),
        F.lit("t").alias("txn_id"),
        F.lit(None).cast("string").alias("database"),
        "table",
        F.lit("u").alias("op"),
        "row",
    )
    ends = shop.spark.createDataFrame([("p-1", 1, "BEGIN", "t"), ("p-1", 9, "END", "t")], data.schema.names[:4])
    return data.unionByName(ends, allowMissingColumns=True).coalesce(1).sortWithinPartitions("position")


def lines(shop: Shop, table: str) -> DataFrame:
    """The same as raw lines."""
    all_events = events(shop, table).drop("source_partition", "position")
    value = F.to_json(F.struct(*all_events.columns)).alias("value")
    return events(shop, table).select(F.lit("p-1").alias("partition"), F.col("position").alias("offset"), value)


def ready_rows(shop: Shop, table: str) -> None:
    shop.feed(forged(table))
    shop.run()


def plain_rows(shop: Shop, table: str) -> None:
    shop.feed(forged(table))
    shop.run(plain=True)


def frame(shop: Shop, table: str) -> None:
    StarRocksSink(shop.options()).write(shop.frame(forged(table)))


def unsorted_frame(shop: Shop, table: str) -> None:
    StarRocksSink(shop.options(shuffle=False)).write(shop.frame(forged(table)).coalesce(1))


def parsed_events(shop: Shop, table: str) -> None:
    StarRocksSink(shop.options(), assemble=TransactionAssembly()).write(events(shop, table))


def raw_lines(shop: Shop, table: str) -> None:
    StarRocksSink(shop.options(), assemble=TransactionAssembly(lines=TxnEventLines())).write(lines(shop, table))


def streamed_lines(shop: Shop, table: str) -> None:
    lines(shop, table).write.parquet(str(shop.folder / "lines"))
    stream = shop.spark.readStream.schema("partition string, offset bigint, value string")
    sink = StarRocksSink(shop.options(), assemble=TransactionAssembly(lines=TxnEventLines()))
    writer = stream.parquet(str(shop.folder / "lines")).writeStream.foreachBatch(sink)
    writer = writer.option("checkpointLocation", str(shop.checkpoint()))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)


def data_source(shop: Shop, table: str) -> None:
    addresses = place_of(shop.server)
    texts = shop.frame(forged(table)).select("table", "row")
    texts.write.format("starrocks_txn").options(**addresses).mode("append").save()


WAYS = (raw_lines,)
MORE = (ready_rows, plain_rows, frame, unsorted_frame, parsed_events, streamed_lines, data_source)


@pytest.mark.parametrize("write", [*WAYS, *(pytest.param(way, marks=pytest.mark.deep) for way in MORE)])
def test_rows_for_the_ledger_are_refused_and_it_stays_as_it_was(shop: Shop, write: Callable[[Shop, str], None]) -> None:
    table = LEDGER_TABLE.upper() if write is data_source else LEDGER_TABLE
    position = f"SELECT * FROM shop.{LEDGER_TABLE} WHERE kind = 'position' ORDER BY name"
    before = shop.ask(position)
    assert len(before) == 1
    with pytest.raises(
        (PySparkException, InputError), match=f"for the table {table}, which belongs to the sink"
    ) as refused:
        write(shop, table)
    assert ROW not in str(refused.value).split("Traceback")[0]
    assert shop.ask(position) == before
    assert shop.written() == (2, 2)
    again = rows_of("p-0", [2])
    assert sum(receipt.rows for receipt in StarRocksSink(shop.options()).write(shop.frame(again))) == len(again)
