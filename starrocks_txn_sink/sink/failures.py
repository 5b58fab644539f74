"""Failures of micro-batches: the driver waits during an outage, and turns any other failure into one typed error.

Spark gives the driver of a failed query a text: the lane's traceback several times, the JVM's frames, a query plan.
The lane's code, message and advice come in a report, which the lane's error carries in its text (`writer.messages`).
So the driver raises the lane's own error again, and Spark gets nothing else. The driver reads the rest of the text
only if there is no report: for a row that the JVM refuses, and for a stage. `FAILURES` keeps the last failure of each
query in this process, and `run_forever` decides by that failure.

People get one block of lines on standard error. It comes after Spark's own lines, so that people read it last: when
`run_forever` takes the failure, or else _DELAY seconds after the failure, or at the end of the process.

**Outages.** During an outage of StarRocks the driver waits and writes the micro-batch again, until `batch_deadline`. A
lane repeats a StarRocks transaction from memory, `max_attempts` times within seconds, and then fails its task. But
leader elections, rolling upgrades and full backends take minutes. So the driver opens a new session and runs the lanes
again, as a restart of the query would: the take-over and the ledger keep repeated rows out.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import random
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib import metadata
from typing import Any, Final, TypeVar

from starrocks_txn_sink import errors
from starrocks_txn_sink.clock import Clock, Deadline, SystemClock
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.protocol.label import Backoff
from starrocks_txn_sink.rows.columns import KEYLESS_ADVICE, NO_PRIMARY_KEY, REFUSED
from starrocks_txn_sink.spark_version import active_context
from starrocks_txn_sink.telemetry import Event, LatestValues, Listener
from starrocks_txn_sink.writer.messages import LaneReport, attached_report, read_envelope

_DELAY: Final = 2.0  # seconds: Spark logs a failed query within one second
_LONGEST: Final = 600  # characters of a line of the block
_QUERIES: Final = 100  # queries whose last failure is kept
_TASKS: Final = 10_000  # tries of a stage that are searched for the reason of a failed one
_PAGES: Final = "docs/operations/errors"
RUNBOOK_VARIABLE: Final = "STARROCKS_TXN_SINK_RUNBOOK"
"""The environment variable with the address of another copy of the runbook."""
SPARK: Final = "spark"
"""Code of errors from outside the sink: Spark's own, a user's function, a stop."""

_RAISED: Final = re.compile(r"starrocks_txn_sink\.[\w.]*?\.?(\w+): (.+)")
_PLACED: Final = re.compile(r"(.+ \[\w+=.*\]) (.+)")  # a message with its context, and the advice after it
_REFUSED_ROW: Final = re.compile(re.escape(REFUSED) + r"([^\n]+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_LOST_TASK: Final = re.compile(r"most recent failure: Lost task [^\n]*? executor [^\s)]+\): ([^\n]+)")
_PY4J: Final = re.compile(r"^An error occurred while calling \S+\.\n: ")
_INTERRUPTED: Final = (
    *("InterruptedException", "InterruptedIOException", "ClosedByInterruptException"),
    *("cancelled as part of cancellation", "cancelled part of cancelled job group", "was cancelled"),
)
_SPARK_ADVICE: Final = (
    "The cause is outside the sink: read it in the query's exception or the executors' logs, and correct it there."
)
_NO_BROKER: Final = "No Kafka broker answers: check kafka.bootstrap.servers, and that a broker listens there."
_NO_MODULE: Final = "ModuleNotFoundError: No module named"
_KNOWN: Final = {
    "UnknownTopicOrPartition": "Kafka has no topic of that name: correct its name, or create the topic.",
    "Failed to create new KafkaAdminClient": _NO_BROKER,
    "No resolvable bootstrap urls": _NO_BROKER,
    "Timed out waiting for a node assignment": _NO_BROKER,
    _NO_MODULE: (
        "The Python of Spark's tasks lacks that package: set PYSPARK_PYTHON to a Python with the sink, on the driver"
        " and on each executor."
    ),
}
"""Advice for the most frequent failures of a first start, by a part of the exception's text."""


class FailureKind(Enum):
    """Whether a restart may help; UNKNOWN for errors from outside the sink."""

    TRANSIENT = "transient"
    TERMINAL = "terminal"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure as people read it. `place` has job, micro-batch, label, table and the like."""

    code: str
    message: str
    advice: str
    kind: FailureKind
    place: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, error: BaseException, *, settles_doubts: bool = False, **place: Any) -> Failure:
        """The failure that `error` describes. `settles_doubts`: a restart finds the outcome of an unknown commit."""
        if not isinstance(error, StarRocksSinkError):
            text = text_of(error)
            advice = next((advice for part, advice in _KNOWN.items() if part in text), _SPARK_ADVICE)
            # The Python of Spark's tasks is that of the process: a restart of the query meets the same one.
            kind = FailureKind.TERMINAL if _NO_MODULE in text else FailureKind.UNKNOWN
            return cls(SPARK, cause_line(text), advice, kind, place)
        kind = FailureKind.TERMINAL if isinstance(error, errors.Terminal) else FailureKind.UNKNOWN
        if error.retryable or (settles_doubts and isinstance(error, errors.OutcomeUnknown)):
            kind = FailureKind.TRANSIENT
        return cls(error.code, error.message, error.advice, kind, {**place, **error.context})

    def block(self, following: str = "") -> str:
        """The lines for people: cause, remedy, place, link, and the `following` step; with a line end."""
        names = {"batch_id": "micro-batch"}
        place = ", ".join(f"{names.get(name, name)} {value}" for name, value in self.place.items() if value != "")
        link = f"{error_link(self.code)} ({self.kind.value})"
        lines = {"Remedy": self.advice, "Place": place, "More": link, "Next": following}
        block_lines = [f"  {name + ':':<8}{_one_line(text)}" for name, text in lines.items() if text]
        return "\n".join([f"starrocks-txn-sink: {_one_line(self.message)}", *block_lines]) + "\n"


def _one_line(text: str) -> str:
    line = errors.printable(" ".join(text.split()))
    return line if len(line) <= _LONGEST else line[:_LONGEST] + "…"


def error_link(code: str) -> str:
    """A link to the page of a code: in RUNBOOK_VARIABLE's copy, else in the project's repository, else its path."""
    if base := os.environ.get(RUNBOOK_VARIABLE):
        return f"{base}#error-{code}"
    with contextlib.suppress(metadata.PackageNotFoundError):
        for entry in metadata.metadata("starrocks-txn-sink").get_all("Project-URL") or ():
            name, _, address = entry.partition(", ")
            if name == "Repository":
                return f"{address}/blob/main/{_PAGES}/{code}.md"
    return f"{_PAGES}/{code}.md"


# --- from errors and texts ---


def error_in_text(text: str) -> StarRocksSinkError | None:
    """The sink's error in the text of Spark's exception, for a driver that has only the text; None without one."""
    report = read_envelope(text)
    if report is not None and (lane_error := report.lane_error()) is not None:
        return lane_error
    for name, message in _RAISED.findall(text):
        kind = next((kind for kind in errors.error_classes() if kind.__name__ == name), None)
        if kind is not None:
            placed = _PLACED.fullmatch(message)
            return kind(placed[1], hint=placed[2]) if placed else kind(message)
    return None


def refused_row(text: str) -> errors.InputError | None:
    """The sink's refusal of a row in the JVM, found in the text of Spark's exception."""
    match = _REFUSED_ROW.search(text)
    if match is None:
        return None
    return errors.InputError(match[1], hint=KEYLESS_ADVICE if NO_PRIMARY_KEY[1] in match[1] else None)


def own_error(error: BaseException, report: LaneReport | None) -> StarRocksSinkError | None:
    """The sink's error behind `error`: itself, a lane's, a stage's, or the JVM's refusal of a row; None for others."""
    if isinstance(error, StarRocksSinkError):
        return error
    text = text_of(error)
    return report.lane_error() if report is not None else refused_row(text) or error_in_text(text)


def lane_report(error: BaseException) -> LaneReport | None:
    """The report of the lane that failed with `error`: attached to `error`, or else in Spark's text."""
    return attached_report(error) or read_envelope(text_of(error))


def text_of(error: BaseException) -> str:
    """The text of an error with its notes; empty for a JVM error whose JVM has ended."""
    with contextlib.suppress(Exception):  # a JVM error fetches its text from the JVM
        return "\n".join([str(error), *errors.notes_of(error)])
    return ""


def cause_line(text: str) -> str:
    """The line of an exception's text that names the cause.

    The last one of a Python traceback; else the end of the last lost task; else the first line, without py4j's own.
    """
    _, head, traced = text.rpartition("Traceback (most recent call last):")
    if not head and (lost_task := _LOST_TASK.search(text)):
        return lost_task[1].strip()
    text = _PY4J.sub("", text, count=1)
    lines = [line for line in (traced if head else text).splitlines() if line.strip()]
    if head:
        lines = [line for line in lines if not line.startswith((" ", "\t"))]
    return lines[0].strip() if lines else "The query failed, and Spark gave no reason."


def is_interruption(text: str) -> bool:
    """Whether Spark ended the micro-batch because the query was stopped."""
    return any(word in text for word in _INTERRUPTED)


_REASON_SECONDS: Final = 2.0  # Spark's listeners learn of a task's end a little later than the driver


def reason_of_task(stage: int, task: int, clock: Clock) -> str:
    """Spark's reason why the first try at a task of a stage ended early, as one line; empty where it is unknown."""
    context, late = active_context(), Deadline.after(_REASON_SECONDS, clock)
    while context is not None:
        with contextlib.suppress(Exception):  # the JVM has ended, or has another interface
            store = context._jsc.sc().statusStore()
            tries = store.taskList(stage, store.lastStageAttempt(stage).attemptId(), _TASKS).iterator()
            while tries.hasNext():
                task_try = tries.next()
                if task_try.index() == task and task_try.errorMessage().isDefined():
                    return cause_line(str(task_try.errorMessage().get()))
        if late.expired():
            break
        clock.sleep(0.1)
    return ""


# --- the last failures of this process ---


class FailureBoard:
    """The last failure of each streaming query, and the blocks that are not printed yet. Thread-safe."""

    def __init__(self, delay: float = _DELAY) -> None:
        self._delay = delay
        self._guard = threading.Lock()
        self.last: LatestValues[str, Failure] = LatestValues(_QUERIES)  # by query
        self._waiting: dict[str, Failure] = {}
        self._reserved: set[str] = set()

    def post(self, query: str, failure: Failure) -> None:
        """Keep the failure of a micro-batch of `query`, and print its block soon."""
        with self._guard:
            self.last[query] = self._waiting[query] = failure
        atexit.unregister(self.print_waiting)
        atexit.register(self.print_waiting)
        timer = threading.Timer(self._delay, self._print_late, (query, failure))
        timer.daemon = True
        with contextlib.suppress(RuntimeError):  # the interpreter is ending: atexit prints
            timer.start()

    def forget(self, query: str) -> None:
        """A micro-batch of `query` has succeeded."""
        with self._guard:
            self.last.pop(query, None)

    def take(self, query: str) -> Failure | None:
        """Return the last failure of `query` (None without one), and leave the printing to the caller."""
        with self._guard:
            self._waiting.pop(query, None)
            return self.last.pop(query, None)

    @contextlib.contextmanager
    def reserve(self, query: str) -> Iterator[None]:
        """Keep the timer from printing failures of `query`, because the caller takes them."""
        with self._guard:
            self._reserved.add(query)
        try:
            yield
        finally:
            with self._guard:
                self._reserved.discard(query)

    def _print_late(self, query: str, failure: Failure) -> None:
        with self._guard:
            if query in self._reserved or self._waiting.get(query) is not failure:
                return
            del self._waiting[query]
        print_block(failure)

    def print_waiting(self) -> None:
        """Print the blocks that are still waiting, at the end of the process."""
        with self._guard:
            waiting, self._waiting = self._waiting, {}
        for failure in waiting.values():
            print_block(failure)


def print_block(failure: Failure, following: str = "") -> None:
    """Print the block of `failure` to standard error; never raises."""
    with contextlib.suppress(Exception):  # the stream may be closed
        sys.stderr.write(f"\n{failure.block(following)}")
        sys.stderr.flush()


FAILURES: Final = FailureBoard()


# --- outages ---

Result = TypeVar("Result")

LOG_SECONDS: Final = 30.0
_BACKOFF: Final = Backoff(first=0.5, longest=10.0)
_SLICE: Final = 1.0  # seconds of sleep at a time, so that a stop of the query does not wait for the backoff


def outage_of(error: BaseException) -> tuple[str, LaneReport | None] | None:
    """The code of an outage, and the report of the failed lane if there is one; None if `error` is no outage.

    Spark gives the driver only the text of a lane's error, so the code of such an error comes from the report.
    """
    report = lane_report(error)
    code = error.code if isinstance(error, StarRocksSinkError) else report.code if report is not None else ""
    return (code, report) if issubclass(errors.class_of(code), errors.Outage) else None


_AFTER_BEGIN: Final = (errors.TooManyTransactions, errors.LoadFailed, errors.CommitFailed, errors.TransactionTimedOut)


def names_backends(error: BaseException) -> bool:
    """Whether a frontend of query_url has answered that no backend is alive: nothing is wrong with that address."""
    return isinstance(error, errors.NoBackend)


def has_begun(error: BaseException) -> bool:
    """Whether `error` is an outage after StarRocks had answered the job, so that the addresses are right."""
    outage = outage_of(error)
    if outage is None:
        return False
    code, report = outage
    requests = report.cost.requests if report is not None else {}
    operations = {operation for operation, statuses in requests.items() if "OK" in statuses}
    if code == errors.NotSent.code:  # without a connection only a load proves that the backends' addresses are right
        return "load" in operations
    # `failed_at` is set by a lane, which runs only after the driver has begun the label, or fails to begin it itself.
    kind = errors.class_of(code)
    is_begun = report is not None and report.failed_at > 0 and not issubclass(kind, errors.BeginFailed)
    return bool(operations) or is_begun or issubclass(kind, _AFTER_BEGIN)


def wait_out(
    failed: Exception,
    write: Callable[[], Result],
    place: Mapping[str, Any],
    expired: Callable[[], bool],
    emit: Listener,
    stopped: Callable[[], bool],
    clock: Clock | None = None,
    served: Callable[[], bool] = lambda: True,
) -> Result:
    """Call `write` again until it succeeds; `failed` is the error of the first call.

    Raises the last error if it is no outage, once the time has `expired`, and once the query is `stopped`. Before
    StarRocks has `served` the job only missing backends are waited for: another outage is probably a wrong address.

    Emits `outage.met` for each failed try, `outage.waiting` for the first one and then about every LOG_SECONDS, in its
    place `job.held` where a command holds the job, and `outage.ended`: all with `place` and the `seconds` since the
    first failure, but for the last one also with the `code`.
    """
    clock = clock or SystemClock()
    rng = random.Random()
    began, next_line, was_held = clock.monotonic(), 0.0, False
    for tries in itertools.count():
        outage = outage_of(failed)
        if outage is None or not (served() or names_backends(failed)) or expired() or stopped():
            raise failed
        code, report = outage
        fields = {**place, "code": code, "seconds": clock.monotonic() - began}
        emit(Event("outage.met", {**fields, "report": report}))
        held = code == errors.JobHeld.code
        if fields["seconds"] >= next_line or held is not was_held:
            emit(Event("job.held" if held else "outage.waiting", fields))
            next_line, was_held = fields["seconds"] + LOG_SECONDS, held
        pause = Deadline.after(_BACKOFF.seconds(tries, rng), clock)
        while not pause.expired():
            clock.sleep(min(_SLICE, pause.remaining()))
            if stopped():
                raise failed
        try:
            result = write()
        except Exception as error:
            failed = error
        else:
            emit(Event("outage.ended", {**place, "seconds": clock.monotonic() - began}))
            return result
    raise AssertionError("count() has no end")
