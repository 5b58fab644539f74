"""Committed transactions: the durable list of them, ids that only grow, and commits that are not visible yet.

Rows of a commit that is durable but invisible wait in tables of their own. A table's versions become visible in commit
order, so a commit behind an invisible one of the same table waits too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import duckdb

from starrocks_emulator.tables.apply import Manner, apply_rows
from starrocks_emulator.tables.catalog import Registry, quote

TableName = tuple[str, str]

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


@dataclass(frozen=True, slots=True)
class Inserted:
    """An INSERT that is done: its label, transaction, rows, and when it began and ended, in seconds since the Epoch."""

    label: str
    txn_id: int
    rows: int
    began: float
    ended: float


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
        """All records but the forgotten ones, oldest first."""
        with self._guard:
            return list(self._records.values())

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
        """Write that a transaction is VISIBLE; `adopt_visible` after the commit."""
        cursor.execute("UPDATE meta.transactions SET state = ? WHERE txn_id = ?", [VISIBLE, txn_id])

    def adopt(self, record: TransactionRecord) -> None:
        """Show a record that `write` has made and a commit kept."""
        with self._guard:
            self._records[record.txn_id] = record

    def adopt_visible(self, txn_id: int) -> None:
        """Show what `write_visible` has written; nothing happens to a forgotten transaction."""
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


@dataclass(frozen=True, slots=True)
class Waiting:
    """One invisible commit; `released` says that nothing but its predecessors holds it back."""

    txn_id: int
    tables: frozenset[TableName]
    released: bool = False


class Queue:
    """Invisible commits in commit order. Not thread-safe: the writer's lock guards it."""

    def __init__(self, entries: Iterable[Waiting] = ()) -> None:
        self._entries = list(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Waiting) -> None:
        """Put a commit behind the others."""
        self._entries.append(entry)

    def release(self, txn_id: int) -> None:
        """Let a commit become visible as soon as those before it are; nothing happens to one that is not here."""
        self._entries = [replace(entry, released=True) if entry.txn_id == txn_id else entry for entry in self._entries]

    def release_all(self) -> None:
        """Let all commits become visible, one after the other."""
        self._entries = [replace(entry, released=True) for entry in self._entries]

    def holds(self, tables: Iterable[TableName]) -> bool:
        """Whether an invisible commit touches one of `tables`."""
        return any(not entry.tables.isdisjoint(tables) for entry in self._entries)

    def next_ready(self) -> Waiting | None:
        """The first released commit that shares no table with an earlier one."""
        earlier: set[TableName] = set()
        for entry in self._entries:
            if entry.released and entry.tables.isdisjoint(earlier):
                return entry
            earlier |= entry.tables
        return None

    def remove(self, entry: Waiting) -> None:
        """Take out a commit that is visible now."""
        self._entries.remove(entry)


def prepare_queue(cursor: duckdb.DuckDBPyConnection) -> None:
    """Make the places where invisible commits wait."""
    cursor.execute("CREATE SCHEMA IF NOT EXISTS waiting")
    cursor.execute(
        "CREATE TABLE IF NOT EXISTS meta.waiting"
        " (place BIGINT, txn_id BIGINT, database VARCHAR, name VARCHAR, manner VARCHAR, relation VARCHAR)"
    )


def read_queue(cursor: duckdb.DuckDBPyConnection) -> Queue:
    """The invisible commits that an earlier process left, in commit order."""
    rows = cursor.execute("SELECT txn_id, database, name FROM meta.waiting ORDER BY place").fetchall()
    tables: dict[int, set[TableName]] = {}
    for txn_id, database, name in rows:
        tables.setdefault(txn_id, set()).add((database, name))
    return Queue(Waiting(txn_id, frozenset(names)) for txn_id, names in tables.items())


def keep_rows(cursor: duckdb.DuckDBPyConnection, txn_id: int, name: TableName, manner: Manner, rows: str) -> None:
    """Put `rows` aside for `publish_rows`, inside the caller's transaction."""
    row = cursor.execute("SELECT coalesce(max(place), 0) + 1 FROM meta.waiting").fetchone()
    place = row[0] if row else 1
    relation = f"waiting.{quote(f'rows_{place}')}"
    columns = ", ".join(quote(column) for column in manner.columns)
    cursor.execute(f"CREATE TABLE {relation} AS SELECT {columns}, __op, __arrival FROM {rows}")
    cursor.execute(
        "INSERT INTO meta.waiting VALUES (?, ?, ?, ?, ?, ?)", [place, txn_id, *name, manner.to_json(), relation]
    )


def publish_rows(
    cursor: duckdb.DuckDBPyConnection, registry: Registry, txn_id: int, only: TableName | None = None
) -> None:
    """Apply the rows that were put aside for `txn_id`, or those of one table, inside the caller's transaction."""
    waiting: Sequence[tuple[int, str, str, str, str]] = cursor.execute(
        "SELECT place, database, name, manner, relation FROM meta.waiting WHERE txn_id = ? ORDER BY place", [txn_id]
    ).fetchall()
    for place, database, name, manner, relation in waiting:
        if only not in (None, (database, name)):
            continue
        table = registry.find(database, name)
        if table is not None:
            apply_rows(cursor, table, Manner.from_json(manner), relation)
        cursor.execute(f"DROP TABLE {relation}")
        cursor.execute("DELETE FROM meta.waiting WHERE place = ?", [place])
