"""`starrocks-txn-sink class-archive`: a file of Spark's classes, so that a driver's JVM starts faster.

The command runs a small stream through Python, as a job does at its start. At its exit the JVM writes the classes that
it has loaded into the file, and other JVMs then map the file (class data sharing, JDK 13 or newer). A JVM with another
version or class path ignores the file.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions as F

from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.spark_version import check_class_archive, recommended_conf

_EXIT_SECONDS = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="the file to write, for recommended_conf(class_archive=FILE)")


def run(args: argparse.Namespace) -> int:
    """Write the file. Raises OptionError for an unfit path, and where Java writes no archive."""
    file = check_class_archive(args.file)
    sys.stdout.write("Running a small stream, so that Java loads Spark's classes: about a minute.\n")
    sys.stdout.flush()
    unfinished = file.with_name(f"{file.name}.{os.getpid()}")  # a JVM that maps half of an archive crashes
    try:
        with tempfile.TemporaryDirectory(prefix="class-archive-") as folder:
            _run_session(Path(folder), f"-XX:ArchiveClassesAtExit={unfinished} -Xlog:cds=off -Xlog:cds+dynamic=off")
        if not unfinished.exists():
            raise OptionError("Java wrote no archive.", hint="Use JDK 13 or newer, of the HotSpot kind (OpenJDK).")
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
    sys.stdout.write(
        f"Wrote {file}, {file.stat().st_size / 1e6:.0f} MB. Build the session with\n"
        f'  recommended_conf(class_archive="{file}")\n'
        "and write the file again after a change of Java, Spark or the JARs on Spark's class path.\n"
    )
    return 0


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
