"""What the metrics cost, in CPU seconds: in a lane, on the driver for each micro-batch, and for each scrape.

    python -m benchmarks.metrics [--rows 500000] [--rounds 7] [--spark]

The lane is the real one, over Arrow rows made before, and talks to nobody: every request is answered OK at once. So its
CPU seconds are the least that a micro-batch of so many rows can cost in Python. With `--spark` the same rows also take
Spark's part of the way (read from Parquet, projected, spread, sorted, handed to Python), which makes the whole batch.
Variants take turns; the least of all rounds counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from unittest import mock

import numpy as np
import pyarrow as pa

from benchmarks.family import Family
from starrocks_txn_sink import telemetry
from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.coordinator.model import LaneShare
from starrocks_txn_sink.metrics import MetricsServer
from starrocks_txn_sink.metrics.state import dashboard_state
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.wire import LabelState, Operation, Reply, Request, Status
from starrocks_txn_sink.rows.columns import DELETED, EVENT_TIME
from starrocks_txn_sink.telemetry import Event, ignore_event
from starrocks_txn_sink.writer import task, worker
from starrocks_txn_sink.writer.lane_try import SparkLane
from starrocks_txn_sink.writer.messages import LaneReport, Message, of_kind
from starrocks_txn_sink.writer.metrics import RowCounts
from starrocks_txn_sink.writer.worker import Attempt

BATCH = 10_000
PARTITIONS = 4
PER_TRANSACTION = 25
OPTIONS = SinkOptions(load_url="http://fe:8030", database="shop", delivery="at-least-once")
SCHEMA = pa.schema(
    [
        ("source_partition", pa.string()),
        ("position", pa.int64()),
        ("table", pa.string()),
        ("transaction_end", pa.bool_()),
        ("payload", pa.string()),
        (EVENT_TIME, pa.int64()),
        (DELETED, pa.bool_()),
    ]
)


class Agreeing:
    """A transport to a server that is always well and takes no time; bodies are read once, as a socket would."""

    def send(self, request: Request, deadline: Deadline) -> Reply:
        del deadline
        if request.body is not None:
            for _ in request.body:
                pass
        state = LabelState.VISIBLE if request.operation is Operation.LOAD_STATE else None
        return Reply(Status.OK, label=request.label, txn_id=1, state=state)

    def close(self) -> None:
        """Nothing is open."""


def sample_batches(rows: int) -> list[pa.RecordBatch]:
    """Rows of 150 bytes in three tables, a tenth of them deletes, as the sink's projection gives them."""
    share = rows // PARTITIONS
    numbers = np.arange(share)
    tables = np.array(["order_events", "order_items", "orders"])[numbers % 3]
    filler = "x" * 120
    contents = [
        f',{{{"" if n % 10 else chr(34) + "__op" + chr(34) + ":1,"}"id":{n},"note":"{filler}"}}' for n in range(share)
    ]
    batches: list[pa.RecordBatch] = []
    for partition in range(PARTITIONS):
        columns = [
            pa.array([str(partition)] * share),
            pa.array(numbers // PER_TRANSACTION),
            pa.array(tables),
            pa.array(numbers % PER_TRANSACTION == PER_TRANSACTION - 1),
            pa.array(contents),
            pa.array(np.full(share, time.time_ns() // 1000)),
            pa.array(numbers % 10 == 0),
        ]
        batches += pa.table(columns, schema=SCHEMA).to_batches(max_chunksize=BATCH)
    return batches


def lane(batches: list[pa.RecordBatch]) -> list[Message]:
    lane_task = task.LaneTask(OPTIONS, "job", "e", "c", 0, label="job")
    return SparkLane(lane_task).run(batches, Attempt(0, 1, False))


@contextlib.contextmanager
def suspend_counts() -> Iterator[None]:
    """The lane without its metrics and step lines: no event is emitted, no row is looked at."""
    with (
        mock.patch.object(telemetry, "fan_out", return_value=ignore_event),
        mock.patch.object(RowCounts, "add"),
    ):
        yield


def cpu(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def turns(variants: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    seconds_by_name: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, measure in variants.items():
            seconds_by_name[name].append(measure())
    return {name: min(seconds) for name, seconds in seconds_by_name.items()}


def lane_events(messages: list[Message]) -> Iterator[Event]:
    """The events of one micro-batch."""
    receipts = [receipt for share in of_kind(messages, LaneShare) for receipt in share.loaded]
    reports = of_kind(messages, LaneReport)
    yield Event("batch.started", {"job": "job", "batch_id": 0, "lanes": 1, "query": "q"})
    yield from (Event("lane.reported", {"report": report}) for report in reports)
    yield from (Event("receipt.collected", {"receipt": receipt}) for receipt in receipts)
    yield Event("batch.completed", {"job": "job", "batch_id": 0, "seconds": 1.0, "receipts": len(receipts)})


def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take the rows in and do nothing with them."""
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})


def spark_share(rows: int, rounds: int) -> float:
    """CPU seconds of Spark and its Python workers until the lanes have such rows; the least of all rounds."""
    from pyspark.sql import SparkSession, functions as F

    from starrocks_txn_sink.options import SinkOptions
    from starrocks_txn_sink.sink.projection import lane_input
    from starrocks_txn_sink.sink.typed.terms import TableTerms

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    share = rows // PARTITIONS
    number = F.col("id") % share
    with tempfile.TemporaryDirectory() as home:
        spark.range(rows).select(
            (F.col("id") / share).cast("int").alias("source_partition"),
            F.floor(number / PER_TRANSACTION).alias("position"),
            (number % PER_TRANSACTION).alias("seq"),
            F.element_at(
                F.array(*map(F.lit, ("order_events", "order_items", "orders"))), (number % 3 + 1).cast("int")
            ).alias("table"),
            F.concat(F.lit('{"id":'), number, F.lit(',"note":"'), F.repeat(F.lit("x"), 120), F.lit('"}')).alias("row"),
            (number % PER_TRANSACTION == PER_TRANSACTION - 1).alias("transaction_end"),
            F.current_timestamp().alias(EVENT_TIME),
        ).write.parquet(f"{home}/rows")
        frame = spark.read.parquet(f"{home}/rows")
        terms = TableTerms(SinkOptions(load_url="fe", database="shop", delivery="at-least-once"), {})
        family, shares = Family(), []
        for _ in range(rounds + 1):  # the first one warms up
            before = family.look().whole
            lane_input(frame, terms, 1).mapInArrow(through, "rows long").collect()
            shares.append(family.look().whole - before)
        spark.stop()
    return min(shares[1:])


def main(rows: int, rounds: int, with_spark: bool) -> None:
    batches = sample_batches(rows)
    with mock.patch.object(worker, "HttpTransport", return_value=Agreeing()):
        messages = lane(batches)

        def without() -> float:
            with suspend_counts():
                return cpu(lambda: lane(batches))

        costs = turns({"without": without, "with": lambda: cpu(lambda: lane(batches))}, rounds)
    metrics = MetricsServer(0)

    def tell() -> None:
        for event in lane_events(messages):
            metrics(event)

    driver = min(cpu(tell) for _ in range(200))
    scrape = min(cpu(lambda: metrics._collector.exposition("")) for _ in range(20))
    page = min(cpu(lambda: dashboard_state(metrics.model, time.time(), 60.0)) for _ in range(20))
    base, share = costs["without"], costs["with"] / costs["without"] - 1
    say = sys.stdout.write
    say(f"a lane with {rows:,} rows and {rows // PER_TRANSACTION:,} source transactions: {base:.3f} CPU seconds\n")
    say(f"  its metrics                 {costs['with'] - base:+.4f} s, {share:+.2%} of the lane\n")
    say(f"  the driver, a micro-batch   {driver:.5f} s, {driver / base:.3%} of the lane\n")
    if with_spark:
        whole = base + spark_share(rows, max(3, rounds // 2))
        say(f"the whole batch, with Spark: {whole:.3f} CPU seconds\n")
        say(f"  all metrics of it           {(costs['with'] - base + driver) / whole:.2%}\n")
    say(f"a scrape of /metrics          {scrape * 1000:.1f} ms; every 15 s {scrape / 15:.3%} of a core\n")
    say(f"an open page                  {page * 1000:.1f} ms; every 2 s {page / 2:.3%} of a core\n")
    results = {"lane_cpu_seconds": base, "share_of_lane": share, "driver_seconds": driver, "scrape_seconds": scrape}
    say(json.dumps({"benchmark": "metrics", "rows": rows} | {name: round(value, 5) for name, value in results.items()}))
    say("\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--spark", action="store_true", help="measure Spark's part of the batch too")
    arguments = parser.parse_args()
    main(arguments.rows, arguments.rounds, arguments.spark)
