"""Rows that come through a stage of the query have their messages' places in Kafka, as those of lanes do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import StarRocksSink, assemble_debezium, assemble_transactions
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE
from starrocks_txn_sink.sources import parse_debezium, parse_debezium_transactions, parse_txn_events
from tests.support.debezium_shop import DebeziumShop, begin, end, insert

pytestmark = pytest.mark.spark

BAD = {"part": "x", "position": "no number", "seq": 0, "note": ""}


@pytest.fixture
def shop(spark: SparkSession, server: Emulator, tmp_path: Path) -> DebeziumShop:
    return DebeziumShop(spark, server, tmp_path)


def event(kind: str, row: dict[str, Any] | None = None, op: str = "c") -> tuple[None, str]:
    data = {"table": "items", "op": op, "row": json.dumps(row)} if row else {}
    return None, json.dumps({"type": kind, "txn_id": "t", **data})


def debezium(topics: DataFrame) -> DataFrame:
    markers = parse_debezium_transactions(topics.where("topic = 'shop.transaction'"))
    return assemble_debezium(parse_debezium(topics.where("topic <> 'shop.transaction'")), markers)


def txn_events(topics: DataFrame) -> DataFrame:
    return assemble_transactions(parse_txn_events(topics))


def run(shop: DebeziumShop, assembled: DataFrame, **options: Any) -> None:
    """Write a stream to its end; a failure of the query is raised."""
    sink = StarRocksSink(shop.options(**options))
    writer = assembled.writeStream.foreachBatch(sink).option("checkpointLocation", str(shop.checkpoint()))
    writer.trigger(availableNow=True).start().awaitTermination(120)


def letters(shop: DebeziumShop) -> list[str]:
    return [str(reason) for (reason,) in shop.ask(f"SELECT DISTINCT reason FROM shop.{DEAD_LETTER_TABLE}")]


def test_a_bad_row_of_whole_transactions_names_its_message(shop: DebeziumShop) -> None:
    """Its row waits in the stage's state until the END is there."""
    shop.put(begin(1), insert(1, 1), insert(1, 2, position="no number"))
    shop.put(end(1, 2))
    place = "topic shop.public.items, partition 0, offset 1002"
    with pytest.raises(PySparkException, match=f"column position of table items at .*, {place}: it"):
        run(shop, debezium(shop.topics()))
    run(shop, debezium(shop.topics()), on_bad_rows="quarantine")
    (reason,) = letters(shop)
    assert place in reason


def test_a_bad_row_of_txn_events_names_its_message(shop: DebeziumShop) -> None:
    good = {**BAD, "position": 1}
    shop.put_texts("events", event("BEGIN"), event("DATA", good), event("DATA", BAD))
    shop.put_texts("events", event("END"))
    place = "topic events, partition 0, offset 1002"
    with pytest.raises(PySparkException, match=f"column position of table items at .*, {place}: it"):
        run(shop, txn_events(shop.topics()))
    run(shop, txn_events(shop.topics()), on_bad_rows="quarantine", lanes=2)
    (reason,) = letters(shop)
    assert place in reason


@pytest.mark.parametrize("topic", [True, False])
def test_what_the_jvm_refuses_names_the_message(shop: DebeziumShop, topic: bool) -> None:
    shop.put_texts("a-1", event("BEGIN"), event("DATA", BAD, op="?"), event("END"))
    frame = shop.messages(shop.spark.read.text(str(shop.source)))
    rows = txn_events(frame if topic else frame.drop("topic"))
    place = ("topic a-1, " if topic else "") + "partition 0, offset 1001"
    with pytest.raises(InputError, match=rf"unknown op '\?' at source partition 0, position 1002, {place}\."):
        StarRocksSink(shop.options()).write(rows)


def test_messages_without_kafkas_columns_have_no_place(shop: DebeziumShop) -> None:
    shop.put_texts("a", event("BEGIN"), event("DATA", {**BAD, "position": 1}), event("END"))
    messages = shop.messages(shop.spark.read.text(str(shop.source)))
    events = parse_txn_events(messages.withColumnsRenamed({"offset": "at"}), position="at")
    assert {"kafka_offset", "kafka_partition"}.isdisjoint(events.columns)
    StarRocksSink(shop.options()).write(assemble_transactions(events))
    assert shop.written() == (1, 1)
