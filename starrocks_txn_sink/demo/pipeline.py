"""The pipeline of the demo, as a user would write it: events → whole transactions → StarRocks."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from starrocks_txn_sink import SinkOptions, StarRocksSink, assemble_transactions
from starrocks_txn_sink.events import Listener
from starrocks_txn_sink.sources.txn_event import TXN_EVENT_SCHEMA


def start(
    spark: SparkSession, events: Path, checkpoint: Path, options: SinkOptions, *, interval: float, listener: Listener
) -> StreamingQuery:
    """Start the query; `interval` is the time between micro-batches in seconds."""
    lines = spark.readStream.schema(TXN_EVENT_SCHEMA).json(str(events))
    rows = assemble_transactions(lines, by="source_partition")
    sink = StarRocksSink(options, listener=listener)
    return (
        rows.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=f"{interval:.3f} seconds")
        .start()
    )
