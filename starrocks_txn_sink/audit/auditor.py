"""The auditor: takes samples, counts, keeps the first violation, emits events. A failed sample does not end it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from starrocks_txn_sink.audit.evidence import Evidence
from starrocks_txn_sink.audit.invariant import Audit
from starrocks_txn_sink.clock import Clock
from starrocks_txn_sink.errors import OptionError, QueryFailed, QueryRefused
from starrocks_txn_sink.events import Event, Listener, nobody
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sql_connection import Excerpt, SqlConnection

RunStatement = Callable[[str, int], Excerpt]
"""(statement, row limit) → the first rows and their total number; raises QueryFailed or QueryRefused."""

TORN = "torn"


class AuditConnection:
    """Runs statements over one connection; opens it when needed, and a new one after an error. Not thread-safe."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._connection: SqlConnection | None = None

    def __call__(self, sql: str, limit: int) -> Excerpt:
        if self._connection is None:
            self._connection = SqlConnection.connect_any(self._options)
        try:
            return self._connection.excerpt(sql, limit)
        except (QueryFailed, QueryRefused):
            self.close()
            raise

    def close(self) -> None:
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
    listener: Listener = nobody
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
            begun = self.clock.monotonic()
            self.take_sample()
            stop.wait(max(0.0, self.audit.interval - (self.clock.monotonic() - begun)))

    def _record_violation(self, asked_at: float, excerpt: Excerpt) -> None:
        self.violations += 1
        if self.first is None:
            self.first = Evidence.of(self.samples, asked_at, excerpt)
            self._save(self.first)
        fields = {"kind": TORN, "sample": self.samples, "rows": excerpt.total}
        self.listener(Event("integrity.violated", fields))

    def _save(self, evidence: Evidence) -> None:
        if self.audit.evidence_file is None:
            return
        try:
            evidence.save(self.audit.evidence_file)
        except OptionError as error:
            self.listener(Event("audit.failed", {"code": error.code}))
