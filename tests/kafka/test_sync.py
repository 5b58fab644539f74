"""The quick start with a whole database: its file creates the tables and writes whole transactions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kafka.broker import Broker
from tests.support.connect_schema import decimal, field
from tests.support.debezium_topics import send, transaction
from tests.support.quick_start import Pipeline, Warehouse, blocks

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PAGE = "docs/start/database.md"
ORDERS = {"id": field("int64"), "total": decimal(2, 12)}
ITEMS = {"id": field("int64"), "born": field("int32", "io.debezium.time.Date")}


def has_ended(checkpoint: Path, offsets: str) -> bool:
    """Whether a micro-batch up to these `offsets` has ended."""
    ended = [file.name for file in (checkpoint / "commits").glob("[0-9]*")]
    return any(offsets in (checkpoint / "offsets" / name).read_text("utf-8") for name in ended)


def test_a_whole_database_from_one_file(broker: Broker, warehouse: Warehouse, spark_kafka: str, tmp_path: Path) -> None:
    (settings,), (program,) = blocks(PAGE, "toml"), blocks(PAGE, "python")
    broker.create({"shop.transaction": 1, "shop.public.orders": 1, "shop.public.items": 1, "shop.public.secret": 1})
    broker.create({"myshop.transaction": 1})  # of another connector: a match inside of its name is none
    first = transaction(
        1,
        ("orders", ORDERS, {"id": 1, "total": "MDk="}),  # 12345
        ("items", ITEMS, {"id": 11, "born": 19782}),
        ("secret", {"id": field("int64")}, {"id": 1}),
    )
    send(broker.servers, first)
    home = tmp_path / "home"
    home.mkdir()
    warehouse.run("CREATE DATABASE shop;")
    assert "broker:9092" in settings
    settings = warehouse.placed(settings.replace("broker:9092", broker.servers))
    archives = f'\n[spark]\n"spark.jars" = {json.dumps(spark_kafka)}\n'
    (home / "shop.toml").write_text(settings + archives, encoding="utf-8")
    arguments = {"import runpy": "import runpy, sys; sys.argv[1:] = ['sync', 'shop.toml']"}
    with Pipeline(program, home, arguments, activated=False, environment=warehouse.environment) as pipeline:
        created = {("ods_items",), ("ods_orders",)}
        pipeline.wait(lambda: created <= set(warehouse.ask("SHOW TABLES FROM shop")))
        rows = "SELECT CAST(total AS VARCHAR), CAST(born AS VARCHAR) FROM shop.ods_orders o, shop.ods_items i"
        pipeline.wait(lambda: warehouse.ask(rows) == [("123.45", "2024-02-29")])
        grown = {**ITEMS, "price": decimal(1, 5)}
        send(broker.servers, transaction(2, ("items", grown, {"id": 12, "born": None, "price": "Dw=="})))
        pipeline.wait(lambda: "`price` decimal(5, 1)" in str(warehouse.ask("SHOW CREATE TABLE shop.ods_items")))
        pipeline.wait(lambda: (12,) in warehouse.ask("SELECT id FROM shop.ods_items"))
        broker.create({"shop.public.notes": 1, "shop.public.my_secret": 1})
        notes = {"id": field("int64"), "born": field("int32", "io.debezium.time.Date")}
        secret = ("my_secret", {"id": field("int64")}, {"id": 1})
        third = transaction(3, ("notes", notes, {"id": 7, "born": 19782}), secret)
        send(broker.servers, third[:-1])  # its END comes in a later micro-batch, in another topic than its rows
        checkpoint = home / "checkpoint" / "shop"
        pipeline.wait(lambda: has_ended(checkpoint, '"shop.public.notes":{"0":1}'))
        send(broker.servers, third[-1:])
        pipeline.wait(lambda: ("ods_notes",) in warehouse.ask("SHOW TABLES FROM shop"))
        query = "SELECT id, CAST(born AS VARCHAR) FROM shop.ods_notes"
        pipeline.wait(lambda: warehouse.ask(query) == [(7, "2024-02-29")])
        created_table = str(warehouse.ask("SHOW CREATE TABLE shop.ods_notes"))
        assert "PRIMARY KEY" in created_table
        assert "`born` date" in created_table
    assert "myshop" not in (checkpoint / "offsets" / "0").read_text("utf-8")
    item_rows = warehouse.ask("SELECT id, CAST(price AS VARCHAR) FROM shop.ods_items ORDER BY id")
    assert item_rows == [(11, None), (12, "1.5")]
    assert not [name for (name,) in warehouse.ask("SHOW TABLES FROM shop") if "secret" in name]
