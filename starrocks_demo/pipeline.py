"""The pipeline of the demo as a user would write it, events → whole transactions → StarRocks, and its local Spark."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession, functions as F
from pyspark.sql.streaming.query import StreamingQuery

from starrocks_demo.command import DemoOptions
from starrocks_txn_sink import (
    SinkOptions,
    StarRocksSink,
    TransactionAssembly,
    TxnEventLines,
    assemble_transactions,
    recommended_conf,
)
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.metrics import MetricsServer
from starrocks_txn_sink.rows.columns import EVENT_TIME
from starrocks_txn_sink.sources import parse_txn_events
from starrocks_txn_sink.telemetry import Listener

_CAUSE = re.compile(r"\s*(?:Caused by: )?([\w.$]+: \S.*)")
_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = Console
appender.file.name = file
appender.file.target = SYSTEM_ERR
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""
_LOGS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_GONE_WITHIN = 15.0  # seconds that the JVM gets to end by itself


class Workspace:
    """The folder in which one run keeps everything; `lasting` says that it outlives the run."""

    def __init__(self, root: Path, *, lasting: bool) -> None:
        self.root, self.lasting = root, lasting
        self.events, self.starrocks, self.spark = root / "events", root / "starrocks", root / "spark"
        self.spark_log, self.sink_log = root / "spark.log", root / "sink.log"
        for folder in (self.events, self.starrocks, self.spark):
            folder.mkdir(parents=True)

    @classmethod
    def open(cls, data_dir: Path | None, *, keep: bool) -> Workspace:
        """Make the folders. Raises OptionError if `data_dir` has something in it."""
        if data_dir is None:
            return cls(Path(tempfile.mkdtemp(prefix="starrocks-txn-sink-demo-")), lasting=keep)
        if data_dir.exists() and (not data_dir.is_dir() or any(data_dir.iterdir())):
            hint = "Name a new folder, or empty this one."
            raise OptionError(f"--data-dir {data_dir} is not an empty folder.", hint=hint)
        return cls(data_dir.absolute(), lasting=True)

    def close(self) -> None:
        """Remove the folder unless it is to last."""
        if not self.lasting:
            shutil.rmtree(self.root, ignore_errors=True)


def start_query(
    spark: SparkSession,
    space: Workspace,
    demo: DemoOptions,
    options: SinkOptions,
    listener: Listener,
    metrics: MetricsServer | None,
) -> StreamingQuery:
    """Start the query. The sink's lanes make source transactions whole, or a stateful stage before it.

    With `metrics` rows carry the time of their file, so that the endpoint can tell how long they take to be visible.
    """
    rows = spark.readStream.text(str(space.events))
    timed: tuple[str, ...] = ()
    if metrics is not None:
        rows, timed = rows.withColumn(EVENT_TIME, F.col("_metadata.file_modification_time")), (EVENT_TIME,)
    in_lanes = demo.assemble == "lanes"
    if not in_lanes:
        events = parse_txn_events(rows, source_partition=None, position=None, keep=timed)
        rows = assemble_transactions(events, by="source_partition", passthrough=timed)
    assemble = TransactionAssembly(lines=TxnEventLines(source_partition=None, position=None)) if in_lanes else None
    sink = StarRocksSink(options, assemble=assemble, listener=listener, metrics=metrics)
    return (
        rows.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(space.root / "checkpoint"))
        .trigger(processingTime=f"{demo.interval:.3f} seconds")
        .start()
    )


def reason(error: Exception | None) -> str:
    """Why a query ended, in a line or two: what Spark says first, and the innermost cause it names."""
    if error is None:
        return "it was stopped"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [match[1] for line in lines[1:] if (match := _CAUSE.fullmatch(line))]
    return " … ".join([*lines[:1], *causes[-1:]]) or type(error).__name__


def _settings(folder: Path, shuffle_partitions: int) -> dict[str, str]:
    """Spark's configuration; `folder` takes its scratch files.

    Spark's own manager of checkpoint files asks Hadoop for links in a local folder, which starts processes; the other
    one does not, and a micro-batch is a tenth shorter.
    """
    recommended = recommended_conf(shuffle_partitions, preload=True)
    log4j = folder / "log4j2.properties"
    log4j.write_text(_LOG4J)
    return {
        **recommended,
        "spark.master": "local[2]",
        "spark.app.name": "starrocks-txn-sink demo",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": (
            f"{recommended['spark.driver.extraJavaOptions']} "
            f"-Dlog4j2.configurationFile={log4j.as_uri()} {shlex.quote(f'-Djava.io.tmpdir={folder}')}"
        ),
        "spark.local.dir": str(folder),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.checkpointFileManagerClass": _LOGS,
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def starting_step() -> str:
    """What goes on within `local_spark` while Spark starts."""
    if SparkContext._gateway is None:
        return "step 1 of 2, its Java process"
    return "step 2 of 2, its session"


@contextlib.contextmanager
def local_spark(space: Workspace, *, shuffle_partitions: int) -> Iterator[SparkSession]:
    """A Spark of this process's own; its JVM and Python workers write to the log, and all end with the block."""
    builder = SparkSession.builder
    for name, value in _settings(space.spark, shuffle_partitions).items():
        builder = builder.config(name, value)
    # The workers' Python must be this one; without the variable it is whatever `python3` means on PATH.
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    try:
        with _output_to(space.spark_log):
            session = builder.getOrCreate()
        yield session
    finally:
        _end()


@contextlib.contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Children started inside inherit `log` as their stdout and stderr; this process gets its own back afterwards."""
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("ab") as file, contextlib.ExitStack() as restore:
        for descriptor in (1, 2):
            saved = os.dup(descriptor)
            restore.callback(os.close, saved)
            restore.callback(os.dup2, saved, descriptor)
            os.dup2(file.fileno(), descriptor)
        yield


def _end() -> None:
    """Stop Spark and wait until its JVM is gone; a JVM that does not go by itself is killed."""
    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if context is not None:
        stopping = threading.Thread(target=_stop, args=(context,), name="spark-stop", daemon=True)
        stopping.start()
        stopping.join(_GONE_WITHIN)
    if gateway is not None:
        with contextlib.suppress(Exception):
            gateway.shutdown()
    SparkContext._gateway, SparkContext._jvm = None, None
    if process is not None:
        _wait_for(process)


def _stop(context: SparkContext) -> None:
    """Ask Spark to stop; a JVM that is gone already cannot answer."""
    session = SparkSession.getActiveSession()
    with contextlib.suppress(Exception):
        if session is not None:
            session.stop()
        context.stop()


def _wait_for(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()  # the JVM ends when its stdin does
    try:
        process.wait(_GONE_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
