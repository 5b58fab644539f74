"""The concurrent reader: a client that looks at all tables again and again while they are written.

One statement over all tables asks what only whole source transactions keep. The reader's looks also tell how long a
source transaction takes to be visible.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pymysql

from starrocks_demo.verdict import DATABASE, TABLES
from starrocks_txn_sink.clock import Clock

_REMEMBERED = 5  # torn samples described in full
_LONGEST = 2.0  # seconds of rest at most: a reader that is told to stop ends its rest first


class SqlClient:
    """A client of the emulator's query port: connects at the first query, and again after an error. For one thread."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: pymysql.connections.Connection[Any] | None = None

    def __call__(self, sql: str) -> Sequence[Sequence[Any]]:
        """Run one statement and return its rows; any error closes the connection."""
        if self._connection is None:
            self._connection = pymysql.connect(
                host="127.0.0.1",
                port=self._port,
                user="root",
                autocommit=True,
                connect_timeout=10,
                read_timeout=60,
                ssl_disabled=True,
            )
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql)
                rows: Sequence[Sequence[Any]] = cursor.fetchall()
                return rows
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the connection; the next query opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(pymysql.Error, OSError):
                connection.close()


# One statement is one snapshot. Every branch gives (name, source partition or -1, whole number); money is in cents.
WITNESS = f"""
WITH txn AS (
  SELECT source_partition, txn_no, COUNT(*) AS found, MIN(txn_rows) AS expected
  FROM {DATABASE}.order_events GROUP BY source_partition, txn_no
), totals AS (
  SELECT order_id, SUM(quantity * price) AS amount FROM {DATABASE}.order_items GROUP BY order_id
), changes AS (
  SELECT
    COUNT(*) AS events,
    COALESCE(SUM(CASE WHEN changed_table <> 'orders' THEN 0 WHEN `change` = 'insert' THEN 1
                      WHEN `change` = 'delete' THEN -1 ELSE 0 END), 0) AS orders,
    COALESCE(SUM(CASE WHEN changed_table <> 'order_items' THEN 0 WHEN `change` = 'insert' THEN 1
                      WHEN `change` = 'delete' THEN -1 ELSE 0 END), 0) AS items,
    COALESCE(SUM(amount_delta), 0) AS amount,
    COALESCE(SUM(status_delta), 0) AS states
  FROM {DATABASE}.order_events
)
SELECT 'newest' AS name, source_partition AS place, CAST(MAX(txn_no) AS BIGINT) AS number
  FROM txn GROUP BY source_partition
UNION ALL SELECT 'missing', source_partition, CAST(MAX(txn_no) - COUNT(*) AS BIGINT) FROM txn GROUP BY source_partition
UNION ALL SELECT 'unfinished', source_partition, CAST(COUNT(*) AS BIGINT)
  FROM txn WHERE txn_no < 1 GROUP BY source_partition
UNION ALL SELECT 'partial', source_partition, CAST(COUNT(*) AS BIGINT)
  FROM txn WHERE found < expected GROUP BY source_partition
UNION ALL SELECT 'repeated', source_partition, CAST(COUNT(*) AS BIGINT)
  FROM txn WHERE found > expected GROUP BY source_partition
UNION ALL SELECT 'order_totals', -1, CAST(COUNT(*) AS BIGINT)
  FROM {DATABASE}.orders AS o FULL OUTER JOIN totals AS t ON o.order_id = t.order_id
  WHERE o.order_id IS NULL OR o.total_amount <> COALESCE(t.amount, 0)
UNION ALL SELECT 'orders', -1, CAST(COUNT(*) AS BIGINT) FROM {DATABASE}.orders
UNION ALL SELECT 'order_items', -1, CAST(COUNT(*) AS BIGINT) FROM {DATABASE}.order_items
UNION ALL SELECT 'order_events', -1, CAST(events AS BIGINT) FROM changes
UNION ALL SELECT 'orders_by_events', -1, CAST(orders AS BIGINT) FROM changes
UNION ALL SELECT 'order_items_by_events', -1, CAST(items AS BIGINT) FROM changes
UNION ALL SELECT 'amount_by_events', -1, CAST(amount * 100 AS BIGINT) FROM changes
UNION ALL SELECT 'amount', -1, CAST(COALESCE(SUM(amount), 0) * 100 AS BIGINT) FROM totals
UNION ALL SELECT 'states_by_events', -1, CAST(states AS BIGINT) FROM changes
UNION ALL SELECT 'states', -1, CAST(COALESCE(SUM(LENGTH(order_status)), 0) AS BIGINT) FROM {DATABASE}.orders
"""

NEWEST = f"SELECT source_partition, MAX(txn_no) FROM {DATABASE}.order_events GROUP BY source_partition"
"""The newest visible source transaction of each source partition: what a sample has in `newest`, alone."""

_NEVER = ("missing", "unfinished", "partial", "repeated", "order_totals")
_EQUAL = (
    ("orders", "orders_by_events"),
    ("order_items", "order_items_by_events"),
    ("amount", "amount_by_events"),
    ("states", "states_by_events"),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the tables: what was broken (nothing, if the snapshot was whole) and how far each partition is."""

    torn: tuple[str, ...] = ()
    newest: Mapping[int, int] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)


def judge(answer: Sequence[Sequence[Any]]) -> Sample:
    """The sample that an answer to WITNESS amounts to."""
    numbers: dict[str, dict[int, int]] = {}
    for name, place, number in answer:
        numbers.setdefault(str(name), {})[int(place)] = int(number)
    violations = [
        f"{name} = {number}" + (f" in partition {place}" if place >= 0 else "")
        for name in _NEVER
        for place, number in sorted(numbers.get(name, {}).items())
        if number
    ]
    for left, right in _EQUAL:
        if numbers[left] != numbers[right]:
            violations.append(f"{left} = {numbers[left][-1]}, {right} = {numbers[right][-1]}")
    return Sample(tuple(violations), numbers.get("newest", {}), {table: numbers[table][-1] for table in TABLES})


def glance(answer: Sequence[Sequence[Any]]) -> Sample:
    """The sample that an answer to NEWEST amounts to: it can tell of freshness, and of nothing broken."""
    return Sample(newest={int(place): int(number) for place, number in answer})


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Nearest-rank percentile of values in ascending order; None without values."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


class Freshness:
    """Pairs transactions written with transactions seen; within a partition both come in order. Thread-safe.

    Times are seconds on one monotonic clock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._written: dict[int, list[float | None]] = {}
        self._seen: dict[int, int] = {}
        self._delays: list[float] = []

    def record_written(self, transactions: Sequence[tuple[int, int]], at: float | None) -> None:
        """Transactions (partition, txn_no) whose END is readable since `at`; None: they count, but are not timed."""
        with self._lock:
            for partition, _ in transactions:
                self._written.setdefault(partition, []).append(at)

    def record_seen(self, newest: Mapping[int, int], at: float) -> None:
        """A sample that ended at `at` saw every partition up to this txn_no."""
        with self._lock:
            for partition, txn_no in newest.items():
                times = self._written.get(partition, [])
                first, last = self._seen.get(partition, 0), min(txn_no, len(times))
                if last > first:
                    self._delays.extend(at - time for time in times[first:last] if time is not None)
                    self._seen[partition] = last

    @property
    def visible(self) -> int:
        """Source transactions seen so far."""
        with self._lock:
            return sum(self._seen.values())

    def percentiles(self, *shares: float, last: int | None = None) -> tuple[float | None, ...]:
        """Percentiles over all transactions seen, or over the `last` ones."""
        with self._lock:
            delays = self._delays[-last:] if last else list(self._delays)
        delays.sort()
        return tuple(percentile(delays, share) for share in shares)


class Reader:
    """Takes samples until stopped; counts them, keeps what the torn ones showed. Counters may be read at any time.

    `look` returns one sample; when it raises, the error is kept, and sampling goes on with the next call. Between
    samples the reader rests at least `pause` seconds and `rest` times as long as the sample took (two seconds at
    most): the longer the tables, the longer a look at them takes, and who is watched on the same cores shall not wait
    for it. Looking at everything takes long enough to be seen in freshness: a second reader looks at `newest` alone.
    """

    def __init__(
        self, look: Callable[[], Sample], freshness: Freshness, *, clock: Clock, pause: float = 0.2, rest: float = 9.0
    ) -> None:
        self._look, self._freshness, self._clock = look, freshness, clock
        self._pause, self._rest = pause, rest
        self.samples = 0
        self.torn = 0
        self.errors = 0
        self.evidence: list[str] = []
        self.last_error: str | None = None
        self.latest = Sample()

    def run(self, stop: threading.Event) -> None:
        """Take samples and rest in turns until `stop` is set, which is seen after a rest."""
        while not stop.is_set():
            start = self._clock.monotonic()
            self.look()
            self._clock.sleep(self._pause_after(self._clock.monotonic() - start))

    def _pause_after(self, seconds: float) -> float:
        return max(self._pause, min(self._rest * seconds, _LONGEST))

    def look(self) -> None:
        """Take one sample."""
        try:
            sample = self._look()
        except Exception as error:  # whatever a client library raises: seen, counted, and tried again
            self.errors += 1
            self.last_error = f"{type(error).__name__}: {error}"
            return
        self._freshness.record_seen(sample.newest, self._clock.monotonic())
        self.samples += 1
        self.latest = sample
        if sample.torn:
            self.torn += 1
            if len(self.evidence) < _REMEMBERED:
                self.evidence.append(f"sample {self.samples}: {'; '.join(sample.torn)}")
