"""Events in Kafka → parsed → assembled → committed in a null server, on a real broker.

    python -m benchmarks.kafka_lines [--rows 2000000] [--batch 800000] [--rounds 5]

Four source partitions, which are the topic's. `ready rows` are the same rows in a topic of their own, already whole and
marked, parsed by the JVM (`from_json`) and written without assembling; once shuffled, as they go by default, once as
they come (`shuffle=False`). The lanes read as the documents show it (`reader="librdkafka"`), with Spark's source and
`kafka_options`, as all others do, and with Kafka's defaults. Next to it: reading the events' values and throwing them
away, and the JVM parsing them and throwing the events away. CPU seconds are those of Spark and the broker
together. Needs the broker that `make servers` fetches; without Maven it says so and fails.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from benchmarks import feeds
from benchmarks.measure import Variant, figures, line, say, table, take_turns
from benchmarks.null_server import NullServer
from benchmarks.spark import session
from starrocks_txn_sink import SinkOptions, StarRocksSink, TransactionAssembly, TxnEventLines
from starrocks_txn_sink.sources import kafka_options
from tests.kafka.broker import Broker
from tests.kafka.jars import SPARK, NoMaven, archives

EVENTS, READY = "events", "ready"
KAFKA_DEFAULTS = {
    "kafka.max.poll.records": "500",
    "kafka.max.partition.fetch.bytes": str(1 << 20),
    "kafka.fetch.max.bytes": str(50 << 20),
    "kafka.receive.buffer.bytes": str(64 << 10),
}
ROW = "position LONG, seq LONG, database STRING, table STRING, op STRING, row STRING, transaction_end BOOLEAN"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=800_000, help="events of a micro-batch")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rows = arguments.rows // (feeds.PARTITIONS * feeds.ROWS) * feeds.PARTITIONS * feeds.ROWS
    with tempfile.TemporaryDirectory(prefix="kafka-lines-") as folder:
        home = Path(folder)
        with Broker(home / "broker", heap="1g") as broker, NullServer() as server:
            broker.create({EVENTS: feeds.PARTITIONS, READY: feeds.PARTITIONS})
            spark = session(**{"spark.jars": archives(SPARK)})
            _fill(spark, broker.servers, rows)
            variants = _variants(spark, broker.servers, server, home / "checkpoint", rows, arguments.batch)
            take_turns(variants, arguments.rounds)
            _report(variants)
            spark.stop()


def _report(variants: list[Variant]) -> None:
    table("events in Kafka", variants)
    in_lanes = variants[-1]
    ratios = {f"{in_lanes.name} / {variant.name}": round(in_lanes.rate / variant.rate, 3) for variant in variants[:-1]}
    for name, ratio in ratios.items():
        say(f"{name:52}{ratio:10.3f}")
    line("events in Kafka", figures(variants) | {"ratios": ratios})


def _fill(spark: SparkSession, servers: str, rows: int) -> None:
    for number in range(feeds.PARTITIONS):
        share = rows // feeds.PARTITIONS
        for topic, frame in (
            (EVENTS, feeds.events(spark, share, number)),
            (READY, feeds.marked_rows(spark, share, number)),
        ):
            placed = feeds.lines(frame).withColumn("partition", F.lit(number)).write.format("kafka")
            placed.option("kafka.bootstrap.servers", servers).option("topic", topic).save()


def _variants(
    spark: SparkSession, servers: str, server: NullServer, checkpoint: Path, rows: int, batch: int
) -> list[Variant]:
    def topic(name: str, most: int, **own: str) -> DataFrame:
        options = kafka_options(servers, subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger=most, **own)
        return spark.readStream.format("kafka").options(**options).load()

    def sink(shuffle: bool | str = "auto") -> SinkOptions:
        return SinkOptions(
            load_url=server.load_url, database="shop", delivery="at-least-once", job="benchmark", shuffle=shuffle
        )

    def run(frame: DataFrame, sink: StarRocksSink | None) -> None:
        writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        query = writer.format("noop") if sink is None else writer.foreachBatch(sink)
        query.start().awaitTermination()

    def clean() -> None:
        shutil.rmtree(checkpoint, ignore_errors=True)

    in_lanes = TransactionAssembly(lines=TxnEventLines())
    documented = TransactionAssembly(lines=TxnEventLines(reader="librdkafka"))
    events, small_polls = topic(EVENTS, batch), topic(EVENTS, batch, **KAFKA_DEFAULTS)
    whole = feeds.PARTITIONS * feeds.ROWS  # Kafka cuts by offsets, and ready source transactions must come whole
    ready = _ready(topic(READY, batch // feeds.EVENTS * feeds.ROWS // whole * whole))  # as many micro-batches
    return [
        Variant("read only, to noop", rows, lambda: run(events.select("value"), None), clean),
        Variant("jvm from_json, to noop", rows, lambda: run(feeds.parsed_in_jvm(events), None), clean),
        Variant("ready rows", rows, lambda: run(ready, StarRocksSink(sink())), clean),
        Variant("ready rows, as they come", rows, lambda: run(ready, StarRocksSink(sink(shuffle=False))), clean),
        Variant(
            "lanes, Kafka's defaults", rows, lambda: run(small_polls, StarRocksSink(sink(), assemble=in_lanes)), clean
        ),
        Variant("lanes, Spark's source", rows, lambda: run(events, StarRocksSink(sink(), assemble=in_lanes)), clean),
        Variant("lanes, librdkafka", rows, lambda: run(events, StarRocksSink(sink(), assemble=documented)), clean),
    ]


def _ready(topic: DataFrame) -> DataFrame:
    """Rows that are whole and marked already, from their JSON."""
    row = topic.select(F.col("partition").cast("string").alias("source_partition"), _parsed().alias("row"))
    return row.select("source_partition", "row.*")


def _parsed() -> Column:
    return F.from_json(F.col("value").cast("string"), ROW)


if __name__ == "__main__":
    try:
        main()
    except NoMaven as missing:
        sys.exit(f"kafka_lines: not run. {missing}")
