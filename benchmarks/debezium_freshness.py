"""From Debezium's message to a reader who sees its transaction, at a steady rate, with the emulator as the server.

    python -m benchmarks.debezium_freshness [--rate 10000] [--warm-up 60] [--seconds 45] [--windows 3]

A process writes source transactions of ten rows over two tables with four partitions each, and their markers, to a real
broker. A reader asks every 50 ms for the newest order. The freshness of a transaction runs from its last message to the
first answer that has it; p50 and p99 of each window, and their medians. Producer, broker, Spark and emulator share the
machine. Needs the broker that `make servers` fetches; without Maven it says so and fails.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from bisect import bisect_right
from itertools import groupby
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.debezium import MARKERS, PARTITIONS, ROWS, TABLES, messages
from benchmarks.measure import line, say, where
from benchmarks.spark import session
from starrocks_demo.reader import SqlClient
from starrocks_emulator.process import EmulatorProcess
from starrocks_txn_sink import DebeziumAssembly, SinkOptions, StarRocksSink
from starrocks_txn_sink.sources import kafka_options
from tests.kafka.broker import Broker
from tests.kafka.jars import SPARK, NoMaven, archives

_DDL = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.orders (order_id BIGINT NOT NULL, customer STRING, total DECIMAL(12,2)) PRIMARY KEY(order_id)",
    "CREATE TABLE shop.order_items (item_id BIGINT NOT NULL, order_id BIGINT, price DECIMAL(12,2), note STRING) "
    "PRIMARY KEY(item_id)",
)
_LOOK_SECONDS, _MOST = 0.05, 10_000_000
Looks = list[tuple[float, int]]
"""When an answer came, and the number of the newest transaction in it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=10_000, help="rows a second (default %(default)s)")
    parser.add_argument("--warm-up", type=float, default=60, help="seconds before the first window")
    parser.add_argument("--seconds", type=float, default=45, help="of a window (default %(default)s)")
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--transactions", choices=("whole", "none"), default="whole")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="debezium-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        with Broker(home / "broker", heap="512m") as broker, EmulatorProcess(home / "starrocks") as server:
            broker.create({f"shop.public.{table}": PARTITIONS for table in TABLES} | {MARKERS: 1})
            reader = SqlClient(server.query_port)
            for statement in _DDL:
                reader(statement)
            spark = session(**{"spark.jars": archives(SPARK), "spark.driver.memory": "2g"})
            query = _start(spark, broker.servers, server, home, arguments.transactions)
            looks, sent = _look(reader, query, broker.servers, arguments)
            progress = [batch for batch in query.recentProgress if batch["numInputRows"]][-50:]
            query.stop()
            spark.stop()
    _report(arguments, looks, sent, [float(batch["durationMs"]["triggerExecution"]) / 1000 for batch in progress])


def _start(spark: SparkSession, servers: str, server: EmulatorProcess, home: Path, transactions: Any) -> StreamingQuery:
    pattern = r"shop\..*" if transactions == "whole" else r"shop\.public\..*"
    topics = kafka_options(servers, subscribePattern=pattern, startingOffsets="earliest")
    options = SinkOptions(load_url=server.load_url, query_url=server.query_url, database="shop", job="freshness")
    sink = StarRocksSink(options, assemble=DebeziumAssembly(transactions=transactions))
    frame = spark.readStream.format("kafka").options(**topics).load()
    return frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(home / "checkpoint")).start()


def _look(
    reader: SqlClient, query: StreamingQuery, servers: str, arguments: argparse.Namespace
) -> tuple[Looks, list[float]]:
    """What the reader saw until the last window was over, and when each transaction was sent."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    producer = context.Process(target=_produce, args=(servers, arguments.rate, there), daemon=True)
    producer.start()
    began = here.recv()
    looks: Looks = []
    while time.time() < began + arguments.warm_up + arguments.seconds * arguments.windows + 5:
        ((newest,),) = reader("SELECT max(order_id) FROM shop.orders")
        looks.append((time.time(), -1 if newest is None else (newest - 1) // ROWS))
        if not query.isActive:
            raise RuntimeError(f"The query has ended: {query.exception()}")
        time.sleep(_LOOK_SECONDS)
    here.send("stop")
    sent: list[float] = here.recv()
    producer.join()
    return looks, sent


def _produce(servers: str, rate: float, there: Connection) -> None:
    """Write transactions at this rate until told to stop; then say when each of them was sent."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 2, "enable.idempotence": True})
    sent: list[float] = []
    began = time.time()
    there.send(began)
    for number, parts in groupby(messages(_MOST, PARTITIONS, events=False), lambda message: message[0]):
        for _, topic, partition, value in parts:
            producer.produce(topic, json.dumps(value), partition=partition)
        producer.poll(0)
        sent.append(time.time())
        ahead = began + (number + 1) * ROWS / rate - sent[-1]
        if ahead > 0.002:
            time.sleep(ahead)
        if there.poll():
            break
    producer.flush(30)
    there.send(sent)


def _report(arguments: argparse.Namespace, looks: Looks, sent: list[float], batches: list[float]) -> None:
    newest = [number for _, number in looks]  # ascending
    windows: list[tuple[float, float]] = []
    for window in range(arguments.windows):
        low = sent[0] + arguments.warm_up + window * arguments.seconds
        seen = [
            bisect_right(newest, number - 1)
            for number, time_sent in enumerate(sent)
            if low <= time_sent < low + arguments.seconds
        ]
        first = bisect_right(sent, low)
        ages = [
            looks[at][0] - sent[first + place] if at < len(looks) else float("inf") for place, at in enumerate(seen)
        ]
        cuts = statistics.quantiles(ages, n=100)
        windows.append((round(cuts[49], 3), round(cuts[98], 3)))
        say(f"window {window + 1}: {len(ages)} transactions, p50 {cuts[49]:.2f} s, p99 {cuts[98]:.2f} s")
    p50, p99 = (statistics.median(times) for times in zip(*windows, strict=True))
    rate = (len(sent) - 1) * ROWS / (sent[-1] - sent[0])
    say(
        f"\nfreshness of Debezium's transactions ({where()}), {arguments.transactions}, {rate:.0f} rows/s sent: "
        f"p50 {p50:.2f} s, p99 {p99:.2f} s, a micro-batch {statistics.median(batches):.2f} s"
    )
    line("debezium freshness", {"transactions": arguments.transactions, "rate": round(rate), "windows": windows})


if __name__ == "__main__":
    try:
        main()
    except NoMaven as missing:
        sys.exit(f"debezium_freshness: not run. {missing}")
