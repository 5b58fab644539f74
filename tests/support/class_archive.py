"""`python -m tests.support.class_archive FILE`: a file of Spark's classes, so that the tests' JVMs start faster.

It runs a small stream through Python, as the tests do. At its exit the JVM writes the classes that it has loaded into
the file, and other JVMs then map the file (class data sharing, JDK 13 or newer). A JVM with another version or class
path ignores the file.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions as F

from starrocks_txn_sink import recommended_conf
from tests.jvm import SILENT

_EXIT_SECONDS = 300.0


def write_archive(file: Path) -> None:
    """Write the file; raises SystemExit where Java writes no archive."""
    unfinished = file.with_name(f"{file.name}.{os.getpid()}")  # a JVM that maps half of an archive crashes
    try:
        with tempfile.TemporaryDirectory(prefix="class-archive-") as folder:
            _run_session(Path(folder), f"-XX:ArchiveClassesAtExit={unfinished} {SILENT}")
        if not unfinished.exists():
            raise SystemExit("Java wrote no archive: use JDK 13 or newer, of the HotSpot kind (OpenJDK).")
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def _run_session(home: Path, java_options: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf: dict[str, Any] = recommended_conf(2)
    conf["spark.driver.extraJavaOptions"] += f" {java_options}"
    conf |= {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
    }
    spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    _run_stream(spark, home)
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_EXIT_SECONDS)


def _run_stream(spark: SparkSession, home: Path) -> None:
    folder = home / "events"
    folder.mkdir()
    (folder / "0.json").write_text('{"value":"a"}\n')
    frame = spark.readStream.schema("value string").json(str(folder))

    def write(batch: DataFrame, _: int) -> None:
        spread = batch.withColumn("number", F.xxhash64("value")).repartition(2, "number")
        spread.sortWithinPartitions("number").mapInArrow(lambda batches: batches, spread.schema).collect()

    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(home / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    write_archive(Path(sys.argv[1]).absolute())
