"""Balanced reading next to Spark's own Kafka source, on a real broker with 60 partitions that progress unevenly.

    python -m benchmarks.balanced_kafka [--rows 1000000] [--batch 100000] [--rounds 3]

Catching up: one partition is sparse, one bursty, one idle for most of the time, the others dense at different rates.
For each source: the event time inside one micro-batch, and by how much micro-batches go back behind what earlier ones
had reached; the state of a window of ten seconds downstream, and what came too late for it, with a watermark that is
ten seconds behind, and with one that is an hour behind, for which nothing can be too late; then, unless --rounds is
0, how fast rows go into nothing. CPU seconds are those of Spark and the broker together.
"""

from __future__ import annotations

import argparse
import heapq
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from random import Random

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.measure import Variant, line, report, take_turns
from benchmarks.spark import session
from starrocks_spark_stages.balanced.reader import BalancedKafka
from starrocks_txn_sink.sources import kafka_options
from tests.kafka.broker import Broker
from tests.kafka.jars import SPARK, archives

PARTITIONS, SPAN_MS, T0 = 60, 3_600_000, 1_700_000_000_000
SPARSE, BURSTY, IDLE = 0, 1, 2
_VALUE = b"x" * 150
_WINDOW = "10 seconds"


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
    config = {"enable.idempotence": True, "linger.ms": 50, "queue.buffering.max.messages": 500_000}
    producer = Producer({"bootstrap.servers": servers, **config})
    random, count = Random(1), 0
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
        count += 1
    if producer.flush(300):
        raise TimeoutError("The broker did not take all rows.")
    return count


def spark_source(spark: SparkSession, servers: str, topic: str, batch: int) -> DataFrame:
    options = kafka_options(servers, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=batch)
    return spark.readStream.format("kafka").options(**options).load()


def balanced_source(spark: SparkSession, servers: str, topic: str, batch: int) -> DataFrame:
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "max_rows": str(batch)}
    return spark.readStream.format("balanced_kafka").options(**options).load()


def run(writer: DataStreamWriter, home: Path) -> StreamingQuery:
    """Run to the end of what is there."""
    checkpoint = tempfile.mkdtemp(dir=home)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def window(frame: DataFrame, delay: str, home: Path) -> dict[str, float]:
    """What a window of ten seconds by partition makes of it, in seconds and rows; late rows are counted by window."""
    counts = frame.withWatermark("timestamp", delay).groupBy(F.window("timestamp", _WINDOW), "partition").count()
    query = run(counts.writeStream.format("noop").outputMode("append"), home)
    progresses = [progress for progress in query.recentProgress if "min" in progress.eventTime]
    lows = [_seconds(progress.eventTime["min"]) for progress in progresses]
    highs = [_seconds(progress.eventTime["max"]) for progress in progresses]
    states = [state for progress in query.recentProgress for state in progress.stateOperators]
    backs = [max(highs[:n]) - low for n, low in enumerate(lows) if n]
    return {
        "micro-batches": len(lows),
        "event time in one at most": round(max(high - low for low, high in zip(lows, highs, strict=True)), 1),
        "step back at most": round(max(backs, default=0.0), 1),
        "state rows at most": max(state.numRowsTotal for state in states),
        "late windows of a partition": sum(state.numRowsDroppedByWatermark for state in states),
    }


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


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
            spark = session(**{"spark.jars": archives(SPARK), "spark.sql.shuffle.partitions": "2"})
            spark.dataSource.register(BalancedKafka)
            reads: dict[str, Callable[[], DataFrame]] = {
                name: partial(source, spark, broker.servers, "uneven", args.batch)
                for name, source in (("Spark's own", spark_source), ("balanced", balanced_source))
            }
            for name, read in reads.items():
                for delay in (_WINDOW, "1 hour"):
                    line(f"a window after {name}, watermark {delay}", window(read(), delay, home))
            if args.rounds:
                variants = [Variant(name, rows, partial(into_nothing, read, home)) for name, read in reads.items()]
                take_turns(variants, args.rounds)
                report(f"{rows} rows of {PARTITIONS} partitions into nothing, {args.batch} a micro-batch", variants)
            spark.stop()
    return 0


def into_nothing(read: Callable[[], DataFrame], home: Path) -> None:
    run(read().writeStream.format("noop"), home)


if __name__ == "__main__":
    sys.exit(main())
