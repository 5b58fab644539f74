"""Raw event lines in Kafka → parsed → assembled → committed in a null server, on a real broker.

    python -m benchmarks.kafka_lines [--rows 2000000] [--batch 800000] [--rounds 5]

Four source partitions, which are the topic's. The ratio is against reading the same values and throwing them away; the
JVM parsing them (`from_json`) and throwing the events away stands beside it. CPU seconds are those of Spark and the
broker together. Needs the broker that `make servers` fetches.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from benchmarks import feeds
from benchmarks.measure import Variant, report, take_turns
from benchmarks.null_server import NullServer
from benchmarks.spark import session
from starrocks_txn_sink import SinkOptions, StarRocksSink, TransactionAssembly, TxnEventLines
from starrocks_txn_sink.sources import parse_txn_events
from tests.kafka.broker import Broker
from tests.kafka.jars import SPARK, archives

TOPIC = "events"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=800_000, help="events of a micro-batch")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    rows = given.rows // (feeds.PARTITIONS * feeds.ROWS) * feeds.PARTITIONS * feeds.ROWS
    with tempfile.TemporaryDirectory(prefix="kafka-lines-") as folder:
        home = Path(folder)
        with Broker(home / "broker", heap="1g") as broker, NullServer() as server:
            broker.create({TOPIC: feeds.PARTITIONS})
            spark = session(**{"spark.jars": archives(SPARK)})
            _fill(spark, broker.servers, rows)
            variants = _variants(spark, broker.servers, server, home / "checkpoint", rows, given.batch)
            take_turns(variants, given.rounds)
            report("raw lines in Kafka", variants)
            spark.stop()


def _fill(spark: SparkSession, servers: str, rows: int) -> None:
    for number in range(feeds.PARTITIONS):
        lines = feeds.lines(feeds.events(spark, rows // feeds.PARTITIONS, number))
        placed = lines.withColumn("partition", F.lit(number)).write.format("kafka")
        placed.option("kafka.bootstrap.servers", servers).option("topic", TOPIC).save()


def _variants(
    spark: SparkSession, servers: str, server: NullServer, checkpoint: Path, rows: int, batch: int
) -> list[Variant]:
    options = {"kafka.bootstrap.servers": servers, "subscribe": TOPIC, "startingOffsets": "earliest"}
    topic = spark.readStream.format("kafka").options(**options, maxOffsetsPerTrigger=str(batch)).load()
    sink = SinkOptions(load_url=server.load_url, database="shop", delivery="at-least-once", job="benchmark")

    def run(frame: DataFrame, written: StarRocksSink | None) -> None:
        writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        made = writer.format("noop") if written is None else writer.foreachBatch(written)
        made.start().awaitTermination()

    def clean() -> None:
        shutil.rmtree(checkpoint, ignore_errors=True)

    fused = TransactionAssembly(lines=TxnEventLines())
    parsed = parse_txn_events(topic)
    return [
        Variant("read only, to noop", rows, lambda: run(topic.select("value"), None), clean),
        Variant("parse only, in the JVM, to noop", rows, lambda: run(parsed, None), clean),
        Variant("fused", rows, lambda: run(topic, StarRocksSink(sink, assemble=fused)), clean),
    ]


if __name__ == "__main__":
    main()
