"""How near the server is to limits of its own: running transactions and rowsets a tablet, asked seldom.

The statements need OPERATE ON SYSTEM; without it, and while the server does not answer, nothing is measured. A thread
asks, so no micro-batch waits for it. It also reads what `verify` has found last, which another process writes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starrocks_txn_sink.clock import Clock, Deadline, SystemClock
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.verified import ReadVerified, Verified
from starrocks_txn_sink.sql import scan_threads
from starrocks_txn_sink.sql.connection import LeaderConnection, SqlLedger
from starrocks_txn_sink.telemetry import Event, Listener

_INTERVAL: Final = 60.0
"""Seconds: an alert needs several values of some minutes, and the answer has a line for each running transaction."""
_SELDOM: Final = 300.0
"""Seconds between two looks at the tablets: each backend lists all that it has. A sink that paces its commits looks at
each _INTERVAL: in 60 s six commits a second add 360 rowsets, of 1,000 that a tablet takes."""
_SECONDS: Final = 10.0
"""Of one measurement; a server that takes longer has other troubles, which other metrics show."""
_ROWSETS: Final = (
    "SELECT c.TABLE_NAME, MAX(t.NUM_ROWSET) FROM information_schema.be_tablets t"
    " JOIN information_schema.tables_config c ON c.TABLE_ID = t.TABLE_ID"
    " WHERE c.TABLE_SCHEMA = %s GROUP BY c.TABLE_NAME"
)
"""A load is refused by the number of rowsets; NUM_VERSION of a PRIMARY KEY table also counts compacted ones."""
_MOST_ROWSETS: Final = "SELECT VALUE FROM information_schema.be_configs WHERE NAME = 'tablet_max_versions'"
_LIMIT: Final = "max_running_txn_num_per_db"
_NOT_COUNTED: Final = "ROUTINE_LOAD_TASK"  # the limit leaves routine loads out


@dataclass(frozen=True, slots=True)
class TransactionRoom:
    """The running transactions of a database, and the server's limit for them."""

    running: int
    limit: int


@dataclass(frozen=True, slots=True)
class TabletRoom:
    """By table the most rowsets that a tablet has, and the smallest limit of a backend."""

    rowsets: Mapping[str, int]
    limit: int


@dataclass(frozen=True, slots=True)
class LoadRoom:
    """Loads that labels of this driver's jobs have open at once, at most, and how many fit (`sql.scan_threads`)."""

    loads: int
    limit: int


def measure_tablets(options: SinkOptions, clock: Clock) -> TabletRoom | None:
    """Ask for the tablets of the database; None if there are none. Raises StarRocksSinkError as `measure`."""
    connection, deadline = LeaderConnection(options), Deadline.after(_SECONDS, clock)
    try:
        limits = [int(value) for (value,) in connection.query(_MOST_ROWSETS, (), deadline) if str(value).isdecimal()]
        rowsets = connection.query(_ROWSETS, (options.database,), deadline) if limits else []
    finally:
        connection.close()
    counts = {str(table): int(count) for table, count in rowsets if count is not None}
    return TabletRoom(counts, min(limits)) if counts else None


def measure(options: SinkOptions, clock: Clock) -> TransactionRoom | None:
    """Ask the leader; None if the limit cannot be read. Raises StarRocksSinkError for a server that refuses."""
    connection, deadline = LeaderConnection(options), Deadline.after(_SECONDS, clock)
    try:
        config = connection.rows(f"ADMIN SHOW FRONTEND CONFIG LIKE '{_LIMIT}'", (), deadline)
        limits = [str(row.get("value")) for row in config if row.get("key") == _LIMIT]
        if not limits or not limits[0].isdecimal():
            return None
        running = connection.rows("SHOW PROC %s", (f"/transactions/{options.database}/running",), deadline)
    finally:
        connection.close()
    return TransactionRoom(sum(row.get("loadjobsourcetype") != _NOT_COUNTED for row in running), int(limits[0]))


def read_verified(options: SinkOptions, clock: Clock) -> Mapping[str, Verified]:
    """What `verify` has found last, by job. Raises StarRocksSinkError, also without a ledger."""
    with contextlib.closing(LeaderConnection(options)) as connection:
        ledger = SqlLedger(connection, options.database)
        verdicts: Mapping[str, Verified] = ledger.execute(ReadVerified(), Deadline.after(_SECONDS, clock))
    return verdicts


def _no_loads() -> int:
    return 0


class ServerLimitsWatch:
    """Emits `server.measured`, `threads.measured`, `tables.verified` and `tablets.measured` while micro-batches begin.

    `loads` tells how many loads the driver's jobs have open at once. With `often` the tablets are measured each time.
    An unpickled copy begins anew.
    """

    def __init__(
        self,
        options: SinkOptions,
        listener: Listener,
        clock: Clock | None = None,
        loads: Callable[[], int] = _no_loads,
        often: bool = False,
    ) -> None:
        self._made_of, self._loads = (options, listener, None, loads, often), loads
        self._seldom = _INTERVAL if often else _SELDOM
        self._options, self._listener, self._clock = options, listener, clock or SystemClock()
        self._not_before = self._tablets_not_before = 0.0
        self._thread: threading.Thread | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ServerLimitsWatch, self._made_of

    def touch(self) -> None:
        """Measure in a thread, unless it was done a moment ago."""
        now = self._clock.monotonic()
        if now < self._not_before or (self._thread is not None and self._thread.is_alive()):
            return
        self._not_before = now + _INTERVAL
        tablets = now >= self._tablets_not_before
        if tablets:
            self._tablets_not_before = now + self._seldom
        self._thread = threading.Thread(
            target=self._measure, args=(tablets,), name="starrocks-server-limits", daemon=True
        )
        self._thread.start()

    def _measure(self, tablets: bool) -> None:
        place = {"database": self._options.database}
        self._listener(Event("server.measured", {**place, "room": self._ask(measure)}))
        threads = scan_threads.measure(self._options, self._clock)
        room = LoadRoom(self._loads(), threads.room) if threads.exact else None
        self._listener(Event("threads.measured", {**place, "room": room}))
        self._listener(Event("tables.verified", {**place, "found": self._ask(read_verified) or {}}))
        if tablets:
            self._listener(Event("tablets.measured", {**place, "room": self._ask(measure_tablets)}))

    def _ask(self, ask: Callable[[SinkOptions, Clock], object]) -> object:
        try:
            return ask(self._options, self._clock)
        except StarRocksSinkError:
            return None
