"""The audit of an invariant while a sink writes: one SELECT, which returns a row for each violation."""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from starrocks_txn_sink.clock import Clock, SystemClock
from starrocks_txn_sink.errors import OptionError, QueryFailed, QueryRefused
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.sql.connection import Answer, SqlConnection
from starrocks_txn_sink.telemetry import Event, Listener, fan_out, ignore_event

_SELECT = re.compile(r"\s*(?:--[^\n]*\n\s*|/\*.*?\*/\s*)*\(*\s*(SELECT|WITH)\b", re.IGNORECASE | re.DOTALL)
MAX_EVIDENCE = 1000


@suggests_arguments
@dataclass(frozen=True, slots=True)
class Audit:
    """An invariant, and the seconds between two samples of it.

    Each row that the statement returns is a violation; no row means that the invariant holds. No event and no log has
    these rows.

    By default the audit reads like any client: StarRocks plans a SELECT without a lock, so that it may, rarely, read
    one table before a publish and another one after it.

    Args:
        sql: One SELECT.
        interval: Seconds between two samples.
        evidence_rows: The number of rows of the first violation that the auditor keeps, from 1 to 1000.
        lock_database: Whether the audit reads with a lock (`SET cbo_use_lock_db = true`), as readers do that must not
            see a publish in part.

    Raises:
        OptionError: The statement is no SELECT, or a number is out of range.

    Example::

        total = "SELECT (SELECT sum(cents) FROM a) + (SELECT sum(cents) FROM b) AS total"
        audit = Audit(f"SELECT * FROM ({total}) t WHERE total <> 100000", interval=5)
        sink = StarRocksSink(options, audit=audit)
    """

    sql: str
    interval: float = 1.0
    evidence_rows: int = 20
    lock_database: bool = False

    def __post_init__(self) -> None:
        if _SELECT.match(self.sql) is None:
            raise OptionError(
                "The statement of an audit does not begin with SELECT or WITH.",
                hint="Write one SELECT. An audit only reads.",
            )
        if not (math.isfinite(self.interval) and self.interval > 0):
            raise OptionError(f"The interval of an audit is {self.interval}.", hint="Set a number of seconds above 0.")
        if not 1 <= self.evidence_rows <= MAX_EVIDENCE:
            raise OptionError(f"evidence_rows is {self.evidence_rows}.", hint=f"Set a number from 1 to {MAX_EVIDENCE}.")

    def __repr__(self) -> str:
        """Omits the statement, which may contain values."""
        return f"Audit(interval={self.interval:g})"


_MAX_CELL = 200


@dataclass(frozen=True, slots=True, repr=False)
class Evidence:
    """The first rows of a violating sample, of `total`. `sample` counts from 1; `seen_at` is the query's UTC time."""

    sample: int
    seen_at: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]
    total: int

    @classmethod
    def of(cls, sample: int, wall: float, excerpt: Answer) -> Evidence:
        """The evidence of a sample at `wall` (seconds since the Unix epoch); longer cells are cut at _MAX_CELL."""
        rows = tuple(tuple(_cell_text(value) for value in row) for row in excerpt.rows)
        wall_time = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall))
        return cls(sample, wall_time, excerpt.columns, rows, excerpt.total)

    def __repr__(self) -> str:
        """Omits the rows, so that no log shows them by accident."""
        return f"Evidence(sample={self.sample}, seen_at={self.seen_at}, rows={self.total})"


def _cell_text(value: object) -> str | None:
    if value is None:
        return None
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= _MAX_CELL else text[:_MAX_CELL] + "…"


RunStatement = Callable[[str, int], Answer]
"""(statement, row limit) → the first rows and their total number; raises QueryFailed or QueryRefused."""


class AuditConnection:
    """Runs statements over one connection; opens it when needed, and a new one after an error. Not thread-safe.

    With `lock_database` the server plans its statements under the database's lock (wire contract 4.11).
    """

    def __init__(self, options: SinkOptions, *, lock_database: bool = False) -> None:
        self._options = options
        self._lock_database = lock_database
        self._connection: SqlConnection | None = None

    def __call__(self, sql: str, limit: int) -> Answer:
        try:
            if self._connection is None:
                self._connection = SqlConnection.connect_any(self._options)
                if self._lock_database:
                    self._connection.rows("SET cbo_use_lock_db = true")
            return self._connection.excerpt(sql, limit)
        except (QueryFailed, QueryRefused):
            self.close()
            raise

    def close(self) -> None:
        """Close the connection, if there is one; the next statement opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


@dataclass(slots=True)
class Auditor:
    """Takes samples one after the other; its counts may be read at any time.

    Emits `integrity.violated` (fields kind, sample, rows) for each sample with a violation, and `audit.failed` (field
    code) for each failed sample. No event has a row's value.
    """

    audit: Audit
    run_statement: RunStatement
    clock: Clock
    listener: Listener = ignore_event
    samples: int = 0
    violations: int = 0
    failures: int = 0
    first: Evidence | None = None
    last_error: QueryFailed | QueryRefused | None = field(default=None, repr=False)

    def take_sample(self) -> bool:
        """Take one sample; return whether the server answered."""
        asked_at = self.clock.wall()
        try:
            excerpt = self.run_statement(self.audit.sql, self.audit.evidence_rows)
        except (QueryFailed, QueryRefused) as error:
            self.failures += 1
            self.last_error = error
            self.listener(Event("audit.failed", {"code": error.code}))
            return False
        self.samples += 1
        if excerpt.rows:
            self._record_violation(asked_at, excerpt)
        return True

    def run(self, stop: threading.Event, over: Callable[[], bool] = lambda: False) -> None:
        """Take samples until `stop` is set or `over()`; they start `interval` seconds apart, later if one is slow."""
        while not stop.is_set() and not over():
            start = self.clock.monotonic()
            self.take_sample()
            stop.wait(max(0.0, self.audit.interval - (self.clock.monotonic() - start)))

    def _record_violation(self, asked_at: float, excerpt: Answer) -> None:
        self.violations += 1
        if self.first is None:
            self.first = Evidence.of(self.samples, asked_at, excerpt)
        self.listener(Event("integrity.violated", {"kind": "torn", "sample": self.samples, "rows": excerpt.total}))


_LINGER = 10.0


class AuditWatch:
    """Audits in a thread while the sink writes; `auditor` has the counts. Thread-safe; an unpickled copy is empty."""

    def __init__(self, audit: Audit, options: SinkOptions, listener: Listener, linger: float | None = None) -> None:
        if options.query_url is None:
            raise OptionError(
                "An audit requires query_url.",
                hint="Set query_url='mysql://<frontend>:9030'.",
                option="query_url",
            )
        self._made_of = audit, options, listener
        self._clock = SystemClock()
        self._linger = max(_LINGER, 2 * audit.interval) if linger is None else linger
        self._reader = AuditConnection(options, lock_database=audit.lock_database)
        self.auditor = Auditor(audit, self._reader, self._clock, fan_out((listener,)))
        self._guard = threading.Lock()
        self._writing = 0
        self._until = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._ending: threading.Thread | None = None  # stopped, in its last sample

    def __reduce__(self) -> tuple[Any, ...]:
        return AuditWatch, self._made_of

    @property
    def running(self) -> bool:
        """Whether the thread is taking samples."""
        return self._thread is not None and self._thread.is_alive()

    @contextlib.contextmanager
    def while_writing(self) -> Iterator[None]:
        """Take samples inside the `with` block and `linger` seconds after it."""
        with self._guard:
            self._writing += 1
            if not self.running:
                self._thread = threading.Thread(
                    target=self._run, args=(self._stop, self._ending), name="starrocks-audit", daemon=True
                )
                self._thread.start()
        try:
            yield
        finally:
            with self._guard:
                self._writing -= 1
                self._until = self._clock.monotonic() + self._linger

    def stop(self) -> None:
        """End the thread after its current sample, and wait for it. The next micro-batch starts another thread."""
        with self._guard:
            self._ending, self._thread = self._thread or self._ending, None
            ending, stop, self._stop = self._ending, self._stop, threading.Event()
        stop.set()
        if ending is not None:
            ending.join()
        with self._guard:
            if self._thread is None:
                self._reader.close()

    def _run(self, stop: threading.Event, predecessor: threading.Thread | None) -> None:
        if predecessor is not None:
            predecessor.join()  # the connection serves one thread at a time
        self.auditor.run(stop, self._is_over)

    def _is_over(self) -> bool:
        """Whether the linger time has passed; if so, drop the thread and its connection."""
        with self._guard:  # the decision and the drop are one step, or a micro-batch could rely on an ending thread
            if self._writing or self._clock.monotonic() < self._until:
                return False
            if self._thread is threading.current_thread():
                self._thread = None
            self._reader.close()
            return True
