"""A source transaction whose END does not come: nothing fails and nothing is written, so a warning must say so.

The counts come from the lanes that assemble (`sink.events_writer`), or through Spark's progress from a stage. A
timer looks at them, because no further micro-batch may come.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from starrocks_txn_sink.assembler.keyed_state import PLANNED
from starrocks_txn_sink.clock import Clock, SystemClock
from starrocks_txn_sink.metrics.jobs import AssemblerLevels
from starrocks_txn_sink.metrics.spark_progress import ProgressWatch
from starrocks_txn_sink.telemetry.events import Event, Listener

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
