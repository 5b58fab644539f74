"""A lane in the driver's own process, in place of a Spark task.

Where Spark's master is `local`, tasks run on the driver's machine, in Python processes beside it: a daemon, and a
worker that forks from it. A lane that is alone, reads Kafka by itself and has few rows needs neither them nor a Spark
job. More rows go on in workers, whose memory ends with them. So do more lanes, and a lane of another query that comes
while one runs here: Python runs one thread at a time, and a process's resources are for one lane at a time.

The lane has a thread of its own, for the thread of the micro-batch has to hear that Spark stops the query. It then ends
the lane as Spark ends a task: the lane's time is over, and a lane that does not notice within _END_SECONDS is left
behind. Nothing that such a lane still does counts: its label is given up, and nobody reads its messages.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.errors import DeadlineExceeded, StarRocksSinkError, add_note
from starrocks_txn_sink.sink.spark_jobs import CANCELLED, driver_clock
from starrocks_txn_sink.writer.lane_try import SparkLane
from starrocks_txn_sink.writer.messages import Message, decode

_LOOK_SECONDS: Final = 0.25  # between two questions to the JVM; most lanes end before the first one
_END_SECONDS: Final = 2.0  # as Spark gives a task that it ends


class LaneCancelled(Exception):
    """The program ends while the lane runs."""


class EndingClock(SystemClock):
    """A clock whose time may end, for each wait of a lane asks it how much is left: it then raises DeadlineExceeded."""

    def __init__(self) -> None:
        self._ended = threading.Event()

    def end(self) -> None:
        """End the time."""
        self._ended.set()

    def monotonic(self) -> float:
        """See SystemClock."""
        if self._ended.is_set():
            raise DeadlineExceeded("The lane was stopped.")
        return super().monotonic()

    def sleep(self, seconds: float) -> None:
        """See SystemClock."""
        if self._ended.wait(seconds):
            self.monotonic()


def run_here(
    lane: Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]], batches: Iterable[pa.RecordBatch]
) -> list[Message]:
    """Run a lane in this thread. Its messages are texts on their way, as a task's are: they share nothing with it."""
    return [decode(text) for batch in lane(iter(batches)) for text in batch.column(0).to_pylist()]


_ONE_LANE: Final = threading.Lock()  # let go by the lane's own thread, however late that ends


def run_beside(lane: SparkLane, spark: SparkSession | None) -> list[Message] | None:
    """The messages of a lane without input, run in a thread beside this one, which is that of the micro-batch.

    None, and nothing has run, while another lane runs so. Raises the lane's error, the JVM's InterruptedException if
    Spark stops the query, and LaneCancelled.
    """
    if not _ONE_LANE.acquire(blocking=False):
        return None
    clock, over = EndingClock(), threading.Event()
    messages: list[Message] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            messages.extend(run_here(partial(lane, clock=clock), ()))
        except BaseException as error:  # raised where the micro-batch's thread waits
            errors.append(error)
        finally:
            _ONE_LANE.release()
            over.set()

    threading.Thread(target=run, name="starrocks-driver-lane", daemon=True).start()
    try:
        _await(over, spark)
    except BaseException:
        clock.end()
        over.wait(_END_SECONDS)
        raise
    for error in errors:
        if not isinstance(error, StarRocksSinkError):  # a task's would have its traceback in Spark's text
            add_note(error, "".join(traceback.format_exception(error)))
        raise error
    return messages


def _await(over: threading.Event, spark: SparkSession | None) -> None:
    """Wait until the lane is `over`; raises what stops the micro-batch."""
    cancelled, jvm = CANCELLED.get(), driver_clock(spark)
    while not over.wait(_LOOK_SECONDS):
        if cancelled.is_set():
            raise LaneCancelled("The lane was cancelled.")
        jvm.sleep(0)
