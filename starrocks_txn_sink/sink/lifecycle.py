"""The life of a sink's writes on the driver: turns, Spark jobs, events, and the end of the process.

**Events.** `SinkEvents` sends the events of a sink to log, listener and metrics endpoint: sessions, micro-batches,
receipts, and source transactions that stay open. The sink knows an endpoint only by the protocol `Endpoint`, and
imports `metrics` only if the user wants an endpoint. Events never break a commit: `emit` skips a listener that raises.

A source transaction without its END is not a failure, but the sink writes none of its rows. So a warning must say so.
The counts come from the lanes that assemble (`sink.events_writer`), or from a stage through Spark's progress. A thread
reads the counts, because no further micro-batch may come.

**The end.** Before the process ends, the sink rolls back open labels, within seconds. At a normal end, and after an
exception in the main program, Python runs `atexit`. But supervisors (systemd, Kubernetes, YARN) end a driver with
SIGTERM, which by default ends Python at once and leaves labels open until their timeout. So the first write installs a
handler, unless the application has one. Making a sink installs nothing.

`signal.signal` cannot be used: only the main thread may call it, while the first write of a streaming query runs in a
thread of Spark's; and its handler runs in the main thread, which waits for the query. `faulthandler.register` works in
any thread, and its handler in C writes to a file at once, whatever Python does at that moment. The file is a pipe, at
whose other end a thread of the sink waits. When the signal comes, this thread has every sink give up. Then it sends the
signal again with the default action, so that the exit status is right. A handler that the application sets wins.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import math
import os
import secrets
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import is_remote

from starrocks_txn_sink import __version__
from starrocks_txn_sink.assembler.keyed_state import PLANNED
from starrocks_txn_sink.clock import Clock, SystemClock
from starrocks_txn_sink.coordinator.model import PositionSpan, Receipt, name_spans
from starrocks_txn_sink.errors import DeadlineExceeded, Fenced, StarRocksSinkError
from starrocks_txn_sink.metrics.jobs import AssemblerLevels, query_of
from starrocks_txn_sink.metrics.spark_progress import ProgressWatch
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sink import progress
from starrocks_txn_sink.sink.failures import FAILURES, SPARK, Failure, is_interruption, lane_report, own_error, text_of
from starrocks_txn_sink.telemetry import Event, EventLogger, Listener, fan_out, get_logger, shares_stderr
from starrocks_txn_sink.writer.messages import write_envelope

_log = get_logger("metrics")
_log_sink = get_logger("sink")
_LINES = EventLogger("sink")


@dataclass(frozen=True, slots=True)
class BatchOrigin:
    """The write that rows belong to: a micro-batch of a query, of whose run `key` is the id, or a call of `write`."""

    batch_id: int
    job: str
    checkpoint: str
    key: str
    streaming: bool


class WriteTurns:
    """One write at a time for each job. Thread-safe; pickled empty, as the sink's sessions are."""

    def __init__(self) -> None:
        self._locks: dict[str, threading.Lock] = {}
        self._replaced: dict[tuple[str, str], str] = {}

    def __reduce__(self) -> tuple[type[WriteTurns], tuple[()]]:
        return WriteTurns, ()

    @contextlib.contextmanager
    def one_at_a_time(self, job: str, seconds: float) -> Iterator[None]:
        """Wait for the job's other writes in this process; raises DeadlineExceeded after `seconds`."""
        lock = self._locks.setdefault(job, threading.Lock())
        if not lock.acquire(timeout=seconds):
            raise DeadlineExceeded(f"Another write of the job {job} in this process did not end within {seconds:g} s.")
        try:
            yield
        finally:
            lock.release()

    def record_replacement(self, job: str, run: str, by: str) -> None:
        """Remember that a query's `run` has lost `job` to the writer with the checkpoint `by`."""
        self._replaced[job, run] = by

    def refuse_replaced(self, job: str, run: str) -> None:
        """Raise Fenced when another writer of this sink has taken `job` from the query's `run`.

        Otherwise two queries that share a sink and a job would take the job from each other in turns, without an error.
        """
        by = self._replaced.get((job, run))
        if by is not None:
            raise Fenced("The job was taken over by another writer, which uses the same sink.", checkpoint=by)


class SparkJobs:
    """The sink's Spark jobs; `running` counts the micro-batches being written. Thread-safe; pickled empty."""

    def __init__(self) -> None:
        self._tag = f"starrocks-txn-sink-{secrets.token_hex(8)}"
        self._guard = threading.Lock()
        self._context: Any = None
        self.running = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return SparkJobs, ()

    @contextlib.contextmanager
    def tag(self, frame: DataFrame) -> Iterator[None]:
        """Tag the jobs that this thread starts inside, so that `cancel` and progress find them."""
        context = context_of(frame)
        with self._guard:
            self._context = context
            self.running += 1
        if context is not None:
            context.addJobTag(self._tag)
        try:
            yield
        finally:
            with self._guard:
                self.running -= 1
            if context is not None:
                with contextlib.suppress(Exception):  # if the JVM has ended, the error from inside counts
                    context.removeJobTag(self._tag)

    @contextlib.contextmanager
    def show_progress(self, frame: DataFrame, listener: Listener) -> Iterator[None]:
        """Show the progress of the jobs that are started inside."""
        context = context_of(frame)
        if context is None:
            yield
            return
        display = progress.choose_display(context, listener)
        with progress.show_progress(partial(progress.read_task_progress, context, self._tag), display):
            yield

    def cancel(self) -> None:
        """Have Spark end the sink's jobs, if it can be reached; never raises."""
        if self._context is not None:
            with contextlib.suppress(Exception):
                self._context.cancelJobsWithTag(self._tag)


def context_of(frame: DataFrame) -> Any:
    """The SparkContext of `frame`; None on Spark Connect."""
    return getattr(frame.sparkSession, "_sc", None)


def is_stopped(frame: DataFrame) -> bool:
    """Whether Spark is stopping the query of a micro-batch; False on Spark Connect.

    Spark then interrupts the JVM's thread that runs the micro-batch, in which this call runs, too.
    """
    context = context_of(frame)
    with contextlib.suppress(Exception):  # if the JVM has ended, the next try fails by itself
        return context is not None and bool(context._jvm.java.lang.Thread.currentThread().isInterrupted())
    return False


def driver_clock(frame: DataFrame) -> Clock:
    """The clock of the driver's waits in a micro-batch: a stop of its query ends them."""
    context = context_of(frame)
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
        spark: Any = session
        key = spark._jvm.java.util.UUID.fromString(query)
        return bool(spark._jsparkSession.sharedState().activeStreamingQueries().containsKey(key))
    return True


def batch_time(frame: DataFrame, query: str) -> float | None:
    """The time at which Spark planned the micro-batch that the query with this id runs, in seconds since the epoch.

    Spark keeps it in the checkpoint, so that it is the same when the micro-batch runs again. None where it is hidden:
    on Spark Connect, and for a batch write, which has no id.
    """
    with contextlib.suppress(Exception):  # py4j's, and Spark's inner classes: they may change
        spark: Any = frame.sparkSession
        key = spark._jvm.java.util.UUID.fromString(query)
        execution = spark._jsparkSession.sharedState().activeStreamingQueries().get(key).lastExecution()
        return int(execution.offsetSeqMetadata().batchTimestampMs()) / 1000
    return None


def end_progress_bar(frame: DataFrame) -> None:
    """End the progress bar of Spark's console and clear its line: JSON lines go to the same stream."""
    context = context_of(frame)
    with contextlib.suppress(Exception):  # Spark Connect has no context, and another Spark no such bar
        bar = context._jsc.sc().progressBar()
        if bar.isDefined():
            bar.get().finishAll()
            bar.get().stop()


# --- events ---

OPEN_SECONDS: Final = 60.0
_LONGEST: Final = 3600.0  # seconds between two warnings
_LOOK_SECONDS: Final = 5.0
_ADVICE: Final = (
    "Its END has not come, so none of its rows is written: did the source stop, is the END filtered out, or do several "
    "producers write the partition (interleaved=True)?"
)


class OpenTransactionWatch:
    """A listener that warns about the oldest open source transaction after OPEN_SECONDS, then ever more rarely.

    Emits `transaction.open`, while the query runs. Thread-safe; pickled empty.
    """

    session: SparkSession | None = None  # of the newest micro-batch

    def __init__(self, emit: Listener, clock: Clock | None = None) -> None:
        self._emit, self._clock = emit, clock or SystemClock()
        self._guard = threading.Lock()
        self._levels = AssemblerLevels()
        self._next_age: dict[tuple[str, float], float] = {}  # (stage, opening) → age in seconds at the next warning
        self._looking: threading.Thread | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenTransactionWatch, (self._emit,)

    def __call__(self, event: Event) -> None:
        """Take in `assembler.counted`; ignore other events."""
        if event.name != "assembler.counted":
            return
        fields = event.fields
        with self._guard:
            self._levels.add_counts(fields["name"], fields["counts"], self._clock.wall(), fields.get("oldest", ()))
        self._look_later()

    def look(self) -> bool:
        """Warn if it is time; returns whether any source transaction of a running query is open."""
        now = self._clock.wall()
        with self._guard:
            found = self._levels.open_transactions()
        oldest = next((one for one in found if is_running(self.session, query_of(one["stage"]))), None)
        with self._guard:
            if oldest is None:  # if the query of an open one is restarted, its next counts start the thread again
                self._next_age.clear()
                return False
            age, key = now - oldest["since"], (oldest["stage"], oldest["since"])
            due = age >= self._next_age.get(key, OPEN_SECONDS)
            if due:
                self._next_age = {key: min(2 * age, age + _LONGEST)}
        if due:
            fields = {name: oldest[name] for name in ("stage", "place", "open", "rows")}
            self._emit(Event("transaction.open", {**fields, "seconds": age, "advice": _ADVICE}))
        return True

    def _look_later(self) -> None:
        with self._guard:
            if self._looking is None or not self._looking.is_alive():
                self._looking = start_thread(self._keep_looking)

    def _keep_looking(self) -> None:
        SystemClock().sleep(_LOOK_SECONDS)
        while self.look():
            SystemClock().sleep(_LOOK_SECONDS)


class _StageCounts:
    """Passes the counts of stages to all watches of this process: one listener of Spark's serves all sinks."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._watches = weakref.WeakSet[OpenTransactionWatch]()
        self._session: Any = None

    def __call__(self, event: Event) -> None:
        for watch in list(self._watches):
            watch(event)

    def follow(self, watch: OpenTransactionWatch, frame: DataFrame) -> None:
        """Pass counts to `watch` from now on, if this process has planned a stage and Spark reports progress."""
        if not PLANNED.is_set() or getattr(frame.sparkSession, "_sc", None) is None:
            return
        with self._guard, contextlib.suppress(Exception):  # watching never breaks a commit
            self._watches.add(watch)
            session = SparkSession.builder.getOrCreate()
            if self._session is not session:
                self._session = session
                ProgressWatch(session, self)


STAGES: Final = _StageCounts()


def receipt_events(receipts: Sequence[Receipt]) -> Iterator[Event]:
    """`receipt.collected` for each of `receipts`, `rows.dead_lettered` for each table with such rows."""
    for receipt in receipts:
        yield Event("receipt.collected", {"receipt": receipt})
    rows: dict[tuple[str, int, str], int] = {}
    spans: dict[tuple[str, int, str], list[PositionSpan]] = {}
    for receipt in receipts:
        for region in receipt.dead_lettered:
            place = receipt.job, receipt.batch_id, region.table
            rows[place] = rows.get(place, 0) + region.rows
            of_region = (span for span in receipt.dead_lettered_positions if span.partition == region.partition)
            spans.setdefault(place, []).extend(of_region)
    for (job, batch_id, table), count in sorted(rows.items()):
        of_table = spans[job, batch_id, table]
        counts = {"rows": count, "source_transactions": sum(span.source_transactions for span in of_table)}
        fields = {"job": job, "batch_id": batch_id, "table": table, "reason": "rejected", **counts}
        yield Event("rows.dead_lettered", {**fields, "place": name_spans(of_table)})


class BatchReceipts:
    """The receipts of one micro-batch. Each is an event at once: the micro-batch may still fail, its rows stay."""

    def __init__(self, emit: Listener) -> None:
        self._emit, self.collected = emit, list[Receipt]()

    def add(self, receipts: Sequence[Receipt]) -> None:
        self.collected += receipts
        for event in receipt_events(receipts):
            self._emit(event)


class Endpoint(Protocol):
    """A metrics endpoint such as `metrics.MetricsServer`."""

    def __call__(self, event: Event) -> None: ...

    def start(self) -> object: ...

    def watch(self, session: Any) -> None: ...


class SinkEvents:
    """Emits the events of one sink: sessions, micro-batches, receipts. Other modules call `emit`, too.

    Pickled with its listeners: Spark Connect moves the sink into a server process, which emits `sink.made` again.
    """

    def __init__(self, options: SinkOptions, listener: Listener, endpoint: Endpoint | None) -> None:
        self.endpoint = endpoint if endpoint is not None else _shared_endpoint(options)
        self._open = OpenTransactionWatch(_LINES)
        targets = (_LINES, self._open, listener)
        self.emit = fan_out(targets if self.endpoint is None else (*targets, self.endpoint))
        versions = {"version": __version__, "spark": pyspark.__version__}
        limits = {"buffer_bytes": options.buffer_bytes, "timeout": options.timeout}
        self._made = Event("sink.made", {**limits, **versions})
        self._options = options
        if self.endpoint is not None and not is_remote():  # with Spark Connect the sink works in another process
            self.endpoint.start()
        self.emit(self._made)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.emit(self._made)

    @contextlib.contextmanager
    def follow_batch(self, frame: DataFrame, origin: BatchOrigin) -> Iterator[BatchReceipts]:
        """Emit the events of the micro-batch that the block writes; the block adds its receipts.

        `batch.completed` comes last, with counts of all receipts. An error that leaves the block emits
        `batch.failed`, or `batch.stopped` if Spark interrupted the micro-batch to stop the query. A lane's or a stage's
        own error replaces Spark's text about it. Spark's own errors pass unchanged.
        """
        started, receipts = time.monotonic(), BatchReceipts(self.emit)
        query = origin.checkpoint if origin.streaming else ""
        if shares_stderr():
            end_progress_bar(frame)
        self._start_endpoint(frame, query)
        place = {"job": origin.job, "batch_id": origin.batch_id}
        begun = {**place, "query": query, "database": self._options.database}
        self.emit(Event("batch.started", begun))
        try:
            yield receipts
        except BaseException as error:
            _log_sink.debug("batch.traceback", **place, exc_info=error)
            ours = self._report_failure(frame, error, query, place, time.monotonic() - started)
            if ours is None or type(ours) is StarRocksSinkError:  # the latter is a bug, so its traceback counts
                raise
            raise ours.with_traceback(None) from None  # Spark would print a traceback several times
        if FAILURES.last:  # a user's function may have caught the failure of an earlier try
            FAILURES.forget(query)
        if query:
            self._open.session = frame.sparkSession
            STAGES.follow(self._open, frame)
        counted = ("rows", "source_transactions", "dead_lettered_rows", "dead_lettered_transactions")
        counts = {name: sum(getattr(receipt, name) for receipt in receipts.collected) for name in counted}
        counts = {"seconds": time.monotonic() - started, "receipts": len(receipts.collected), **counts}
        self.emit(Event("batch.completed", {**place, **counts}))

    def _report_failure(
        self, frame: DataFrame, error: BaseException, query: str, place: dict[str, Any], seconds: float
    ) -> StarRocksSinkError | None:
        """Emit the failure of a micro-batch and post it for people; returns the sink's error behind `error`, if any."""
        report = lane_report(error)
        ours = own_error(error, report)
        stopped = bool(query) and isinstance(error, Exception) and _ends_with_query(frame, error)
        if stopped and ours is None:
            self.emit(Event("batch.stopped", {**place, "seconds": seconds}))
            return None
        code = ours.code if ours is not None else (report.code if report else "") or SPARK
        self.emit(Event("batch.failed", {**place, "seconds": seconds, "code": code, "report": report}))
        if query and isinstance(error, Exception) and not stopped:
            # With a ledger the take-over of a restart finds the outcome of a commit.
            FAILURES.post(query, Failure.of(ours or error, settles_doubts=self._options.exactly_once, **place))
        write_envelope(error)  # Spark Connect's client is another process
        return ours

    def _start_endpoint(self, frame: DataFrame, query: str) -> None:
        if self.endpoint is None:
            return
        try:
            self.endpoint.start()
            if query and context_of(frame) is not None:
                # The frame has a copy of the session, made for the query; Spark reports progress to the original.
                self.endpoint.watch(SparkSession.builder.getOrCreate())
        except Exception as error:  # broken metrics must not stop a job
            _log.warning("metrics.broken", why=str(error))


def _ends_with_query(frame: DataFrame, error: Exception) -> bool:
    """Whether a micro-batch failed only because Spark is stopping its query."""
    return is_stopped(frame) or (not isinstance(error, StarRocksSinkError) and is_interruption(text_of(error)))


def _shared_endpoint(options: SinkOptions) -> Endpoint | None:
    if options.metrics_port is None:
        return None
    from starrocks_txn_sink.metrics.server import shared_server

    return shared_server(options.metrics_port, options.metrics_host)


# --- the end of the process ---

EXIT_SECONDS = 5.0
"""How long the end of the process may be delayed; supervisors wait for 10 to 90 seconds before they use SIGKILL."""


class StoppableWriter(Protocol):
    """A writer that can give up its open writes, if there are any, within `seconds`; never raises."""

    def give_up(self, seconds: float) -> None: ...


_writers = weakref.WeakKeyDictionary[StoppableWriter, int]()  # writer → id of the process in which it writes


class _Sigterm:
    """Whether this process has taken SIGTERM; forked children have not."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ending = False
        self._taken = False
        self._follows_forks = False
        self._mask = threading.local()

    def take(self) -> None:
        """Take the signal if its action is the default one; a second call does nothing."""
        if self._taken or not hasattr(faulthandler, "register"):  # Windows has no such call
            return
        if not _is_default() or signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
            return
        self._taken = True
        if not self._follows_forks:
            self._follows_forks = True
            os.register_at_fork(before=self._block, after_in_parent=self._unblock, after_in_child=self._reset_in_child)
        reading, writing = os.pipe()  # open as long as the process lives
        os.set_blocking(writing, False)  # a handler must never wait
        threading.Thread(target=self._wait, args=(reading,), name="starrocks-sigterm", daemon=True).start()
        # all_threads=False: frames of other threads may change while they are written. The kernel chooses the main
        # thread unless the main thread blocks the signal.
        faulthandler.register(signal.SIGTERM, file=writing, all_threads=False)

    def release(self) -> None:
        """Give the signal back its default action, unless the application has set a handler meanwhile."""
        if self._taken and _is_default():
            faulthandler.unregister(signal.SIGTERM)
        self._taken = False

    def _wait(self, reading: int) -> None:
        os.read(reading, 1)
        self.ending = True
        self.release()  # a second signal ends the process at once
        try:
            _give_up_all()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    # A forked child inherits the handler and the parent's pipe, so a signal to the child would end the parent. So the
    # signal stays blocked until the child has released the handler.

    def _block(self) -> None:
        self._mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask.before)

    def _reset_in_child(self) -> None:
        self.lock, self.ending = threading.Lock(), False
        self.release()
        self._unblock()


_sigterm = _Sigterm()


def _is_default() -> bool:
    """Whether the application leaves SIGTERM alone: it neither handles nor ignores it."""
    return signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def roll_back_at_exit(writer: StoppableWriter, *, on_sigterm: bool) -> None:
    """Have `writer` give up when the process ends, with `on_sigterm` also when SIGTERM ends it; keeps a weak reference.

    Every write calls this first, in any thread. A forked child leaves its parent's writers alone. After SIGTERM the
    call does not return, so that no write begins while the sink rolls back.
    """
    with _sigterm.lock:
        if _sigterm.ending:
            SystemClock().sleep(2 * EXIT_SECONDS)
        if _writers.get(writer) == os.getpid():
            return
        if not _writers:
            atexit.unregister(_at_exit)
            atexit.register(_at_exit)
        _writers[writer] = os.getpid()
        if on_sigterm:
            _sigterm.take()


def _at_exit() -> None:
    if _sigterm.ending:  # the thread in `_Sigterm._wait` rolls back, and then ends the process
        SystemClock().sleep(2 * EXIT_SECONDS)
    _give_up_all()
    _sigterm.release()


def _give_up_all() -> None:
    mine = [writer for writer, process in list(_writers.items()) if process == os.getpid()]
    run_with_timeout([partial(writer.give_up, EXIT_SECONDS) for writer in mine], EXIT_SECONDS)


def run_with_timeout(calls: Sequence[Callable[[], None]], seconds: float) -> None:
    """Run each of `calls` in a thread of its own, and wait at most `seconds`; leave calls that hang behind.

    If Python starts no threads any more, runs the calls one after the other. So each call needs a limit of its own.
    """
    limit = time.monotonic() + seconds
    threads = [(call, start_thread(call)) for call in calls]
    for call, thread in threads:
        if thread is None:
            call()
        else:
            thread.join(max(0.0, limit - time.monotonic()))


def start_thread(call: Callable[[], None]) -> threading.Thread | None:
    """Run `call` in a daemon thread; None if the interpreter is ending and starts no threads (Python 3.12)."""
    thread = threading.Thread(target=call, name="starrocks-give-up", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread
