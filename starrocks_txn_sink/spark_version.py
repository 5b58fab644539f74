"""Differences between Spark's versions: one table behind the errors, the doctor and docs/guides/deploy.md."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyspark
from pyspark import SparkContext, accumulators
from pyspark.sql import Column, DataFrame, SparkSession, functions as F, types as T
from pyspark.sql.utils import is_remote

from starrocks_txn_sink.class_archive import archive_options, java_program
from starrocks_txn_sink.errors import OptionError, SparkTooOld
from starrocks_txn_sink.public_names import suggests_arguments

if TYPE_CHECKING:
    from pyspark.sql.streaming import stateful_processor as stateful_processor
else:
    try:
        from pyspark.sql.streaming import stateful_processor
    except ImportError:  # Spark 3.5; nothing uses the base class there (STATE_BY_KEY)
        stateful_processor = SimpleNamespace(StatefulProcessor=object)

Version = tuple[int, ...]

SPARK: Final[Version] = tuple(map(int, pyspark.__version__.split(".")[:2]))
OLDEST: Final[Version] = (3, 5)
PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass(frozen=True, slots=True)
class SparkFeature:
    """A part of the package that works from Spark `least` on; `instead` is the advice for older ones.

    `name` begins with the names that a user writes.
    """

    name: str
    least: Version
    instead: str

    @property
    def works(self) -> bool:
        """Whether this process's Spark is new enough."""
        return self.least <= SPARK


SINK: Final = SparkFeature(
    "StarRocksSink: ready rows, typed rows, batch frames, transactions assembled in the sink",
    OLDEST,
    "Use a newer version of Spark.",
)
JSON_TEXTS: Final = SparkFeature(
    "Typed rows: a text for a JSON column",
    (4, 0),
    "Turn it into a struct, an array or a map with from_json, or give the sink ready rows.",
)
STATE_BY_KEY: Final = SparkFeature(  # PySpark 3.5 reads row numbers as floats, which Python from 3.10 on refuses
    "State of streams: assemble_transactions, assemble_debezium, and the changelog functions that remember rows",
    (4, 0),
    "Assemble in the sink: StarRocksSink(options, assemble=TransactionAssembly()), or DebeziumAssembly(); write "
    "changes as they come.",
)
STATE_ON_CONNECT: Final = SparkFeature(  # older clients have no transformWithState
    "State in RocksDB from a client of Spark Connect",
    (4, 1),
    "Run the driver without Spark Connect. " + STATE_BY_KEY.instead,
)
STATE_BY_TIME: Final = SparkFeature(
    "Order by event time: order_by of from_changelog and to_changelog",
    (4, 0),
    "Leave order_by out, if a key's changes come in order.",
)
DATA_SOURCE: Final = SparkFeature(
    'The data source: write.format("starrocks_txn")', (4, 0), "Use StarRocksSink(options).write(frame)."
)
STREAMS_OF_DATA_SOURCE: Final = SparkFeature(  # an older Spark hands over rows of Python, one by one
    'Streams of the data source: writeStream.format("starrocks_txn"), and sinks of pipelines',
    (4, 1),
    "Use writeStream.foreachBatch(StarRocksSink(options)).",
)
BALANCED_READING: Final = SparkFeature(
    'Balanced reading: readStream.format("balanced_kafka")',
    (4, 2),
    'Use Spark\'s own source: readStream.format("kafka").',
)
UNIX_SOCKETS: Final[Version] = (4, 1)  # an older Spark ignores the settings
FEATURES: Final = (
    SINK,
    JSON_TEXTS,
    STATE_BY_KEY,
    STATE_BY_TIME,
    DATA_SOURCE,
    STREAMS_OF_DATA_SOURCE,
    BALANCED_READING,
)


def require(feature: SparkFeature) -> None:
    """Raise SparkTooOld, with the advice of `feature`, if Spark is older than the feature needs."""
    if not feature.works:
        minimum = ".".join(map(str, feature.least))
        raise SparkTooOld(f"{feature.name} needs Spark {minimum}; this is {pyspark.__version__}.", hint=feature.instead)


def require_rocksdb(frame: DataFrame) -> None:
    """Raise OptionError unless the frame's session keeps state in RocksDB, as transformWithState needs it.

    Raises it too for a package that RocksDB's process does not see, and SparkTooOld.
    """
    require(STATE_BY_KEY)
    if frame.sparkSession.conf.get(PROVIDER, "") != ROCKSDB:
        raise OptionError(
            "State of a stream needs the state store RocksDB, and the session has another one.",
            hint=f"Take the settings of recommended_conf(), or set {PROVIDER} to {ROCKSDB}, before the query starts; "
            "or assemble in the sink, which keeps no state in Spark.",
        )
    refuse_hidden_package()


def refuse_hidden_package() -> None:
    """Raise OptionError if this package comes from `--py-files`: then it cannot keep state in RocksDB.

    Spark starts a process on the driver for transformWithState, and this process does not see `--py-files`. On Spark
    Connect the driver is elsewhere, with a package of its own; there a client without such state raises SparkTooOld.
    """
    if is_remote():
        require(STATE_ON_CONNECT)
        return
    archive = next((parent for parent in Path(__file__).parents if parent.is_file()), None)
    if archive is not None and str(archive) not in _python_path_of_jvm().split(os.pathsep):
        raise OptionError(
            f"The package comes from {archive.name} (--py-files), and Spark hides that from the process on the driver "
            "which serves state in RocksDB.",
            hint="Install the package on driver and executors, or ship an environment with --archives; or assemble in "
            "the sink: StarRocksSink(options, assemble=TransactionAssembly()).",
        )


def active_context() -> Any:
    """Spark's context in this process; None without one, or if it was stopped, and on Spark Connect."""
    return SparkContext._active_spark_context


def _python_path_of_jvm() -> str:
    """PYTHONPATH of the Python processes of Spark's JVM; spark-submit adds `--py-files` to the driver's own only."""
    jvm: Any = getattr(active_context(), "_jvm", None)
    return (os.environ.get("PYTHONPATH") if jvm is None else jvm.java.lang.System.getenv("PYTHONPATH")) or ""


DRIVER_JAVA: Final = "spark.driver.extraJavaOptions"
LATER_COMPILER: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:Tier4InvocationThreshold=100000 -XX:Tier4MinInvocationThreshold=20000 "
    "-XX:Tier4CompileThreshold=300000 -XX:Tier4BackEdgeThreshold=1000000"
)
"""HotSpot's second compiler takes only code that has run 20 times as often as by default.

Code that reads rows has run so often within a second. At the default thresholds the compiler takes half of the
processor time of a start, for code of Spark that runs a few hundred times.
"""


def require_java() -> None:
    """Raises OptionError without Java; Spark itself would only say that its gateway ended."""
    if java_program() is None:
        home = os.environ.get("JAVA_HOME")
        hint = "Install a JDK 17 (Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME."
        place = f"in JAVA_HOME={home}" if home else "on PATH"
        raise OptionError(f"Spark needs Java, and there is none {place}.", hint=hint)


_IN_SPARK: Final = (
    "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime,org.slf4j:slf4j-api,"
    "org.xerial.snappy:snappy-java,org.lz4:lz4-java,at.yawk.lz4:lz4-java,com.google.code.findbugs:jsr305,"
    "org.scala-lang.modules:scala-parallel-collections_2.13"
)
"""What Spark's Kafka source names as its needs, and Spark has: nine tenths of the bytes of `spark.jars.packages`."""


@suggests_arguments
def recommended_conf(shuffle_partitions: int = 4, *, preload: bool = False) -> dict[str, str]:
    """Recommended Spark settings, for the session's builder or spark-submit's `--conf`.

    docs/guides/performance.md explains each of them.

    Args:
        shuffle_partitions: The parallelism of stateful stages: about the number of cores. A checkpoint keeps the number
            of its first start.
        preload: Python workers fork from a process that has loaded the sink's modules, instead of each loading them.
            Install the package on all executors first: Spark's Python does not start without it. Local mode has it.

    Returns:
        Names and values of the settings.

    Example::

        from pyspark.sql import SparkSession

        from starrocks_txn_sink import recommended_conf

        spark = SparkSession.builder.config(map=recommended_conf()).getOrCreate()
    """
    state = {
        PROVIDER: ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }
    # The JVM writes to a Python task in small pieces; over TCP the last one waits 40 ms for the kernel's delayed ACK.
    # YARN's java.io.tmpdir, the default folder, is longer than the 107 bytes that the path of a socket may have.
    sockets = {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": "/tmp"}
    return {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
        "spark.sql.shuffle.partitions": str(shuffle_partitions),
        **(state if STATE_BY_KEY.works else {}),
        **({"spark.python.daemon.module": "starrocks_txn_sink.writer.daemon"} if preload else {}),
        **(sockets if SPARK >= UNIX_SOCKETS and os.name == "posix" else {}),
        "spark.jars.excludes": _IN_SPARK,
        DRIVER_JAVA: f"-Xss16m {LATER_COMPILER}{archive_options()}",
        "spark.executor.extraJavaOptions": LATER_COMPILER,
    }


# --- the JVM's objects ---


def analyzed_plan(frame: DataFrame) -> Any:
    """The analysed plan of a frame; None on Spark Connect, where it is out of reach."""
    handle: Any = getattr(frame, "_jdf", None)
    return None if handle is None else handle.queryExecution().analyzed()


def items(sequence: Any) -> Iterator[Any]:
    """The items of a Scala sequence."""
    return (sequence.apply(index) for index in range(sequence.size()))


def forget_idle_profilers() -> None:
    """Have this worker of Spark send no counts of profilers that are off.

    The client of declarative pipelines takes the empty counts for an unknown answer, and ends a run that is complete
    with the exit code 1 (Spark 4.3.0).
    """
    counters = getattr(accumulators, "_accumulatorRegistry", {})
    kinds = getattr(accumulators, "SpecialAccumulatorIds", None)
    for name in ("SQL_UDF_PROFIER", "SQL_UDF_PROFIER_V2"):  # Spark's spelling
        number = getattr(kinds, name, None)
        if number in counters and not counters[number]._value:
            del counters[number]


def running_query(session: Any, query: str) -> Any:
    """Spark's execution of the query with this id, which runs in any session of the driver; None if none runs.

    Raises the errors of py4j where it is hidden: on Spark Connect, for a batch write, which has no id, and if Spark's
    inner classes have changed.
    """
    key = session._jvm.java.util.UUID.fromString(query)
    return session._jsparkSession.sharedState().activeStreamingQueries().get(key)


_QUERIES: dict[str, Any] = {}
_MOST_QUERIES: Final = 16


def query_of_batch(session: SparkSession | None, query: str) -> Any:
    """As `running_query`, for a micro-batch, which asks several times: the answer is kept while the run goes on.

    Each question is a dozen calls of the JVM, and whether the run goes on is one.
    """
    query_name = _QUERIES.get(query)
    with contextlib.suppress(Exception):  # py4j's, if its JVM has ended
        if query_name is not None and query_name.isActive():
            return query_name
    _QUERIES.pop(query, None)
    running = running_query(session, query)
    while len(_QUERIES) >= _MOST_QUERIES:
        _QUERIES.pop(next(iter(_QUERIES)), None)
    if running is not None:
        _QUERIES[query] = running
    return running


def class_name(node: Any) -> str:
    """The name of an object's class, without its package."""
    return str(node.getClass().getSimpleName())


# --- abilities that Spark 3.5 lacks ---

VariantType: Final[Any] = getattr(T, "VariantType", ())
"""For `isinstance`; in Spark 3.5 no value is of this type."""


def is_valid_utf8(text: Column) -> Column:
    """Whether the bytes of a string are UTF-8; NULL for NULL."""
    if hasattr(F, "is_valid_utf8"):
        return F.is_valid_utf8(text)
    return F.encode(F.decode(text.cast("binary"), "UTF-8"), "UTF-8") == text.cast("binary")


# --- what Spark loads and nobody needs ---


def _spare_helpers_of_tests() -> None:
    """Have Spark ask NumPy whether an argument of a call into the JVM is NumPy's.

    It asks for each argument, and imports its helpers for tests to learn that NumPy is there. They import pandas: at a
    start half a second of processor time, and 50 MB of the driver for as long as it runs.
    """
    answers: dict[str, Callable[[Any, Any], bool]] = {
        "NumpyScalarConverter": lambda _, value: isinstance(value, np.generic),
        "NumpyArrayConverter": lambda _, value: isinstance(value, np.ndarray) and value.ndim == 1,
    }
    for name, answer in answers.items():
        converter: Any = getattr(T, name, None)
        if hasattr(converter, "can_convert"):
            converter.can_convert = answer


_spare_helpers_of_tests()
require(SINK)
