"""Warnings of source transactions that stay open.

A source transaction without its END is not a failure, but the sink writes none of its rows. So a warning must say so.
The counts come from the lanes that assemble (`sink.events_writer`), or from a stage through Spark's progress. A thread
reads the counts, because no further micro-batch may come.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from starrocks_txn_sink.assembler.keyed_state import PLANNED
from starrocks_txn_sink.clock import Clock, SystemClock
from starrocks_txn_sink.metrics.jobs import AssemblerLevels, query_of
from starrocks_txn_sink.metrics.spark_progress import ProgressWatch
from starrocks_txn_sink.sink.spark_jobs import context_of, is_running
from starrocks_txn_sink.sink.termination import start_thread
from starrocks_txn_sink.telemetry import Event, Listener

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
            transactions = self._levels.open_transactions()
        oldest = next(
            (transaction for transaction in transactions if is_running(self.session, query_of(transaction["stage"]))),
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
        if not PLANNED.is_set() or context_of(frame) is None:
            return
        with self._guard, contextlib.suppress(Exception):  # watching never breaks a commit
            self._watches.add(watch)
            session = SparkSession.builder.getOrCreate()
            if self._session is not session:
                self._session = session
                ProgressWatch(session, self)


STAGES: Final = _StageCounts()
