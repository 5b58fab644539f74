"""The threads of the backends for open loads, asked within a bounded time and kept for a minute (wire contract 4.16).

The frontend gives each table of a label a backend by chance, so only the smallest backend's threads are sure to be
enough. `information_schema.be_configs` needs a thread itself: while all are held it gives no answer, and a backend's
default counts.
"""

from __future__ import annotations

import threading
from typing import Final

from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.coordinator.table_room import GUESS, PER_CORE, SETTING, ScanThreads
from starrocks_txn_sink.errors import DeadlineExceeded, QueryFailed, StarRocksSinkError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.sink_options import is_own_table
from starrocks_txn_sink.protocol.ledger import identifier
from starrocks_txn_sink.sql.connection import LeaderConnection

_FRESH: Final = 60.0
"""Seconds that an answer counts: a backend that comes, goes or is configured anew is met soon."""
_SECONDS: Final = 3.0
"""Of each question. The frontend answers SHOW BACKENDS at once, a backend its settings unless its threads are held."""
_PER_CORE: Final = f"SELECT VALUE FROM information_schema.be_configs WHERE NAME = '{SETTING}'"


def measure(options: SinkOptions, clock: Clock) -> ScanThreads:
    """Ask for the threads of the smallest backend that is alive; what nobody answers is guessed. Raises nothing."""
    cores = [int(str(row["cpucores"])) for row in _rows(options, "SHOW BACKENDS", clock) if _counts(row)]
    if not cores:
        return GUESS
    per_core = [int(value) for row in _rows(options, _PER_CORE, clock) if (value := str(row["value"])).isdecimal()]
    return ScanThreads(min(cores), min(per_core, default=PER_CORE), len(cores), exact=bool(per_core))


def are_held(options: SinkOptions, clock: Clock) -> bool:
    """Whether no thread of some backend is free: its settings do not come, though the frontend answers. Raises nothing.

    It takes _SECONDS then, and milliseconds else.
    """
    if not _rows(options, "SHOW BACKENDS", clock):
        return False
    connection, began = LeaderConnection(options), clock.monotonic()
    try:
        connection.rows(_PER_CORE, (), Deadline.after(_SECONDS, clock))
    except (DeadlineExceeded, QueryFailed):
        return clock.monotonic() - began >= _SECONDS / 2  # else the connection was lost
    except StarRocksSinkError:  # the user may not ask
        return False
    finally:
        connection.close()
    return False


def _counts(row: dict[str, object]) -> bool:
    return str(row.get("alive")).lower() == "true" and str(row.get("cpucores")).isdecimal() and row["cpucores"] != "0"


def _rows(options: SinkOptions, sql: str, clock: Clock) -> list[dict[str, object]]:
    """The rows of a statement on a connection of its own, which is given up with the wait; none on an error."""
    connection = LeaderConnection(options)
    try:
        return connection.rows(sql, (), Deadline.after(_SECONDS, clock))
    except StarRocksSinkError:
        return []
    finally:
        connection.close()


def tables_of(options: SinkOptions, clock: Clock) -> frozenset[str]:
    """The tables of the database but for the sink's own; none if nobody answers."""
    rows = _rows(options, f"SHOW TABLES FROM {identifier(options.database)}", clock)
    return frozenset(name for row in rows for name in map(str, row.values()) if not is_own_table(name))


class KnownThreads:
    """The threads as they were at most a minute ago. Thread-safe."""

    def __init__(self, options: SinkOptions) -> None:
        self._options, self._lock = options, threading.Lock()
        self._known: ScanThreads | None = None
        self._asked_at = 0.0

    def now(self, clock: Clock) -> ScanThreads:
        """Ask if the last answer is too old; an exact one stays while there is none."""
        with self._lock:
            if self._known is None or clock.monotonic() - self._asked_at >= _FRESH:
                answer = measure(self._options, clock)
                if answer.exact or self._known is None or not self._known.exact:
                    self._known = answer
                self._asked_at = clock.monotonic()
            return self._known
