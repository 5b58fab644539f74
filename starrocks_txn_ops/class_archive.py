"""`starrocks-txn-sink class-archive`: writes the file from which Spark's JVM starts faster.

A small stream runs through Python, as a job's do. At its exit the JVM writes the classes that it has loaded into the
file.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from starrocks_txn_ops import command_line
from starrocks_txn_sink.class_archive import END, SILENT, UNFINISHED, archive_file, is_whole, java_program, spark_home
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.sink.archive_writer import is_abandoned
from starrocks_txn_sink.spark_version import recommended_conf, require_java

_RUN_SECONDS: Final = 600.0  # ten times what a slow machine needs
_EXIT_SECONDS: Final = 300.0
_FOREIGN: Final = (
    *("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS"),
    *("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_API_MODE", "SPARK_CONNECT_MODE", "SPARK_CONNECT_MODE_ENABLED"),
    *("HADOOP_CONF_DIR", "YARN_CONF_DIR"),
)
"""What leads the session to another JVM, or its files to another file system, than those of this machine."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No option of its own, but an epilog of where the archive is used."""
    parser.epilog = "recommended_conf() and sync use the file from then on. See docs/guides/performance.md."


def run(_: argparse.Namespace) -> int:
    """Write the archive unless it is there; raises OptionError where this Java or this Spark can have none."""
    require_java()
    file = archive_file()
    if file is None:
        hint = "Install a JDK 17, and PySpark or what SPARK_HOME names."
        places = f"{java_program()} has no file `release` in its JDK, or {spark_home()} has no jars of Spark"
        raise OptionError(f"There can be no class archive: {places}.", hint=hint)
    _remove_abandoned(file.parent)
    if is_whole(file):
        command_line.print_lines([f"{file} is there already."])
        return 0
    began = time.monotonic()
    command_line.print_lines(["Spark runs once, and writes its classes: half a minute on two idle cores."])
    with command_line.on_end_signals(lambda: sys.exit(130)):  # so that nothing unfinished stays
        write_archive(file)
    megabytes, seconds = file.stat().st_size / 1e6, time.monotonic() - began
    command_line.print_lines([f"{file}: {megabytes:.0f} MB, written in {seconds:.0f} s."])
    return 0


def run_apart(unfinished: Path) -> None:
    """Run the session in a process of its own; raises OptionError unless it ends well and its JVM writes the file."""
    command = [sys.executable, "-m", __name__, str(unfinished)]
    environment = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    try:
        process = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_RUN_SECONDS, check=False
        )
        lines, failed = (process.stdout + process.stderr).strip().splitlines(), process.returncode != 0
    except subprocess.TimeoutExpired:
        lines, failed = [f"it took longer than {_RUN_SECONDS:.0f} s"], True
    if failed or not unfinished.is_file():  # a JVM writes it after a failure, too, and half of it where it is killed
        raise OptionError(
            f"Java wrote no class archive: {lines[-1][:200].rstrip('.') if lines else 'it gave no reason'}.",
            hint="It needs a JDK 17 of the HotSpot kind (OpenJDK), and a Spark without files in its folder conf.",
        )


def write_archive(file: Path, run_session: Callable[[Path], object] = run_apart) -> None:
    """Write the file, and remove those of another Spark or Java.

    The file appears whole or not at all, also where two processes write it.

    Args:
        file: What `archive_file()` says.
        run_session: Has a JVM write the file it is given, next to which its session has its folders.

    Raises:
        OptionError: Java wrote none, or the folder cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory("", UNFINISHED.rstrip("*"), file.parent, ignore_cleanup_errors=True) as folder:
            unfinished = Path(folder, file.name)
            run_session(unfinished)
            unfinished.chmod(0o644)  # an image's build may run as root, a job does not
            with unfinished.open("ab") as archive:
                archive.write(END)
                archive.flush()
                os.fsync(archive.fileno())  # else a power cut leaves the name with other bytes
            unfinished.replace(file)
    except OSError as error:
        raise OptionError(
            f"The class archive cannot be written: {error}.",
            hint="Run the command as the user who installs packages into this environment.",
        ) from None
    for old in file.parent.glob("spark-*.jsa"):
        if old != file:
            old.unlink(missing_ok=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove what a killed run has left in the archives' folder."""
    for place in folder.glob(UNFINISHED):
        if is_abandoned(place):
            with suppress(OSError):
                shutil.rmtree(place)


def session_conf(unfinished: Path) -> dict[str, Any]:
    """Settings of the session whose JVM writes the file; its folders are next to it."""
    home = unfinished.parent
    return {
        **recommended_conf(2),
        "spark.driver.extraJavaOptions": f"-Xss16m {shlex.quote(f'-XX:ArchiveClassesAtExit={unfinished}')} {SILENT}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.port": "0",
        "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
    }


def _run_session(unfinished: Path) -> None:
    from pyspark.sql import SparkSession

    home = unfinished.parent
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config(map=session_conf(unfinished)).getOrCreate()
    _run_stream(spark, home)
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    if code := gateway.proc.wait(_EXIT_SECONDS):
        sys.exit(f"its JVM ended with the exit code {code}")


def _run_stream(spark: Any, home: Path) -> None:
    from pyspark.sql import DataFrame, functions as F

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
    _run_session(Path(sys.argv[1]))
