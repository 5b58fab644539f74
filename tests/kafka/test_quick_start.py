"""The quick start with Kafka events runs as printed, and README.md prints the same pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.kafka.broker import Broker
from tests.support.quick_start import Pipeline, Warehouse, blocks

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PAGE = "docs/start/kafka.md"


def send(servers: str, topic: str, lines: list[str]) -> None:
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for line in lines:
        producer.produce(topic, line.encode())
    assert producer.flush(60) == 0


def test_the_quick_start(broker: Broker, warehouse: Warehouse, spark_kafka: str, tmp_path: Path) -> None:
    tables, _, select = blocks(PAGE, "sql")
    (program,), (events,), (table,) = blocks(PAGE, "python"), blocks(PAGE, "json"), blocks(PAGE, "text")
    broker.create({"shop-events": 1})
    send(broker.servers, "shop-events", events.splitlines())
    warehouse.run(tables)
    replacements = {
        "broker:9092": broker.servers,
        '"spark.jars.packages": KAFKA': f'"spark.jars": {spark_kafka!r}',
    }
    program = warehouse.placed(program)
    with Pipeline(program, tmp_path / "home", replacements, environment=warehouse.environment) as pipeline:
        pipeline.wait(warehouse.shows(select, table))
        send(broker.servers, "shop-events", ['{"type": "END", "txn_id": "3"}'])
        pipeline.wait(lambda: ("Bob",) in warehouse.ask("SELECT customer FROM shop.orders"))
