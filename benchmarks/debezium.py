"""Debezium's messages in Kafka → parsed → assembled, or not → a null server, next to the same rows as TxnEvents.

    python -m benchmarks.debezium [--transactions 30000] [--batch 400000] [--rounds 3]
    python -m benchmarks.debezium --lanes 1,16 --tasks 8 --partitions 8

Source transactions of ten rows over two tables with four partitions each and a transaction topic, as the connector for
PostgreSQL writes them without schema: about 650 bytes a change. The same rows as TxnEvents are in one topic of four
partitions. CPU seconds are those of Spark and the broker together. `--lanes` compares numbers of lanes, change by
change; Spark makes two at most for each of its `--tasks` at a time. Needs the broker that `make servers` fetches;
without Maven it says so and fails.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import DataFrame

from benchmarks.measure import Variant, report, say, take_turns
from benchmarks.null_server import NullServer
from benchmarks.spark import session, write_all
from starrocks_txn_sink import DebeziumAssembly, TransactionAssembly, TxnEventLines, assemble_debezium
from starrocks_txn_sink.sources import kafka_options, parse_debezium, parse_debezium_transactions
from tests.kafka.broker import Broker
from tests.kafka.jars import SPARK, NoMaven, archives

PARTITIONS, ROWS = 4, 10
TABLES = ("orders", "order_items")
MARKERS, EVENTS = "shop.transaction", "events"
_START = 1_790_000_000_000
Message = tuple[int, str, int, dict[str, Any]]
"""The number of a source transaction, the topic, the partition and the value."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transactions", type=int, default=30_000, help="of ten rows (default %(default)s)")
    parser.add_argument("--batch", type=int, default=400_000, help="messages of a micro-batch (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="measured runs of each variant (default %(default)s)")
    parser.add_argument("--lanes", help="numbers of lanes, with commas: compare these, change by change")
    parser.add_argument("--tasks", default="*", help="of Spark at a time (default: as many as cores)")
    parser.add_argument("--partitions", type=int, default=PARTITIONS, help="of each table's topic")
    parser.add_argument("--stage", action="store_true", help="also assemble_debezium, which takes ten times as long")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="debezium-") as folder:
        home = Path(folder)
        with Broker(home / "broker", heap="1g") as broker, NullServer() as server:
            tables_topics = {f"shop.public.{table}": arguments.partitions for table in TABLES}
            broker.create(tables_topics | {MARKERS: 1, EVENTS: PARTITIONS})
            _fill(broker.servers, arguments.transactions, arguments.partitions)
            spark = session(**{"spark.jars": archives(SPARK), "spark.master": f"local[{arguments.tasks}]"})

            def topics(pattern: str, most: int = arguments.batch) -> DataFrame:
                options = kafka_options(
                    broker.servers, subscribePattern=pattern, startingOffsets="earliest", maxOffsetsPerTrigger=most
                )
                return spark.readStream.format("kafka").options(**options).load()

            tables, alone = topics(r"shop\.public\..*"), DebeziumAssembly(transactions="none")
            pipelines: dict[str, tuple[DataFrame, TransactionAssembly | DebeziumAssembly | None, int | None]] = {
                "TxnEvents, lanes, librdkafka": (
                    topics(EVENTS),
                    TransactionAssembly(lines=TxnEventLines(reader="librdkafka")),
                    None,
                ),
                "Debezium, the lane, librdkafka": (topics(r"shop\..*"), DebeziumAssembly(), None),
                "Debezium, the lane, Spark's source": (topics(r"shop\..*"), DebeziumAssembly(reader="spark"), None),
                "Debezium, change by change, one lane": (tables, alone, 1),
                "Debezium, change by change, two lanes": (tables, alone, 2),
            }
            if arguments.lanes:
                numbers = map(int, arguments.lanes.split(","))
                pipelines = {
                    f"Debezium, change by change, lanes={number}": (tables, alone, number) for number in numbers
                }
            if arguments.stage:
                changes = parse_debezium(topics(r"shop\.public\..*"))
                markers = parse_debezium_transactions(topics(MARKERS, arguments.batch // 5))
                pipelines["Debezium, assemble_debezium"] = assemble_debezium(changes, markers), None, None
            checkpoint = home / "checkpoint"

            def run(
                frame: DataFrame, assemble: TransactionAssembly | DebeziumAssembly | None, lanes: int | None
            ) -> None:
                write_all(frame, server.load_url, assemble, checkpoint, lanes)

            def clean() -> None:
                shutil.rmtree(checkpoint, ignore_errors=True)

            variants = [
                Variant(name, arguments.transactions * ROWS, lambda p=pipeline: run(*p), clean)  # type: ignore[misc]
                for name, pipeline in pipelines.items()
            ]
            take_turns(variants, arguments.rounds)
            report("Debezium's messages in Kafka", variants)
            spark.stop()


def _fill(servers: str, transactions: int, partitions: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 50})
    size = 0
    for _, topic, partition, value in messages(transactions, partitions):
        text = json.dumps(value)
        size += len(text) if topic.startswith("shop.public") else 0
        while True:
            try:
                producer.produce(topic, text, partition=partition)
                break
            except BufferError:
                producer.poll(1)
    if producer.flush(120):
        raise TimeoutError("The broker did not take all messages.")
    say(f"{transactions * ROWS} rows, {size // (transactions * ROWS)} bytes a change event")


def messages(transactions: int, partitions: int, *, events: bool = True) -> Iterator[Message]:
    """The messages of source transactions; with `events` also as TxnEvents."""
    for number in range(transactions):
        place, lsn, millis = number % PARTITIONS, 20_000_000 + 200 * ROWS * number, _START + number
        begin = {"status": "BEGIN", "id": f"{number}:{lsn}", "event_count": None, "data_collections": None}
        yield number, MARKERS, 0, begin | {"ts_ms": millis}
        if events:
            yield number, EVENTS, place, {"type": "BEGIN", "txn_id": str(number)}
        for order in range(1, ROWS + 1):
            key, lsn = number * ROWS + order, lsn + 200
            table, row = _row(number, order, key)
            yield number, f"shop.public.{table}", key % partitions, _change(number, order, lsn, millis, table, row)
            if events:
                event = {"type": "DATA", "txn_id": str(number), "table": table, "op": "c", "row": json.dumps(row)}
                yield number, EVENTS, place, event
        counts = zip(TABLES, (ROWS // 5, ROWS - ROWS // 5), strict=True)
        listed = [{"data_collection": f"public.{table}", "event_count": count} for table, count in counts]
        end = {"status": "END", "id": f"{number}:{lsn}", "event_count": ROWS, "data_collections": listed}
        yield number, MARKERS, 0, end | {"ts_ms": millis}
        if events:
            yield number, EVENTS, place, {"type": "END", "txn_id": str(number)}


def _row(number: int, order: int, key: int) -> tuple[str, dict[str, Any]]:
    if order % 5 == 0:
        customer = f"customer {number % 5000:08d}"
        return TABLES[0], {"order_id": key, "customer": customer, "total": f"{key % 100000}.50"}
    return TABLES[1], {"item_id": key, "order_id": number, "price": f"{key % 1000}.25", "note": "x" * 60}


def _change(number: int, order: int, lsn: int, millis: int, table: str, row: dict[str, Any]) -> dict[str, Any]:
    times = {"ts_ms": millis, "ts_us": millis * 1000, "ts_ns": millis * 1_000_000}
    source = {
        "version": "3.3.1.Final", "connector": "postgresql", "name": "shop", "snapshot": "false", "db": "shop",
        "sequence": f'["{lsn - 200}","{lsn}"]', "schema": "public", "table": table, "txId": number, "lsn": lsn,
        "xmin": None, **times,
    }  # fmt: skip
    transaction = {"id": f"{number}:{lsn}", "total_order": order, "data_collection_order": order}
    return {"before": None, "after": row, "source": source, "transaction": transaction, "op": "c", **times}


if __name__ == "__main__":
    try:
        main()
    except NoMaven as missing:
        sys.exit(f"debezium: not run. {missing}")
