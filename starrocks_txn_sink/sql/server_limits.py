"""How near the server is to a limit of its own: the running transactions of the sink's database, asked seldom.

The statements need OPERATE ON SYSTEM; without it, and while the server does not answer, nothing is measured. A thread
asks, so no micro-batch waits for it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Final

from starrocks_txn_sink.clock import Clock, Deadline, SystemClock
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sql.connection import LeaderConnection
from starrocks_txn_sink.telemetry import Event, Listener

_INTERVAL: Final = 60.0
"""Seconds: an alert needs several values of some minutes, and the answer has a line for each running transaction."""
_SECONDS: Final = 10.0
"""Of one measurement; a server that takes longer has other troubles, which other metrics show."""
_LIMIT: Final = "max_running_txn_num_per_db"
_NOT_COUNTED: Final = "ROUTINE_LOAD_TASK"  # the limit leaves routine loads out


@dataclass(frozen=True, slots=True)
class TransactionRoom:
    """The running transactions of a database, and the server's limit for them."""

    running: int
    limit: int


def measure(options: SinkOptions, clock: Clock) -> TransactionRoom | None:
    """Ask the leader; None if the limit cannot be read. Raises StarRocksSinkError for a server that refuses."""
    connection, deadline = LeaderConnection(options), Deadline.after(_SECONDS, clock)
    try:
        config = connection.rows(f"ADMIN SHOW FRONTEND CONFIG LIKE '{_LIMIT}'", (), deadline)
        limits = [str(row["value"]) for row in config if row.get("key") == _LIMIT]
        if not limits or not limits[0].isdecimal():
            return None
        running = connection.rows("SHOW PROC %s", (f"/transactions/{options.database}/running",), deadline)
    finally:
        connection.close()
    return TransactionRoom(sum(row.get("loadjobsourcetype") != _NOT_COUNTED for row in running), int(limits[0]))


class ServerLimitsWatch:
    """Emits `server.measured` about once a minute while micro-batches begin. An unpickled copy begins anew."""

    def __init__(self, options: SinkOptions, listener: Listener, clock: Clock | None = None) -> None:
        self._made_of = options, listener
        self._options, self._listener, self._clock = options, listener, clock or SystemClock()
        self._not_before = 0.0
        self._thread: threading.Thread | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ServerLimitsWatch, self._made_of

    def touch(self) -> None:
        """Measure in a thread, unless it was done a moment ago."""
        now = self._clock.monotonic()
        if now < self._not_before or (self._thread is not None and self._thread.is_alive()):
            return
        self._not_before = now + _INTERVAL
        self._thread = threading.Thread(target=self._measure, name="starrocks-server-limits", daemon=True)
        self._thread.start()

    def _measure(self) -> None:
        try:
            room = measure(self._options, self._clock)
        except StarRocksSinkError:
            room = None
        self._listener(Event("server.measured", {"database": self._options.database, "room": room}))
