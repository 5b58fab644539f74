"""Pauses behind micro-batches, so that `freshness` costs the fewest commits (`coordinator.pace`).

Spark starts a micro-batch as soon as the one before returns, so the pause comes behind the commit, before the return:
nothing is open at the server then, and all rows of the micro-batch are visible. A stop of the query ends the pause at
once, and Spark notes the micro-batch as written. Where Spark Connect hides the query a stop waits for the pause's end.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from pyspark.sql import SparkSession

from starrocks_txn_sink.clock import Clock, SystemClock
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.coordinator.pace import LATE, WINDOW, Pace, Reason, Step, Strain
from starrocks_txn_sink.options.sink_options import is_own_table
from starrocks_txn_sink.sink.batch_events import BatchOrigin
from starrocks_txn_sink.sink.spark_jobs import batch_time, driver_clock
from starrocks_txn_sink.sources.kafka.spark_reader import ReadToEnd, counts_pauses
from starrocks_txn_sink.sql.server_limits import TabletRoom, TransactionRoom
from starrocks_txn_sink.telemetry import Event, LatestValues, Listener

_RUNS: Final = 100
_PUBLISHED: Final = 16  # publications whose median counts
_KNOWN_SECONDS: Final = 300.0  # an older answer of the server says nothing
_FIRST: Final = WINDOW // 4  # micro-batches before the share of late rows means something
WHY: Final = {
    Reason.GOAL: "Single micro-batches took longer than most.",
    Reason.BACKLOG: "The source has more rows than a micro-batch takes: raise maxOffsetsPerTrigger, or add cores.",
    Reason.SLOW: "A micro-batch takes longer: add cores, or allow more time in freshness.",
    Reason.ROWSETS: "Tablets have more than half of the rowsets that StarRocks takes, so the sink commits less often: "
    "see why compaction does not keep up, or allow more time in freshness.",
    Reason.TRANSACTIONS: "More than half of the transactions that the database takes are running, so the sink commits "
    "less often: find the writer that leaves them open.",
    Reason.PUBLISH: "StarRocks takes long to publish a commit, so the sink commits less often.",
}
"""Why rows are late, and what helps."""


@dataclass(slots=True)
class _Run:
    """A run of a query: its pace, the tables that it has loaded, what it has told."""

    pace: Pace
    paced: bool
    read: ReadToEnd = field(default_factory=ReadToEnd)
    tables: set[str] = field(default_factory=set)
    published: deque[float] = field(default_factory=lambda: deque(maxlen=_PUBLISHED))
    steps: int = 0
    missed: bool = False


class Pacing:
    """Paces the streaming queries of one sink; pickled without what it has learnt. `take` is thread-safe."""

    def __init__(self, freshness: float, emit: Listener, clock: Clock | None = None) -> None:
        self._made_of = freshness, emit
        self._freshness, self._emit = freshness, emit
        self._clock = clock or SystemClock()
        self._runs: LatestValues[str, _Run] = LatestValues(_RUNS)
        self._tablets: tuple[TabletRoom, float] | None = None
        self._room: tuple[TransactionRoom, float] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Pacing, self._made_of

    def take(self, event: Event) -> None:
        """Learn what the server shows (`sql.server_limits`), and pass the event on."""
        room, now = event.fields.get("room"), self._clock.monotonic()
        if event.name == "tablets.measured":
            self._tablets = (room, now) if room is not None else None
        elif event.name == "server.measured":
            self._room = (room, now) if room is not None else None
        self._emit(event)

    def rest(
        self,
        spark: SparkSession | None,
        origin: BatchOrigin,
        receipts: Sequence[Receipt],
        begun: float,
        ask: Callable[[], None] = lambda: None,
    ) -> None:
        """Pause behind a micro-batch of a query that is visible; `begun` is when its write began, by the clock.

        `ask` has the server asked, while the job has nothing open there.
        """
        now, query = self._clock.monotonic(), origin.checkpoint
        run = self._runs.get(origin.key)
        if run is None:  # a query that ends by itself has a next micro-batch only if there are more rows already
            run = _Run(Pace(self._freshness), not counts_pauses(spark, query))
        self._runs[origin.key] = run
        if not run.paced:
            return
        ask()
        run.tables.update(table for receipt in receipts for table in receipt.tables)
        run.published.extend(receipt.phase_seconds.get("publish", 0.0) for receipt in receipts)
        planned_at = batch_time(spark, query)
        planned = None if planned_at is None else now - max(0.0, self._clock.wall() - planned_at)
        backlog = not run.read.is_reached(spark, query)
        step = run.pace.step(planned=planned, begun=begun, now=now, backlog=backlog, strain=self._strain(run, now))
        self._tell(origin, run, step)
        if step.pause:
            with contextlib.suppress(Exception):  # of the JVM: the query stops. All is visible, so it may note that
                driver_clock(spark).sleep(step.pause)
        run.pace.ended(self._clock.monotonic())

    def _strain(self, run: _Run, now: float) -> Strain:
        rowsets = transactions = 0.0
        if self._tablets is not None and now - self._tablets[1] < _KNOWN_SECONDS:
            room = self._tablets[0]
            own = [count for table, count in room.rowsets.items() if table in run.tables or is_own_table(table)]
            rowsets = max(own, default=0) / room.limit if room.limit else 0.0
        if self._room is not None and now - self._room[1] < _KNOWN_SECONDS:
            transactions = self._room[0].running / self._room[0].limit if self._room[0].limit else 0.0
        return Strain(rowsets, transactions, median(run.published) if run.published else 0.0)

    def _tell(self, origin: BatchOrigin, run: _Run, step: Step) -> None:
        fields = {"job": origin.job, "freshness": self._freshness, "late": step.late, "reason": step.reason.value}
        self._emit(Event("commits.paced", {**fields, "pause": step.pause, "interval": step.interval}))
        run.steps += 1
        missed = step.late > LATE and run.steps >= _FIRST
        if missed:
            self._emit(Event("freshness.missed", {**fields, "interval": step.interval, "advice": WHY[step.reason]}))
        elif run.missed:
            self._emit(Event("freshness.met", {**fields, "interval": step.interval}))
        run.missed = missed
