"""Balanced reading next to Spark's own Kafka source, on a real broker with 60 partitions that progress unevenly.

    python -m benchmarks.balanced_kafka [--rows 1000000] [--batch 100000] [--rounds 3]

Catching up: one partition is sparse, one bursty, one idle for most of the time, the others dense at different rates.
Shown for each source: rows a second into nothing (the sources take turns, medians count), the event time inside one
micro-batch, the event time that a micro-batch goes back behind what earlier ones had reached, and the state of a window
of ten seconds downstream, with the rows that came too late for it.
"""

from __future__ import annotations

import argparse
import heapq
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from benchmarks.spark import session
from starrocks_txn_sink.sources.balanced_kafka import BalancedKafka
from tests.kafka.broker import Broker
from tests.kafka.jars import SPARK, archives

PARTITIONS, SPAN_MS, T0 = 60, 3_600_000, 1_700_000_000_000
SPARSE, BURSTY, IDLE = 0, 1, 2
_VALUE = b"x" * 150
_WINDOW = "10 seconds"


@dataclass
class Behind:
    """How far micro-batches go back in event time, and how much of it is in one; in seconds."""

    reached: float = 0.0
    largest: float = 0.0
    span: float = 0.0
    batches: int = 0

    def __call__(self, batch: DataFrame, _: int) -> None:
        low, high = batch.agg(F.min("timestamp").cast("double"), F.max("timestamp").cast("double")).first() or (
            None,
            None,
        )
        if low is not None and high is not None:
            self.largest = max(self.largest, self.reached - low) if self.reached else 0.0
            self.span = max(self.span, high - low)
            self.reached = max(self.reached, high)
            self.batches += 1


def times(partition: int, rows: int, random: Random) -> Iterator[int]:
    """Event times of one partition, ascending, in milliseconds after T0."""
    if partition == SPARSE:
        yield from range(0, SPAN_MS, SPAN_MS // 60)
    elif partition == IDLE:
        yield from range(1000)
    elif partition == BURSTY:
        start = SPAN_MS // 2
        yield from sorted(random.randrange(start, start + 20_000) for _ in range(rows))
    else:
        yield from sorted(random.randrange(SPAN_MS) for _ in range(rows))


def fill(servers: str, topic: str, rows: int) -> int:
    """Send about `rows` rows in the order of their event times, as their producers would; how many they are."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, "queue.buffering.max.messages": 500_000})
    random, sent = Random(1), 0
    weights = [0 if p in (SPARSE, IDLE) else 1 + p % 5 for p in range(PARTITIONS)]
    shares = [rows * weight // sum(weights) for weight in weights]
    streams = [[(at, p) for at in times(p, share, random)] for p, share in enumerate(shares)]
    for at, partition in heapq.merge(*streams):
        while True:
            try:
                producer.produce(topic, _VALUE, partition=partition, timestamp=T0 + at)
                break
            except BufferError:
                producer.poll(0.5)
        sent += 1
    if producer.flush(300):
        raise TimeoutError("The broker did not take all rows.")
    return sent


def spark_source(spark: SparkSession, servers: str, topic: str, batch: int) -> DataFrame:
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
    return spark.readStream.format("kafka").options(**options, maxOffsetsPerTrigger=str(batch)).load()


def balanced_source(spark: SparkSession, servers: str, topic: str, batch: int) -> DataFrame:
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "max_rows": str(batch)}
    return spark.readStream.format("balanced_kafka").options(**options).load()


def run(writer: DataStreamWriter, home: Path) -> tuple[StreamingQuery, float]:
    """Run to the end of what is there; the query, and its seconds."""
    began = time.monotonic()
    checkpoint = tempfile.mkdtemp(dir=home)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    return query, time.monotonic() - began


def timed(read: Callable[[], DataFrame], home: Path) -> float:
    return run(read().writeStream.format("noop"), home)[1]


def measure(read: Callable[[], DataFrame], home: Path) -> dict[str, Any]:
    behind = Behind()
    run(read().writeStream.foreachBatch(behind), home)
    windows = read().withWatermark("timestamp", _WINDOW).groupBy(F.window("timestamp", _WINDOW), "partition").count()
    query, _ = run(windows.writeStream.format("noop").outputMode("append"), home)
    states = [state for progress in query.recentProgress for state in progress.stateOperators]
    return {
        "micro-batches": behind.batches,
        "s in one micro-batch at most": round(behind.span, 1),
        "s back at most": round(behind.largest, 1),
        "state rows at most": max(state.numRowsTotal for state in states),
        "rows too late for the window": sum(state.numRowsDroppedByWatermark for state in states),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="balanced-") as folder:
        home = Path(folder)
        with Broker(home / "broker", heap="1g") as broker:
            broker.create({"uneven": PARTITIONS})
            rows = fill(broker.servers, "uneven", args.rows)
            _say(f"{rows} rows in {PARTITIONS} partitions over {SPAN_MS // 60_000} minutes, {args.batch} a micro-batch")
            spark = session(**{"spark.jars": archives(SPARK), "spark.sql.shuffle.partitions": "2"})
            spark.dataSource.register(BalancedKafka)
            reads: dict[str, Callable[[], DataFrame]] = {
                name: partial(source, spark, broker.servers, "uneven", args.batch)
                for name, source in (("Spark's own", spark_source), ("balanced", balanced_source))
            }
            seconds: dict[str, list[float]] = {name: [] for name in reads}
            for _ in range(args.rounds + 1):
                for name, read in reads.items():
                    seconds[name].append(timed(read, home))
            for name, read in reads.items():
                rate = round(rows / median(seconds[name][1:]) / 1000)  # the first one warms up
                found = {"k rows/s": rate, **measure(read, home)}
                _say(f"{name}: " + ", ".join(f"{value} {label}" for label, value in found.items()))
            spark.stop()
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
