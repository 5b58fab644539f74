"""The driver, run by spark-submit: a streaming query over files of raw events, whose sink's lanes assemble them.

`spark-submit … driver.py TASK.json RESULT.json`; it ends when all files are read, and RESULT.json says what it saw.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from starrocks_txn_sink import SinkOptions, StarRocksSink, TransactionAssembly, TxnEventLines, assemble_transactions
from starrocks_txn_sink.sources import parse_txn_events


def main(task: dict[str, Any]) -> dict[str, Any]:
    """`task` has source, checkpoint, the sink's options; it may have state_dir, and `stage` for assembling in Spark."""
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    receipts: list[dict[str, Any]] = []

    def listen(event: Any) -> None:
        if event.name == "receipt.collected":
            receipt = event.fields["receipt"]
            receipts.append({"batch": receipt.batch_id, "label": receipt.label})

    lines = spark.readStream.option("maxFilesPerTrigger", 2).text(task["source"])
    in_json = TxnEventLines(source_partition=None, position=None)
    if task.get("stage"):
        events = parse_txn_events(lines, source_partition=None, position=None)
        lines, assemble = assemble_transactions(events, by="source_partition"), None
    else:
        assemble = TransactionAssembly(lines=in_json, state_dir=task.get("state_dir"))
    sink = StarRocksSink(SinkOptions(**task["options"]), assemble=assemble, listener=listen)
    writer = lines.writeStream.foreachBatch(sink).option("checkpointLocation", task["checkpoint"])
    writer.trigger(availableNow=True).start().awaitTermination()
    return {"receipts": receipts, "imported": imported(spark)}


def imported(spark: SparkSession) -> list[dict[str, str]]:
    """The executors' folders, each with the file of the package that the query has left in its Python worker."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            module = sys.modules.get("starrocks_txn_sink")
            file = str(module.__file__) if module is not None else ""
            yield pa.record_batch([pa.array([str(Path.cwd())]), pa.array([file])], ["folder", "file"])

    rows = spark.range(0, 2, numPartitions=2).mapInArrow(look, "folder string, file string").collect()
    return [row.asDict() for row in rows]


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))
