"""`run_forever`: starts a streaming query again after each failure, in one process.

The process keeps the metrics endpoint, the page and Spark's session. The kind of a failure decides:

- After a *transient* failure (StarRocks or the network did not serve) `run_forever` starts the query again, however
  often, with the waits of a RestartPolicy.
- A *terminal* failure needs a person, so `run_forever` ends at once with ExitCode.TERMINAL.
- After an *unknown* failure, from outside the sink (a source, a user's function, Spark), `run_forever` starts the query
  again, but at most `most_unknown` times without a micro-batch in between.

Each failure becomes one block on standard error: cause, remedy, place, link, and the step that follows.
"""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from pyspark import SparkContext
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException
from pyspark.sql.utils import is_remote

from starrocks_txn_sink.errors import OptionError, StarRocksSinkError
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.sink import failures
from starrocks_txn_sink.spark_version import active_context
from starrocks_txn_sink.telemetry import get_logger

_POLL_SECONDS: Final = 1.0  # between two looks at the stop signal while the query runs
_NOISY: Final = (  # these loggers repeat the failure in the block; the executors of `local` log in this JVM
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec",
    "org.apache.spark.api.python.PythonRunner",
)
_SPARK_HAS_ENDED: Final = "Spark has ended: its JVM does not answer, or its SparkContext was stopped."
_START_THE_PROCESS: Final = (
    "Start the process again; the driver's log above has the reason, such as memory or a signal."
)
_TERMINATED: Final = "terminated with exception: "

_log = get_logger("supervisor")


class ExitCode(IntEnum):
    """Results of `run_forever`, for `sys.exit`; the numbers above 0 are those of sysexits.h."""

    ENDED = 0
    """The query ended by itself (`availableNow`), or it was stopped."""
    GAVE_UP = 75
    """Spark has ended, or unknown failures came again and again: a new process may help."""
    TERMINAL = 78
    """A restart cannot help before a person has changed something."""


@suggests_arguments
@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Waits before restarts: twice as long each time, with a jitter of a fifth.

    The waits begin again at `first` after a run of more than `reset_after` seconds, and after a run that ended a
    micro-batch.

    Args:
        first: Seconds before the first restart.
        longest: The longest wait in seconds, without the jitter; less than a day.
        reset_after: Seconds of a run after which the waits begin again at `first`.
        most_unknown: Restarts after failures from outside the sink (a source, a user's function, Spark) without a
            micro-batch between them. After one more such failure `run_forever` gives up.

    Raises:
        OptionError: A number is out of range.
    """

    first: float = 1.0
    longest: float = 60.0
    reset_after: float = 300.0
    most_unknown: int = 10

    def __post_init__(self) -> None:
        if not (0 < self.first <= self.longest < 86_400 and self.reset_after >= 0 and self.most_unknown >= 0):
            raise OptionError(
                f"{self!r} cannot be followed.",
                hint="Set 0 < first <= longest < 86400 seconds, reset_after >= 0 seconds and most_unknown >= 0.",
            )

    def seconds(self, restarts: int, rng: random.Random) -> float:
        """The wait in seconds before a restart, with its jitter.

        Args:
            restarts: The number of restarts in a row before this one.
            rng: The source of the jitter.
        """
        return float(min(self.longest, self.first * 2.0 ** min(restarts, 30)) * (1 + rng.uniform(-0.2, 0.2)))


@suggests_arguments
def run_forever(
    start: Callable[[], Any],
    *,
    policy: RestartPolicy | None = None,
    stop: threading.Event | None = None,
    stop_seconds: float = 20.0,
    quiet: bool = True,
) -> ExitCode:
    """Start a streaming query and keep it running until it ends by itself, is stopped, or cannot go on.

    Failures of StarRocks or the network restart the query, however often. A failure that needs a person ends the run at
    once. SIGTERM and Ctrl-C stop the query if this is the main thread.

    Args:
        start: A function that starts the query and returns it, with the same checkpoint and `job` each time. Make the
            session, the metrics endpoint and the sink outside of it.
        policy: The waits before restarts; by default `RestartPolicy()`.
        stop: An event; once it is set, the query stops.
        stop_seconds: Seconds to wait for the query to stop.
        quiet: Whether to switch off the loggers of Spark that repeat a failure as tracebacks.

    Returns:
        The exit code of the process. It is 0 after the query has ended or was stopped, 75 if a new process may help
        (Spark has ended, or unknown failures came again and again), and 78 if a person has to change something first.

    Raises:
        Exception: `start` raised an error that is neither Spark's nor the sink's; it passes unchanged.

    Example::

        import sys

        from starrocks_txn_sink import SinkOptions, StarRocksSink, run_forever

        sink = StarRocksSink(SinkOptions(load_url="http://fe:8030", query_url="mysql://fe:9030", database="shop"))
        query = rows.writeStream.foreachBatch(sink).option("checkpointLocation", "/data/checkpoint")
        sys.exit(run_forever(query.start))
    """
    policy, stop, rng = policy or RestartPolicy(), stop or threading.Event(), random.Random()
    restarts = unknown = 0  # in a row
    with _stopped_by_signals(stop):
        while True:
            began = time.monotonic()
            failure, has_moved = _run_once(start, stop, stop_seconds, quiet=quiet)
            if failure is None:
                return ExitCode.ENDED
            if has_moved or time.monotonic() - began > policy.reset_after:
                restarts = unknown = 0
            unknown = unknown + 1 if failure.kind is failures.FailureKind.UNKNOWN else 0
            verdict = _verdict(failure, hopeless=unknown > policy.most_unknown)
            if verdict is not None:
                failures.print_block(failure, f"the query stays down (exit code {verdict.value})")
                return verdict
            seconds = policy.seconds(restarts, rng)
            restarts += 1
            failures.print_block(failure, f"the query starts again in {seconds:.1f} s (restart {restarts} in a row)")
            _log.info("query.restarting", code=failure.code, seconds=seconds, restarts=restarts)
            if stop.wait(seconds):
                return ExitCode.ENDED


def _verdict(failure: failures.Failure, *, hopeless: bool) -> ExitCode | None:
    """How `run_forever` ends after this failure; None for a restart."""
    if failure.kind is failures.FailureKind.TERMINAL:
        return ExitCode.TERMINAL
    return ExitCode.GAVE_UP if hopeless or _spark_has_ended() else None


def _run_once(
    start: Callable[[], Any], stop: threading.Event, stop_seconds: float, *, quiet: bool
) -> tuple[failures.Failure | None, bool]:
    """Run the query to its end. Returns its failure (None: it ended by itself or was stopped), and whether a
    micro-batch ended."""
    query: Any = None
    with contextlib.ExitStack() as stack:
        try:
            query = start()
            stack.enter_context(failures.FAILURES.reserve(str(query.id)))
            if quiet:
                _silence_spark()
            _await(query, stop, stop_seconds)
        except Exception as error:
            if query is None and not _is_failure(error):
                raise
            failure = _failure_of(query, error)  # also after a stop: the next run must not find this failure
            return (None if stop.is_set() else failure), _has_progressed(query)
        except BaseException:  # a second signal: no query stays behind
            if query is not None:
                _stop(query, stop_seconds)
            raise
    return None, True


def _await(query: Any, stop: threading.Event, stop_seconds: float) -> None:
    """Wait for the query's end; raises its exception."""
    while not query.awaitTermination(_POLL_SECONDS):
        if stop.is_set():
            _stop(query, stop_seconds)
            return


def _stop(query: Any, seconds: float) -> None:
    """Stop the query, and wait at most `seconds` for it, because a call of the JVM may hang."""
    thread = threading.Thread(target=_stop_quietly, args=(query,), name="starrocks-stop-query", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        _log.warning("query.stop_hangs", seconds=seconds)


def _stop_quietly(query: Any) -> None:
    with contextlib.suppress(Exception):  # it has failed meanwhile, or the JVM has ended
        query.stop()


def _is_failure(error: Exception) -> bool:
    """Whether an error of `start` comes from the sink, Spark or the way to Spark's JVM. Others are bugs of `start`."""
    is_typical = isinstance(error, (StarRocksSinkError, PySparkException, ConnectionError))
    return is_typical or type(error).__module__.startswith("py4j")


def _failure_of(query: Any, error: BaseException) -> failures.Failure:
    """The failure of a query that `error` has ended: the sink's record of it, or else what `error` says."""
    with contextlib.suppress(Exception):  # without a JVM the query has no id
        if query is not None and (recorded := failures.FAILURES.take(str(query.id))) is not None:
            return recorded
    if isinstance(error, StarRocksSinkError):
        return failures.Failure.of(error)
    if query is not None and _spark_has_ended():
        return failures.Failure(failures.SPARK, _SPARK_HAS_ENDED, _START_THE_PROCESS, failures.FailureKind.UNKNOWN)
    text = failures.text_of(error)
    typed_error = failures.error_in_text(text)
    if typed_error is not None:
        return failures.Failure.of(typed_error)
    _, mark, cause = text.partition(_TERMINATED)
    plain = failures.Failure.of(error)
    invalid = isinstance(error, (AnalysisException, IllegalArgumentException))  # the query itself is wrong
    kind = failures.FailureKind.TERMINAL if invalid else plain.kind
    return failures.Failure(failures.SPARK, failures.cause_line(cause if mark else text), plain.advice, kind)


def _has_progressed(query: Any) -> bool:
    with contextlib.suppress(Exception):
        return query is not None and query.lastProgress is not None
    return False


def _spark_has_ended() -> bool:
    """Whether the JVM or its SparkContext has ended, so that this process can start no query."""
    if is_remote():
        return False
    context = active_context()
    try:
        return context is None or bool(context._jsc.sc().isStopped())
    except Exception:
        return True


def _silence_spark() -> None:
    """Switch off the loggers of the JVM that repeat a failure with tracebacks."""
    context = active_context()
    if context is None or is_remote():
        return
    with contextlib.suppress(Exception):  # another logging library than Spark's default
        jvm: Any = context._jvm
        log4j = jvm.org.apache.logging.log4j
        for name in _NOISY:
            log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


@contextlib.contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Set `stop` when SIGTERM or Ctrl-C comes, in the main thread; handlers of the application stay."""

    def note(number: int, _: object) -> None:
        if stop.is_set():  # a second signal does not wait
            sys.exit(128 + number)
        stop.set()

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    in_main = threading.current_thread() is threading.main_thread()
    signals = [number for number, handler in handlers.items() if in_main and _is_default(handler)]
    for number in signals:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number in signals:
            signal.signal(number, handlers[number])


def _is_default(handler: Any) -> bool:
    """Whether a handler is Python's or Spark's. Spark's fails, because it calls the JVM inside of another call."""
    spark = getattr(handler, "__module__", None) == SparkContext.__module__
    return spark or handler in (signal.SIG_DFL, signal.default_int_handler)
