"""The pipeline of the demo, as a user would write it: events → whole transactions → StarRocks."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.streaming.query import StreamingQuery

from starrocks_txn_sink import SinkOptions, StarRocksSink, TransactionAssembly, assemble_transactions
from starrocks_txn_sink.events import Listener
from starrocks_txn_sink.lane.event_times import EVENT_TIME
from starrocks_txn_sink.metrics import MetricsServer
from starrocks_txn_sink.sources.txn_event import TXN_EVENT_SCHEMA


def start(
    spark: SparkSession,
    events: Path,
    checkpoint: Path,
    options: SinkOptions,
    *,
    interval: float,
    fused: bool = True,
    listener: Listener,
    metrics: MetricsServer | None = None,
) -> StreamingQuery:
    """Start the query; `interval` is the time between micro-batches in seconds. With `fused` the sink's lanes assemble.

    With `metrics` rows carry the time of their file, so that the endpoint can tell how long they take to be visible.
    """
    lines = spark.readStream.schema(TXN_EVENT_SCHEMA).json(str(events))
    timed: tuple[str, ...] = ()
    if metrics is not None:
        lines, timed = lines.withColumn(EVENT_TIME, F.col("_metadata.file_modification_time")), (EVENT_TIME,)
    if fused:
        rows = lines
        sink = StarRocksSink(options, assemble=TransactionAssembly(), listener=listener, metrics=metrics)
    else:
        rows = assemble_transactions(lines, by="source_partition", passthrough=timed)
        sink = StarRocksSink(options, listener=listener, metrics=metrics)
    return (
        rows.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=f"{interval:.3f} seconds")
        .start()
    )


_CAUSE = re.compile(r"\s*(?:Caused by: )?([\w.$]+: \S.*)")


def reason(error: Exception | None) -> str:
    """Why a query ended, in a line or two: what Spark says first, and the innermost cause it names."""
    if error is None:
        return "it was stopped"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [match[1] for line in lines[1:] if (match := _CAUSE.fullmatch(line))]
    return " … ".join([*lines[:1], *causes[-1:]]) or type(error).__name__
