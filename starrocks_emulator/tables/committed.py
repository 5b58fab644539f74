"""The durable list of committed transactions, and transaction ids that only grow, also over restarts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import duckdb

COMMITTED, VISIBLE = "COMMITTED", "VISIBLE"
_RESERVED_IDS = 1_000_000


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """One committed transaction. `state` is COMMITTED or VISIBLE; `finished_at` in seconds since the Unix epoch."""

    txn_id: int
    label: str
    db: str
    state: str
    finished_at: float


class CommittedTransactions:
    """Records are written on a cursor inside the caller's transaction and adopted once that has committed."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, wall: Callable[[], float] = time.time) -> None:
        cursor.execute(
            "CREATE TABLE IF NOT EXISTS meta.transactions"
            " (txn_id BIGINT, label VARCHAR, db VARCHAR, state VARCHAR, finished_at DOUBLE)"
        )
        cursor.execute("CREATE TABLE IF NOT EXISTS meta.reserved_ids (below BIGINT)")
        self._wall = wall
        self._guard = threading.Lock()
        rows = cursor.execute("SELECT * FROM meta.transactions ORDER BY txn_id").fetchall()
        self._records = {row[0]: TransactionRecord(*row) for row in rows}
        row = cursor.execute("SELECT coalesce(max(below), 1000) FROM meta.reserved_ids").fetchone()
        self._next_id = int(row[0]) if row else 1000
        cursor.execute("DELETE FROM meta.reserved_ids")
        cursor.execute("INSERT INTO meta.reserved_ids VALUES (?)", [self._next_id + _RESERVED_IDS])

    def next_id(self) -> int:
        """A transaction id larger than every earlier one; a million are reserved at each opening."""
        with self._guard:
            self._next_id += 1
            return self._next_id

    def list(self) -> Sequence[TransactionRecord]:
        with self._guard:
            return list(self._records.values())

    def state(self, txn_id: int) -> str | None:
        with self._guard:
            record = self._records.get(txn_id)
        return record.state if record else None

    def write(
        self, cursor: duckdb.DuckDBPyConnection, txn_id: int, label: str, db: str, state: str
    ) -> TransactionRecord:
        """Write a new record; `adopt` it after the commit."""
        record = TransactionRecord(txn_id, label, db, state, self._wall())
        cursor.execute(
            "INSERT INTO meta.transactions VALUES (?, ?, ?, ?, ?)",
            [record.txn_id, record.label, record.db, record.state, record.finished_at],
        )
        return record

    def write_visible(self, cursor: duckdb.DuckDBPyConnection, txn_id: int) -> None:
        cursor.execute("UPDATE meta.transactions SET state = ? WHERE txn_id = ?", [VISIBLE, txn_id])

    def adopt(self, record: TransactionRecord) -> None:
        with self._guard:
            self._records[record.txn_id] = record

    def adopt_visible(self, txn_id: int) -> None:
        with self._guard:
            if txn_id in self._records:
                self._records[txn_id] = replace(self._records[txn_id], state=VISIBLE)

    def forget(self, cursor: duckdb.DuckDBPyConnection, label: str) -> None:
        """Drop the visible transactions of a label."""
        cursor.execute("DELETE FROM meta.transactions WHERE label = ? AND state = ?", [label, VISIBLE])
        with self._guard:
            self._records = {
                txn_id: record
                for txn_id, record in self._records.items()
                if record.label != label or record.state != VISIBLE
            }
