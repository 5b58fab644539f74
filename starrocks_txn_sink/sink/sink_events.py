"""The events of one sink: sessions, micro-batches, receipts, and source transactions that stay open.

`SinkEvents` sends them to log, listener and metrics endpoint. The sink knows an endpoint only by the protocol
`Endpoint`; `metrics` is imported when an endpoint is asked for. Events never break a commit: a listener that raises is
skipped.

A source transaction whose END does not come is no failure, and nothing is written: so a warning must say so. The counts
come from the lanes that assemble (`sink.events_writer`), or through Spark's progress from a stage. A timer looks at
them, because no further micro-batch may come.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any, Final, Protocol

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import is_remote

from starrocks_txn_sink import __version__
from starrocks_txn_sink.assembler.keyed_state import PLANNED
from starrocks_txn_sink.clock import Clock, SystemClock
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.metrics.jobs import AssemblerLevels
from starrocks_txn_sink.metrics.spark_progress import ProgressWatch
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sink.failures import FAILURES, SPARK, Failure, is_interruption, refused_row, text_of
from starrocks_txn_sink.sink.lifecycle import context_of, end_progress_bar, is_stopped
from starrocks_txn_sink.telemetry import Event, EventLogger, Listener, fan_out, get_logger, shares_stderr
from starrocks_txn_sink.writer.messages import LaneReport, read_envelope

_log = get_logger("metrics")
_log_sink = get_logger("sink")
_LINES = EventLogger("sink")

OPEN_SECONDS: Final = 60.0
_LONGEST: Final = 3600.0  # seconds between two warnings
_LOOK_SECONDS: Final = 5.0
_ADVICE: Final = (
    "Its END has not come, so none of its rows is written: did the source stop, is the END filtered out, or do several "
    "producers write the partition (interleaved=True)?"
)


class OpenTransactionWatch:
    """A listener that warns about the oldest open source transaction after OPEN_SECONDS, then ever more rarely.

    Emits `transaction.open`. Thread-safe; pickled empty.
    """

    def __init__(self, emit: Listener, clock: Clock | None = None) -> None:
        self._emit, self._clock = emit, clock or SystemClock()
        self._guard = threading.Lock()
        self._levels = AssemblerLevels()
        self._said: dict[tuple[str, float], float] = {}  # by stage and opening: when to warn next
        self._timer: threading.Timer | None = None

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
        """Warn if it is time; whether a source transaction is open."""
        now = self._clock.wall()
        with self._guard:
            found = self._levels.open_transactions()
            if not found:
                self._said.clear()
                return False
            oldest = found[0]
            age, key = now - oldest["since"], (oldest["stage"], oldest["since"])
            due = age >= self._said.get(key, OPEN_SECONDS)
            if due:
                self._said = {key: min(2 * age, age + _LONGEST)}
        if due:
            fields = {name: oldest[name] for name in ("stage", "place", "open", "rows")}
            self._emit(Event("transaction.open", {**fields, "seconds": age, "advice": _ADVICE}))
        return True

    def _look_later(self) -> None:
        with self._guard:
            if self._timer is not None and self._timer.is_alive():
                return
            self._timer = threading.Timer(_LOOK_SECONDS, self._tick)
            self._timer.daemon = True
            with contextlib.suppress(RuntimeError):  # the interpreter is ending
                self._timer.start()

    def _tick(self) -> None:
        still = self.look()
        self._timer = None
        if still:
            self._look_later()


class _StageCounts:
    """Passes the counts of stages to all watches of this process; Spark calls one listener, not one for each sink."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._watches = weakref.WeakSet[OpenTransactionWatch]()
        self._session: Any = None

    def __call__(self, event: Event) -> None:
        for watch in list(self._watches):
            watch(event)

    def follow(self, watch: OpenTransactionWatch, frame: DataFrame) -> None:
        """Have `watch` get the counts of the stages in this process, if there are any and Spark reports them."""
        if not PLANNED.is_set() or getattr(frame.sparkSession, "_sc", None) is None:
            return
        with self._guard, contextlib.suppress(Exception):  # watching never breaks a commit
            self._watches.add(watch)
            session = SparkSession.builder.getOrCreate()
            if self._session is not session:
                self._session = session
                ProgressWatch(session, self)


STAGES: Final = _StageCounts()


class Endpoint(Protocol):
    """A metrics endpoint such as `metrics.MetricsServer`."""

    def __call__(self, event: Event) -> None: ...

    def start(self) -> object: ...

    def watch(self, session: Any) -> None: ...


class SinkEvents:
    """Emits the events of one sink: sessions, micro-batches, receipts. `emit` also takes events of other modules.

    Pickled with its listeners: Spark Connect moves the sink into a process of the server's, where it emits `sink.made`
    again.
    """

    def __init__(self, options: SinkOptions, listener: Listener, endpoint: Endpoint | None) -> None:
        self.endpoint = endpoint if endpoint is not None else _shared_endpoint(options)
        self._open = OpenTransactionWatch(_LINES)
        targets = (_LINES, self._open, listener)
        self.emit = fan_out(targets if self.endpoint is None else (*targets, self.endpoint))
        versions = {"version": __version__, "spark": pyspark.__version__}
        limits = {"buffer_bytes": options.buffer_bytes, "timeout": options.timeout}
        self._made = Event("sink.made", {**limits, **versions})
        self._database = options.database
        self._settles_doubts = options.exactly_once  # the take-over of a restart finds the outcome of a commit
        if self.endpoint is not None and not is_remote():  # with Spark Connect the sink works in another process
            self.endpoint.start()
        self.emit(self._made)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.emit(self._made)

    @contextlib.contextmanager
    def follow_batch(
        self, frame: DataFrame, job: str, batch_id: int, lanes: int, query: str
    ) -> Iterator[list[Receipt]]:
        """Emit the events of the micro-batch that is written inside; the list takes its receipts.

        `receipt.collected` comes before `batch.completed`; an error that leaves the block emits `batch.failed`. A
        lane's error leaves it as the lane raised it, not as Spark's text. Spark's own errors stay untouched.
        """
        started, receipts = time.monotonic(), list[Receipt]()
        if shares_stderr():
            end_progress_bar(frame)
        self._start_endpoint(frame, query)
        place = {"job": job, "batch_id": batch_id}
        self.emit(Event("batch.started", {**place, "lanes": lanes, "query": query, "database": self._database}))
        try:
            yield receipts
        except BaseException as error:
            report = read_envelope(text_of(error))
            ours = _own_error(error, report)
            code = ours.code if ours is not None else (report.error if report else "") or SPARK
            seconds = time.monotonic() - started
            _log_sink.debug("batch.traceback", **place, exc_info=error)
            self.emit(Event("batch.failed", {**place, "seconds": seconds, "code": code, "report": report}))
            if query and isinstance(error, Exception) and not _ends_with_query(frame, error):
                FAILURES.post(query, Failure.of(ours or error, settles_doubts=self._settles_doubts, **place))
            if ours is None or type(ours) is StarRocksSinkError:  # the latter is a bug, so its traceback counts
                raise
            raise ours.with_traceback(None) from None  # what Spark prints of it, Spark prints several times
        FAILURES.forget(query)
        if query:
            STAGES.follow(self._open, frame)
        for receipt in receipts:
            self.emit(Event("receipt.collected", {"receipt": receipt}))
        seconds = time.monotonic() - started
        done = {"receipts": len(receipts), "rows": sum(one.rows for one in receipts)}
        done["source_transactions"] = sum(one.source_transactions for one in receipts)
        self.emit(Event("batch.completed", {**place, "seconds": seconds, **done}))

    def _start_endpoint(self, frame: DataFrame, query: str) -> None:
        if self.endpoint is None:
            return
        try:
            self.endpoint.start()
            if query and context_of(frame) is not None:
                # The frame's own session is a copy for the query; Spark reports progress to the original one.
                self.endpoint.watch(SparkSession.builder.getOrCreate())
        except Exception as error:  # broken metrics must not stop a job
            _log.warning("metrics.broken", why=str(error))


def _own_error(error: BaseException, report: LaneReport | None) -> StarRocksSinkError | None:
    """The sink's error behind `error`: itself, that of a lane, or the refusal of a row in the JVM."""
    if isinstance(error, StarRocksSinkError):
        return error
    return report.lane_error() if report is not None else refused_row(text_of(error))


def _ends_with_query(frame: DataFrame, error: Exception) -> bool:
    """Whether a micro-batch failed only because its query is being stopped."""
    return is_stopped(frame) or (not isinstance(error, StarRocksSinkError) and is_interruption(text_of(error)))


def _shared_endpoint(options: SinkOptions) -> Endpoint | None:
    if options.metrics_port is None:
        return None
    from starrocks_txn_sink.metrics.server import shared_server

    return shared_server(options.metrics_port, options.metrics_host)
