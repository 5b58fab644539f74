"""A streaming query from Kafka into StarRocks in a process of its own: Spark takes archives only at its start.

`python -m tests.kafka.query TASK.json`; it ends when everything that was in Kafka at its start is written, or, with a
trigger interval, never.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions as F

from starrocks_spark_stages.balanced.reader import BalancedKafka
from starrocks_txn_sink import (
    DebeziumAssembly,
    MetricsServer,
    SinkOptions,
    StarRocksSink,
    TransactionAssembly,
    TxnEventLines,
    assemble_debezium,
    assemble_transactions,
    recommended_conf,
)
from starrocks_txn_sink.sources import kafka_options, parse_debezium, parse_debezium_transactions, parse_txn_events
from starrocks_txn_sink.sources.kafka import ranges
from tests.kafka.workload import CHANGES, EVENTS, MARKERS


def main(task: dict[str, Any]) -> None:
    """`task` has servers, jars, folder, format (events, debezium), per_trigger, checkpoint, the sink's options; it may
    have a trigger interval, `source` (balanced_kafka), `options_of_kafka` (whether `kafka_options` makes them),
    `topic` (names with commas between them) or `pattern`, `old_topic` (next to other topics its partitions keep their
    numbers as names), `prefix` (of Debezium's topics), `transactions` (of DebeziumAssembly), `assemble` (lanes),
    `reader` (of such lanes; how many there are is printed), `changed` (whether a step stands in front of the sink),
    `restarted` (whether to stop the query after a micro-batch and to start it again with the same sink), and `metrics`
    (whether to serve them; the address is in the file `metrics`)."""
    spark = _spark(Path(task["folder"]), task["jars"])
    spark.dataSource.register(BalancedKafka)
    frame, assemble = _frame(spark, task)
    server = MetricsServer(port=0) if task.get("metrics") else None
    sink = StarRocksSink(SinkOptions(**task["options"]), assemble=assemble, metrics=server)
    if server is not None:
        Path(task["folder"], "metrics").write_text(server.url)
    write: Callable[[DataFrame, int], None] = sink
    if task.get("changed"):
        write = lambda batch, number: sink(batch.where("partition = 0").localCheckpoint(), number)  # noqa: E731
    if task.get("reader") == "librdkafka":
        _print_lanes()
    writer = frame.writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", task["checkpoint"])
    if task.get("restarted"):
        query = writer.start()
        while not query.recentProgress:
            assert not query.awaitTermination(1)
        query.stop()
    interval = task.get("trigger")
    writer = writer.trigger(processingTime=interval) if interval else writer.trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()
    sys.stdout.write(f"input rows: {sum(progress['numInputRows'] for progress in query.recentProgress)}\n")


def _print_lanes() -> None:
    spread: Callable[..., Any] = ranges.spread

    def counted(*arguments: Any) -> Any:
        groups = spread(*arguments)
        sys.stdout.write(f"lanes: {len(groups)}\n")
        return groups

    vars(ranges)["spread"] = counted


def _frame(
    spark: SparkSession, task: dict[str, Any]
) -> tuple[DataFrame, TransactionAssembly | DebeziumAssembly | None]:
    """What the sink gets, and whether its lanes assemble."""
    if task["format"] == "debezium":
        tables, markers = (name.format(task.get("prefix", "shop")) for name in (CHANGES, MARKERS))
        if task.get("assemble") == "lanes":
            assembly = DebeziumAssembly(reader=task["reader"], transactions=task.get("transactions", "whole"))
            return _read(spark, task, subscribePattern=f"{tables}.*|{markers}"), assembly
        changes = parse_debezium(_read(spark, task, subscribePattern=f"{tables}.*"))
        return assemble_debezium(changes, parse_debezium_transactions(_read(spark, task, subscribe=markers))), None
    topics = {"subscribePattern": task["pattern"]} if "pattern" in task else {"subscribe": task.get("topic", EVENTS)}
    topic = _read(spark, task, **topics)
    if "old_topic" in task:
        names = F.concat_ws("-", "topic", "partition")
        names = F.when(F.col("topic") == task["old_topic"], F.col("partition").cast("string")).otherwise(names)
        return topic.withColumn("place", names), TransactionAssembly(lines=TxnEventLines(source_partition="place"))
    if task.get("assemble") == "lanes":
        return topic, TransactionAssembly(lines=TxnEventLines(reader=task.get("reader", "spark")))
    return assemble_transactions(parse_txn_events(topic)), None


def _read(spark: SparkSession, task: dict[str, Any], **topics: str) -> DataFrame:
    source, limit = task.get("source", "kafka"), str(task["per_trigger"])
    if source == "kafka" and task.get("options_of_kafka", True):
        options = kafka_options(task["servers"], startingOffsets="earliest", maxOffsetsPerTrigger=limit, **topics)
    else:
        name = {"kafka": "maxOffsetsPerTrigger", "balanced_kafka": "max_rows"}[source]
        options = {"kafka.bootstrap.servers": task["servers"], "startingOffsets": "earliest", name: limit, **topics}
    return spark.readStream.format(source).options(**options).load()


def _spark(folder: Path, jars: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    options = recommended_conf(shuffle_partitions=2) | {
        "spark.jars": jars,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "700m",
        "spark.driver.extraJavaOptions": f"-Xss16m -Djava.io.tmpdir={folder}",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
    }
    builder = SparkSession.builder.master("local[2]").appName("kafka")
    for name, value in options.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
