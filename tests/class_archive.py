"""An archive of Spark's classes, so that the many JVMs of the tests need half of their time to start.

    python -m tests.class_archive

Runs what nearly all tests begin with, a stream through Python, in a JVM that writes the classes it has loaded to
`jvm.ARCHIVE` when it exits, for the next one to map (class data sharing). A JVM of another version or class path
ignores the archive.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from starrocks_txn_sink import recommended_conf
from tests import jvm


def main() -> None:
    unfinished = jvm.ARCHIVE.with_suffix(".unfinished")
    os.environ["JDK_JAVA_OPTIONS"] = f"{jvm.QUICK} -XX:ArchiveClassesAtExit={unfinished} {jvm.SILENT}"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(prefix="class-archive-") as folder:
        _run(Path(folder))
    unfinished.replace(jvm.ARCHIVE)


def _run(home: Path) -> None:
    conf: dict[str, bool | float | int | str | None] = {
        **recommended_conf(2),
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    }
    spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    _stream(spark.readStream.schema("value string").json(str(_events(home))), home)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(120)


def _events(home: Path) -> Path:
    folder = home / "events"
    folder.mkdir()
    (folder / "0.json").write_text('{"value":"a"}\n')
    return folder


def _stream(frame: DataFrame, home: Path) -> None:
    def write(batch: DataFrame, _: int) -> None:
        spread = batch.withColumn("number", F.xxhash64("value")).repartition(2, "number")
        spread.sortWithinPartitions("number").mapInArrow(_through, spread.schema).collect()

    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(home / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def _through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


if __name__ == "__main__":
    main()
