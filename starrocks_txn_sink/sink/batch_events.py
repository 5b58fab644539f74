"""The events of a sink, for log, listener and metrics endpoint: micro-batches, receipts, dead letters.

The sink knows an endpoint only by the protocol `Endpoint`, and imports `metrics` only if the user wants an endpoint.
Events never break a commit: `emit` skips a listener that raises.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from starrocks_txn_sink import __version__
from starrocks_txn_sink.clock import Clock, Deadline, SystemClock
from starrocks_txn_sink.coordinator.model import PositionSpan, Receipt, name_spans
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.metrics.jobs import AssemblerLevels, query_of
from starrocks_txn_sink.metrics.spark_progress import ProgressWatch
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sink.failures import FAILURES, SPARK, Failure, is_interruption, lane_report, own_error, text_of
from starrocks_txn_sink.sink.spark_jobs import context_of, end_progress_bar, is_running, is_stopped
from starrocks_txn_sink.sink.termination import start_thread
from starrocks_txn_sink.sources.query_stages import PLANNED
from starrocks_txn_sink.telemetry import DRIVER_STEPS, Event, EventLogger, Listener, fan_out, get_logger, shares_stderr
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


class BatchTries:
    """The tries at one micro-batch: its receipts, and the deadline, which each receipt renews.

    A receipt is an event at once: the micro-batch may still fail, its rows stay. `tokens` are the owner's tokens that
    the tries have held or written.
    """

    def __init__(self, emit: Listener, seconds: float) -> None:
        self._emit, self._seconds = emit, seconds
        self.receipts, self.tokens = list[Receipt](), set[str]()
        self.renew()

    def renew(self) -> None:
        """Give the micro-batch its whole time again."""
        self.deadline = Deadline.after(self._seconds, SystemClock())

    def collect(self, receipts: Sequence[Receipt]) -> None:
        """Take the receipts of a try, and emit their events. Any receipt renews the deadline."""
        self.receipts += receipts
        for event in receipt_events(receipts):
            self._emit(event)
        if receipts:
            self.renew()

    def expired(self) -> bool:
        """Whether the whole time has passed without a receipt."""
        return self.deadline.expired()


# --- source transactions that stay open ---

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

    def __init__(
        self,
        emit: Listener,
        clock: Clock | None = None,
        *,
        start: Callable[[Callable[[], None]], threading.Thread | None] = start_thread,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._emit, self._clock = emit, clock or SystemClock()
        self._start, self._look_seconds = start, look_seconds
        self._guard = threading.Lock()
        self._levels = AssemblerLevels()
        self._next_age: dict[tuple[str, float], float] = {}  # (stage, opening) → age in seconds at the next warning
        self._looking: threading.Thread | None = None
        self._spark: SparkSession | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenTransactionWatch, (self._emit,)

    def follow(self, spark: SparkSession | None) -> None:
        """Look from now on at the queries of the session of the newest micro-batch."""
        self._spark = spark

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
            transactions = self._levels.open_transactions()
        oldest = next(
            (transaction for transaction in transactions if is_running(self._spark, query_of(transaction["stage"]))),
            None,
        )
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
                self._looking = self._start(self._keep_looking)

    def _keep_looking(self) -> None:
        SystemClock().sleep(self._look_seconds)
        while self.look():
            SystemClock().sleep(self._look_seconds)


class _StageCounts:
    """Passes the counts of stages to all watches of this process: one listener of Spark's serves all sinks."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._watches = weakref.WeakSet[OpenTransactionWatch]()
        self._session: Any = None

    def __call__(self, event: Event) -> None:
        for watch in list(self._watches):
            watch(event)

    def follow(self, watch: OpenTransactionWatch, spark: SparkSession | None) -> None:
        """Pass counts to `watch` from now on, if this process has planned a stage and Spark reports progress."""
        if not PLANNED.is_set() or context_of(spark) is None:
            return
        with self._guard, contextlib.suppress(Exception):  # watching never breaks a commit
            self._watches.add(watch)
            session = SparkSession.builder.getOrCreate()
            if self._session is not session:
                self._session = session
                ProgressWatch(session, self)


STAGES: Final = _StageCounts()


# --- the events of a micro-batch ---


class Endpoint(Protocol):
    """A metrics endpoint such as `metrics.MetricsServer`."""

    def __call__(self, event: Event) -> None: ...

    @property
    def url(self) -> str:
        """The address of its page, '' before it listens."""

    def start(self) -> object:
        """Listen, if it does not yet; OptionError for a port that is taken."""

    def watch(self, session: Any) -> None:
        """Follow Spark's progress of the session's queries; no effect while it follows another session."""


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
    def follow_batch(self, spark: SparkSession | None, origin: BatchOrigin) -> Iterator[BatchTries]:
        """Emit the events of the micro-batch that the block writes; the block collects its receipts.

        `batch.completed` comes last, with counts of all receipts. An error that leaves the block emits
        `batch.failed`, or `batch.stopped` if Spark interrupted the micro-batch to stop the query. A lane's or a stage's
        own error replaces Spark's text about it. Spark's own errors pass unchanged.
        """
        started, tries = time.monotonic(), BatchTries(self.emit, self._options.batch_deadline)
        query = origin.checkpoint if origin.streaming else ""
        if shares_stderr():
            end_progress_bar(spark)
        self._start_endpoint(spark, query)
        place = {"job": origin.job, "batch_id": origin.batch_id}
        start_fields = {**place, "query": query, "database": self._options.database}
        self.emit(Event("batch.started", start_fields))
        try:
            yield tries
        except BaseException as error:
            _log_sink.debug("batch.traceback", **place, exc_info=error)
            failure = self._report_failure(spark, error, query, place, time.monotonic() - started)
            if failure is None or type(failure) is StarRocksSinkError:  # the latter is a bug, so its traceback counts
                raise
            raise failure.with_traceback(None) from None  # Spark would print a traceback several times
        if FAILURES.last:  # a user's function may have caught the failure of an earlier try
            FAILURES.forget(query)
        if query:
            self._open.follow(spark)
            STAGES.follow(self._open, spark)
        count_names = ("rows", "source_transactions", "dead_lettered_rows", "dead_lettered_transactions")
        counts = {name: sum(getattr(receipt, name) for receipt in tries.receipts) for name in count_names}
        counts = {"seconds": time.monotonic() - started, "receipts": len(tries.receipts), **counts}
        self.emit(Event("batch.completed", {**place, **counts}))

    @contextlib.contextmanager
    def follow_steps(self, job: str) -> Iterator[None]:
        """Tell the endpoint which step the driver of `job` is in, so that a long one has a name."""
        endpoint = self.endpoint

        def take(event: Event) -> None:
            if endpoint is not None and event.name.startswith("step."):
                endpoint(Event(event.name, {**event.fields, "job": job}))

        token = DRIVER_STEPS.set(fan_out((DRIVER_STEPS.get(), take)))
        try:
            yield
        finally:
            DRIVER_STEPS.reset(token)

    def _report_failure(
        self, spark: SparkSession | None, error: BaseException, query: str, place: dict[str, Any], seconds: float
    ) -> StarRocksSinkError | None:
        """Emit the failure of a micro-batch and post it for people; returns the sink's error behind `error`, if any."""
        report = lane_report(error)
        failure = own_error(error, report)
        stopped = bool(query) and isinstance(error, Exception) and _ends_with_query(spark, error)
        if stopped and failure is None:
            self.emit(Event("batch.stopped", {**place, "seconds": seconds}))
            return None
        code = failure.code if failure is not None else (report.code if report else "") or SPARK
        self.emit(Event("batch.failed", {**place, "seconds": seconds, "code": code, "report": report}))
        if query and isinstance(error, Exception) and not stopped:
            # With a ledger the take-over of a restart finds the outcome of a commit.
            FAILURES.post(query, Failure.of(failure or error, settles_doubts=self._options.exactly_once, **place))
        write_envelope(error)  # Spark Connect's client is another process
        return failure

    def _start_endpoint(self, spark: SparkSession | None, query: str) -> None:
        if self.endpoint is None:
            return
        try:
            self.endpoint.start()
            if query and context_of(spark) is not None:
                # `spark` is a copy, made for the query; Spark reports progress to the original.
                self.endpoint.watch(SparkSession.builder.getOrCreate())
        except Exception as error:  # broken metrics must not stop a job
            _log.warning("metrics.broken", why=str(error))


def _ends_with_query(spark: SparkSession | None, error: Exception) -> bool:
    """Whether a micro-batch failed only because Spark is stopping its query."""
    return is_stopped(spark) or (not isinstance(error, StarRocksSinkError) and is_interruption(text_of(error)))


def _shared_endpoint(options: SinkOptions) -> Endpoint | None:
    if options.metrics_port is None:
        return None
    from starrocks_txn_sink.metrics.server import shared_server

    return shared_server(options.metrics_port, options.metrics_host)
