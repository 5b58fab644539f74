"""Spark's part of the driver: its jobs, its clock, and what it knows of the running query.

Its session is None where there is no Spark (`sink.collected`), and Spark Connect hides most of it: then the functions
say what is unknown.
"""

from __future__ import annotations

import contextlib
import math
import re
import secrets
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql import SparkSession

from starrocks_txn_sink.clock import Clock, SystemClock
from starrocks_txn_sink.spark_version import query_of_batch, running_query

_SLOTS_SECONDS: Final = 10.0  # executors come and go slowly, and each question is eight calls of the JVM


CANCELLED: ContextVar[threading.Event] = ContextVar("CANCELLED")
"""Set when `SparkJobs.cancel` ends the write of this thread, for a lane that is no Spark job (`sink.driver_lane`)."""


class SparkJobs:
    """The sink's Spark jobs; `running` counts the micro-batches being written. Thread-safe; pickled empty."""

    def __init__(self) -> None:
        self._tag = f"starrocks-txn-sink-{secrets.token_hex(8)}"
        self._guard = threading.Lock()
        self._context: Any = None
        self._cancelled: set[threading.Event] = set()  # of the running writes
        self.running = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return SparkJobs, ()

    @contextlib.contextmanager
    def tag(self, spark: SparkSession | None) -> Iterator[None]:
        """Tag the jobs that this thread starts inside, so that `cancel` finds them."""
        context, cancelled = context_of(spark), threading.Event()
        before = CANCELLED.set(cancelled)
        with self._guard:
            self._context = context
            self._cancelled.add(cancelled)
            self.running += 1
        if context is not None:
            context.addJobTag(self._tag)
        try:
            yield
        finally:
            with self._guard:
                self._cancelled.discard(cancelled)
                self.running -= 1
            CANCELLED.reset(before)
            if context is not None:
                with contextlib.suppress(Exception):  # if the JVM has ended, the error from inside counts
                    context.removeJobTag(self._tag)

    def cancel(self) -> None:
        """End the sink's lanes: Spark its jobs, if it can be reached; never raises."""
        with self._guard:
            for cancelled in self._cancelled:
                cancelled.set()
        if self._context is not None:
            with contextlib.suppress(Exception):
                self._context.cancelJobsWithTag(self._tag)


def context_of(spark: SparkSession | None) -> Any:
    """The SparkContext of a session; None on Spark Connect, and without a session."""
    return getattr(spark, "_sc", None)


def driver_addresses(spark: SparkSession | None) -> tuple[str, str, str]:
    """Spark's master, the driver's host as executors know it, and the address that it binds on this machine."""
    here = socket.gethostname()
    master, host, bind = "", here, ""
    with contextlib.suppress(Exception):  # not a setting of every kind of session
        settings: Any = spark and spark.conf
        master = settings.get("spark.master", "") or ""
        host = settings.get("spark.driver.host", here) or here
        bind = settings.get("spark.driver.bindAddress", "") or ""
    return master, host, bind or host


def has_local_tasks(spark: SparkSession | None) -> bool:
    """Whether Spark's master is `local`: its tasks run on the driver's machine, and no cluster runs them again."""
    context = context_of(spark)
    return context is not None and _LOCAL.fullmatch(context.master) is not None


_LOCAL: Final = re.compile(r"local(\[[^]]*])?")  # not `local-cluster`, whose executors are processes of their own


class TaskSlots:
    """How many tasks the cluster of a SparkContext runs at a time, asked again after _SLOTS_SECONDS."""

    def __init__(self, context: Any, clock: Clock | None = None) -> None:
        self._context, self._clock = context, clock or SystemClock()
        self._known: tuple[int | None, float] | None = None

    def __call__(self) -> int | None:
        """None where it grows with the tasks that wait, or is hidden."""
        now = self._clock.monotonic()
        if self._known is None or now - self._known[1] >= _SLOTS_SECONDS:
            self._known = task_slots(self._context), now
        return self._known[0]


def task_slots(context: Any) -> int | None:
    """How many tasks the cluster runs at a time; None where it grows with the tasks that wait, or hides it."""
    with contextlib.suppress(Exception):  # py4j's, and Spark's inner methods: they may change
        spark = context._jsc.sc()
        if not spark.conf().getBoolean("spark.dynamicAllocation.enabled", False):
            return int(spark.maxNumConcurrentTasks(spark.resourceProfileManager().defaultResourceProfile())) or None
    return None


LaneFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_EMPTY: WeakKeyDictionary[Any, dict[int, Any]] = WeakKeyDictionary()
"""Frames of no rows by SparkContext and number of partitions: jobs without Spark SQL start from them."""


def run_without_input(context: Any, lane: LaneFunction, lanes: int) -> list[str]:
    """Run `lane` without rows in each of `lanes` tasks, as one Spark job; the first column of what the tasks yield.

    As mapInArrow, but without Spark SQL, whose planning of such a job takes longer than a small micro-batch's rows.
    """
    frames = _EMPTY.setdefault(context, {})
    if lanes not in frames:
        frames[lanes] = context.parallelize([], lanes)
    answers: list[str] = frames[lanes].mapPartitions(partial(_texts, lane)).collect()
    return answers


def _texts(lane: LaneFunction, rows: Iterator[Any]) -> Iterator[str]:
    deque(rows, maxlen=0)  # Spark ends a worker that leaves its input behind
    for batch in lane(iter(())):
        yield from batch.column(0).to_pylist()


def is_stopped(spark: SparkSession | None) -> bool:
    """Whether Spark is stopping the query of a micro-batch; False on Spark Connect.

    Spark then interrupts the JVM's thread that runs the micro-batch, in which this call runs, too.
    """
    context = context_of(spark)
    with contextlib.suppress(Exception):  # if the JVM has ended, the next try fails by itself
        return context is not None and bool(context._jvm.java.lang.Thread.currentThread().isInterrupted())
    return False


def driver_clock(spark: SparkSession | None) -> Clock:
    """The clock of the driver's waits in a micro-batch: a stop of its query ends them."""
    context = context_of(spark)
    return SystemClock() if context is None else _JvmClock(context)


class _JvmClock(SystemClock):
    """Sleeps in the JVM's thread that runs the micro-batch, so that Spark can interrupt it.

    Spark knows a stop by the JVM's InterruptedException in the error, and then ends the query without a failure.
    """

    def __init__(self, context: Any) -> None:
        self._jvm = context._jvm

    def sleep(self, seconds: float) -> None:
        self._jvm.java.lang.Thread.sleep(math.ceil(seconds * 1000))


def is_running(session: SparkSession | None, query: str) -> bool:
    """Whether the query with this id runs in any session of the driver.

    True where that is unknown: on Spark Connect, and for a batch write, which has no id.
    """
    with contextlib.suppress(Exception):
        return running_query(session, query) is not None
    return True


def batch_time(spark: SparkSession | None, query: str) -> float | None:
    """The time at which Spark planned the micro-batch that the query with this id runs, in seconds since the epoch.

    Spark keeps it in the checkpoint, so that it is the same when the micro-batch runs again. None where it is hidden:
    on Spark Connect, and for a batch write, which has no id.
    """
    with contextlib.suppress(Exception):  # py4j's, and Spark's inner classes: they may change
        execution = query_of_batch(spark, query).lastExecution()
        return int(execution.offsetSeqMetadata().batchTimestampMs()) / 1000
    return None


def batch_watermark(spark: SparkSession | None, query: str) -> float | None:
    """Spark's watermark of the micro-batch, as `batch_time`; 0 before there is one."""
    with contextlib.suppress(Exception):  # py4j's, and Spark's inner classes: they may change
        execution = query_of_batch(spark, query).lastExecution()
        return int(execution.offsetSeqMetadata().batchWatermarkMs()) / 1000
    return None


def end_progress_bar(spark: SparkSession | None) -> None:
    """End the progress bar of Spark's console and clear its line: JSON lines go to the same stream."""
    context = context_of(spark)
    with contextlib.suppress(Exception):  # Spark Connect has no context, and another Spark no such bar
        bar = context._jsc.sc().progressBar()
        if bar.isDefined():
            bar.get().finishAll()
            bar.get().stop()
