"""Source transactions as messages: rows in two DUPLICATE KEY tables, judged by one SQL statement.

Every row says how many rows its transaction has, so the statement shows lost, duplicated and torn ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from confluent_kafka import Producer

from tests.crash.workload import TABLES

EVENTS = "events"
CHANGES, MARKERS = "{}.public", "{}.transaction"  # of a connector's topic.prefix
PART = "part-{}"


@dataclass(frozen=True)
class Message:
    topic: str
    partition: int
    value: dict[str, Any] | None
    at: int  # event time in milliseconds


def txn_events(partitions: int, transactions: int, size: int, topic: str = EVENTS) -> Iterator[Message]:
    """TxnEvent JSON: BEGIN, `size` rows and END for each transaction, the partitions taking turns."""
    for number in range(1, transactions + 1):
        for partition in range(partitions):
            txn = f"{partition}-{number}"
            at = 1_700_000_000_000 + number
            yield Message(topic, partition, {"type": "BEGIN", "txn_id": txn}, at)
            for seq in range(size):
                data = {
                    "type": "DATA",
                    "txn_id": txn,
                    "table": TABLES[seq % 2],
                    "row": _row(partition, number, seq, size),
                }
                yield Message(topic, partition, data, at)
            yield Message(topic, partition, {"type": "END", "txn_id": txn}, at)


def debezium(transactions: int, size: int, partitions: int, random: Random, prefix: str) -> Iterator[Message]:
    """PostgreSQL changes over two topics of several partitions, and their markers, every tenth message twice."""
    changes, markers = CHANGES.format(prefix), MARKERS.format(prefix)
    for number in range(1, transactions + 1):
        xid, lsn = 700 + number, 10_000 + 1000 * number
        yield from _twice(random, Message(markers, 0, {"status": "BEGIN", "id": f"{xid}:{lsn}"}, number))
        for seq in range(size):
            table = TABLES[seq % 2]
            source = {"connector": "postgresql", "name": prefix, "schema": "public", "table": table, "lsn": lsn + seq}
            value = {
                "before": None,
                "after": _row(0, number, seq, size),
                "source": source,
                "op": "c",
                "transaction": {"id": f"{xid}:{lsn + seq}", "total_order": seq + 1},
            }
            yield from _twice(random, Message(f"{changes}.{table}", random.randrange(partitions), value, number))
        counts = [{"data_collection": f"public.{t}", "event_count": (size + 1 - n) // 2} for n, t in enumerate(TABLES)]
        end = {"status": "END", "id": f"{xid}:{lsn + size}", "event_count": size, "data_collections": counts}
        yield from _twice(random, Message(markers, 0, end, number))


def expected(partitions: int, transactions: int) -> set[tuple[str, int]]:
    return {(PART.format(part), number) for part in range(partitions) for number in range(1, transactions + 1)}


def send(servers: str, messages: Iterator[Message]) -> None:
    """Send all of them; each partition keeps their order."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 0, "linger.ms": 20})
    for message in messages:
        text = None if message.value is None else json.dumps(message.value).encode()
        while True:
            try:
                producer.produce(message.topic, text, partition=message.partition, timestamp=message.at)
                break
            except BufferError:
                producer.poll(1)
        producer.poll(0)
    if producer.flush(120):
        raise TimeoutError("The broker did not take all messages.")


def _row(part: int, number: int, seq: int, size: int) -> dict[str, Any]:
    return {"part": PART.format(part), "position": number, "seq": seq, "size": size}


def _twice(random: Random, message: Message) -> Iterator[Message]:
    yield message
    if random.random() < 0.1:
        yield message
