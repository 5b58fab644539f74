"""A driver whose lanes meet a value that kills their Python process, each time.

Usage: python -m tests.support.dying_lane_driver LOAD_URL QUERY_URL FOLDER

Writes the JSON lines of FOLDER/events, of which each file is a task; the tables are those of `AssemblingShop`. Ends
with the exit code of `run_forever`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from starrocks_txn_sink import (
    RestartPolicy,
    SinkOptions,
    StarRocksSink,
    TransactionAssembly,
    TxnEventLines,
    run_forever,
)

POISON = b"poison"


class DeadlyLines(TxnEventLines):
    """Lines of which one kills the process that parses it, as the kernel does when memory is short."""

    def parse(self, batch: pa.RecordBatch, keep: tuple[str, ...] = ()) -> pa.Table:
        if any(POISON in value for value in batch.column("value").cast(pa.binary()).to_pylist()):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().parse(batch, keep)


def main(load_url: str, query_url: str, folder: str) -> int:
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.files.openCostInBytes", str(1 << 40)).getOrCreate()  # a task for each file
    home = Path(folder)
    options = SinkOptions(load_url=load_url, query_url=query_url, database="shop", job="dying", lanes=2)
    lines = DeadlyLines(source_partition="partition", position="offset")
    sink = StarRocksSink(options, assemble=TransactionAssembly(lines=lines))

    def start() -> Any:
        schema = "partition string, offset long, value string"
        rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 2).json(str(home / "events"))
        query = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(home / "checkpoint"))
        return query.trigger(availableNow=True).start()

    return run_forever(start, policy=RestartPolicy(first=0.1, longest=0.1, most_unknown=0))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
