"""Whole source transactions as a connector with schemas writes them, by topic; and a producer that sends them."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import KafkaError, Producer

from tests.support.connect_schema import change, key
from tests.support.debezium_feed import marker

Message = tuple[str, bytes | None, bytes]


def transaction(number: int, *rows: tuple[str, dict[str, Any], dict[str, Any]], prefix: str = "shop") -> list[Message]:
    """The messages of a source transaction; a row is a table, its fields, and its values."""
    counts: dict[str, int] = {}
    messages: list[Message] = []
    for order, (table, fields, row) in enumerate(rows, 1):
        counts[f"public.{table}"] = counts.get(f"public.{table}", 0) + 1
        block = {"id": f"{number}:{number}", "total_order": order, "data_collection_order": counts[f"public.{table}"]}
        value = change(table, fields, row, transaction=block, lsn=100 * number + order)
        value = value.replace(b'"name": "shop", "db"', f'"name": "{prefix}", "db"'.encode())
        messages.append((f"{prefix}.public.{table}", key({"id": fields["id"]}, {"id": row["id"]}), value))
    ends: list[Message] = [
        (f"{prefix}.transaction", None, json.dumps(marker(status, f"{number}:{lsn}", tables)).encode())
        for status, lsn, tables in (("BEGIN", 100 * number, None), ("END", 100 * number + 50, counts))
    ]
    return [ends[0], *messages, ends[1]]


def send(servers: str, messages: list[Message]) -> None:
    failures: list[str] = []

    def delivered(error: KafkaError | None, message: object) -> None:  # noqa: ARG001
        if error is not None:
            failures.append(str(error))

    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for topic, key_, value in messages:
        producer.produce(topic, value, key_, on_delivery=delivered)
    assert producer.flush(60) == 0
    assert not failures  # a message that was given up is not in the queue either
