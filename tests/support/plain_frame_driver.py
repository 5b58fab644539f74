"""A driver whose tasks are tried three times: writes a plain frame of which a task fails at its first try.

Usage: python -m tests.support.plain_frame_driver LOAD_URL QUERY_URL early|late FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from starrocks_txn_sink import StarRocksDataSource

Batches = Iterator[pa.RecordBatch]
FAILURE = "the source is away for once"
ROWS = 200_000  # more than Spark buffers on the way to the tasks


def failing(marker: Path, late: bool) -> Callable[[Batches], Batches]:
    def read(batches: Batches) -> Batches:
        context = TaskContext.get()
        first = context is not None and context.partitionId() == 0 and not marker.exists()
        if first and not late:
            marker.touch()
            raise RuntimeError(FAILURE)
        yield from batches
        if first:
            marker.touch()
            raise RuntimeError(FAILURE)

    return read


def main(load_url: str, query_url: str, when: str, folder: str) -> None:
    builder = SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "1000").getOrCreate()
    spark.dataSource.register(StarRocksDataSource)
    frame = spark.range(0, ROWS, 1, 2).selectExpr("id", "cast(id as string) AS name")
    frame = frame.mapInArrow(failing(Path(folder) / "failed", when == "late"), frame.schema)
    options = {"load_url": load_url, "query_url": query_url, "database": "shop", "table": "plain"}
    frame.write.format("starrocks_txn").options(**options).mode("append").save()


if __name__ == "__main__":
    main(*sys.argv[1:])
