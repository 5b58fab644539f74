"""A local Spark for the demo: small, quiet, and gone when it is closed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

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


def settings(folder: Path, *, cores: int, shuffle_partitions: int) -> dict[str, str]:
    """Spark's configuration; `folder` takes its scratch files.

    The deep stack is for stopping a query in the middle of a batch; RocksDB is what transformWithState needs. Spark's
    own manager of checkpoint files asks Hadoop for links in a local folder, which starts processes; the other one does
    not, and a micro-batch is a tenth shorter.
    """
    log4j = folder / "log4j2.properties"
    log4j.write_text(_LOG4J)
    return {
        "spark.master": f"local[{cores}]",
        "spark.app.name": "starrocks-txn-sink demo",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": (
            f"-Xss16m -Dlog4j2.configurationFile={log4j.as_uri()} -Djava.io.tmpdir={folder}"
        ),
        "spark.local.dir": str(folder),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(shuffle_partitions),
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.checkpointFileManagerClass": _LOGS,
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


@contextlib.contextmanager
def local_spark(folder: Path, log: Path, *, cores: int = 2, shuffle_partitions: int = 1) -> Iterator[SparkSession]:
    """A Spark of this process's own; its JVM and Python workers write to `log`, and all of them end with the block."""
    builder = SparkSession.builder
    for name, value in settings(folder, cores=cores, shuffle_partitions=shuffle_partitions).items():
        builder = builder.config(name, value)
    # The workers' Python must be this one; without the variable it is whatever `python3` means on PATH.
    with _environment(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1"):
        try:
            with _output_to(log):
                session = builder.getOrCreate()
            yield session
        finally:
            _end()


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Environment variables that hold inside the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


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
