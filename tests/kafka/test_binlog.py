"""`sync` with Maxwell's and Canal's messages of a real broker: the lanes read Kafka themselves."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from starrocks_txn_sink.protocol.ledger import table_of
from tests.kafka.broker import Broker
from tests.support import canal_feed, maxwell_feed
from tests.support.quick_start import Pipeline, Warehouse, blocks

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

(PROGRAM,) = blocks("docs/start/database.md", "python")
ARGUMENTS = {"import runpy": "import runpy, sys; sys.argv[1:] = ['sync', 'shop.toml']"}
FILE = """
[source]
brokers = "{brokers}"
topics = "{topic}"
format = "{format}"
transactions = "{transactions}"
[target]
load_url = "http://fe:8030"
query_url = "mysql://fe:9030"
database = "shop"
username = "sink"
password_environment = "STARROCKS_PASSWORD"
[query]
checkpoint = "{checkpoint}"
[spark]
"spark.jars" = {jars}
"""
Keyed = tuple[str | None, dict[str, Any]]


def inserts(xid: int, *ids: int) -> list[Keyed]:
    """The messages of a transaction of Maxwell's, with their keys."""
    rows = [("insert", {"id": number, "note": "x"}) for number in ids]
    return [(maxwell_feed.key(message), message) for message in maxwell_feed.transaction(xid, *rows, table="notes")]


MAXWELL: list[Keyed] = inserts(1, 1, 2, 3) + inserts(2, 4, 5)[:1]
CANAL: list[Keyed] = [
    (None, canal_feed.flat("INSERT", [{"id": "1", "note": "x"}], table="rare")),  # far behind the newest messages
    *[(None, canal_feed.flat("INSERT", [{"id": "1", "note": "x"}], table="notes"))] * 30,
    (None, canal_feed.flat("INSERT", [{"id": str(number), "note": "x"} for number in (1, 2, 9)], table="notes")),
    (None, canal_feed.flat("UPDATE", [{"id": "3", "note": "x"}], [{"id": "9"}], table="notes")),
]


@pytest.mark.parametrize(
    ("format_name", "transactions", "first", "later"),
    [
        ("maxwell", "whole", MAXWELL, inserts(2, 4, 5)[1:]),
        ("canal", "none", CANAL, [(None, canal_feed.flat("INSERT", [{"id": "4"}, {"id": "5"}], table="notes"))]),
    ],
    ids=["maxwell", "canal"],
)
def test_messages_of_a_topic_are_written_whole(
    broker: Broker,
    warehouse: Warehouse,
    spark_kafka: str,
    tmp_path: Path,
    format_name: str,
    transactions: str,
    first: list[Keyed],
    later: list[Keyed],
) -> None:
    topic = f"binlog-{format_name}"
    broker.create({topic: 2})
    producer = Producer({"bootstrap.servers": broker.servers})

    def send(messages: list[Keyed]) -> None:
        for key, value in messages:
            producer.produce(topic, json.dumps(value), key=key, partition=1)
        producer.flush(30)

    send(first)
    home = tmp_path / "home"
    home.mkdir()
    warehouse.run(
        "CREATE DATABASE shop;"
        if format_name == "canal"  # its types create the table
        else "CREATE DATABASE shop;"
        "CREATE TABLE shop.notes (id INT NOT NULL, note STRING) PRIMARY KEY(id) DISTRIBUTED BY HASH(id);"
    )
    settings = FILE.format(
        brokers=broker.servers,
        topic=topic,
        format=format_name,
        transactions=transactions,
        checkpoint=home / "checkpoint",
        jars=json.dumps(spark_kafka),
    )
    (home / "shop.toml").write_text(warehouse.placed(settings), encoding="utf-8")
    with Pipeline(PROGRAM, home, ARGUMENTS, activated=False, environment=warehouse.environment) as pipeline:

        def has_columns(table: str) -> bool:
            columns = "SELECT COLUMN_NAME, DATA_TYPE FROM information_schema.columns"
            columns += f" WHERE TABLE_SCHEMA = 'shop' AND TABLE_NAME = '{table}'"
            return sorted(warehouse.ask(columns)) == [("id", "int"), ("note", "varchar")]

        ids = "SELECT id FROM shop.notes ORDER BY id"
        pipeline.wait(lambda: has_columns("notes"))
        pipeline.wait(lambda: warehouse.ask(ids) == [(1,), (2,), (3,)])
        send(later)
        pipeline.wait(lambda: warehouse.ask(ids) == [(1,), (2,), (3,), (4,), (5,)])
        if format_name == "canal":  # a table with few changes, and one that appears while it runs
            assert warehouse.ask("SELECT id, note FROM shop.rare") == [(1, "x")]
            send([(None, canal_feed.flat("INSERT", [{"id": "7", "note": "x"}], table="tags"))])
            pipeline.wait(lambda: has_columns("tags"))
            pipeline.wait(lambda: warehouse.ask("SELECT id, note FROM shop.tags") == [(7, "x")])
            types = {"id": "int(11)", "note": "varchar(32)", "price": "decimal(10,2)"}
            row: dict[str, str | None] = {"id": "6", "note": "y", "price": "1.50"}
            send([(None, canal_feed.flat("INSERT", [row], table="notes", mysqlType=types))])
            prices = "SELECT DATA_TYPE FROM information_schema.columns WHERE TABLE_SCHEMA = 'shop'"
            prices += " AND COLUMN_NAME = 'price'"
            pipeline.wait(lambda: warehouse.ask(prices) == [("decimal",)])
            pipeline.wait(lambda: warehouse.ask("SELECT price FROM shop.notes WHERE id = 6") == [(Decimal("1.50"),)])
            keys = warehouse.ask(f"SELECT name FROM {table_of('shop')} WHERE kind = 'key' ORDER BY name")
            assert [json.loads(name) for (name,) in keys] == [
                ["canal", f"shop.{table}", ["id"]] for table in ("notes", "rare", "tags")
            ]
