"""Commits that are durable but not yet visible: their rows wait in tables of their own, in commit order.

A table's versions become visible in commit order, so a commit behind an invisible one of the same table waits too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import duckdb

from starrocks_emulator.tables.apply import Manner, apply_rows
from starrocks_emulator.tables.catalog import quoted
from starrocks_emulator.tables.registry import Registry

TableName = tuple[str, str]


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
        self._entries.append(entry)

    def release(self, txn_id: int) -> None:
        self._entries = [replace(entry, released=True) if entry.txn_id == txn_id else entry for entry in self._entries]

    def release_all(self) -> None:
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
        self._entries.remove(entry)


def prepare(cursor: duckdb.DuckDBPyConnection) -> None:
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


def keep(cursor: duckdb.DuckDBPyConnection, txn_id: int, name: TableName, manner: Manner, rows: str) -> None:
    """Put `rows` aside for `publish`, inside the caller's transaction."""
    row = cursor.execute("SELECT coalesce(max(place), 0) + 1 FROM meta.waiting").fetchone()
    place = row[0] if row else 1
    relation = f"waiting.{quoted(f'rows_{place}')}"
    columns = ", ".join(quoted(column) for column in manner.columns)
    cursor.execute(f"CREATE TABLE {relation} AS SELECT {columns}, __op, __arrival FROM {rows}")
    cursor.execute(
        "INSERT INTO meta.waiting VALUES (?, ?, ?, ?, ?, ?)", [place, txn_id, *name, manner.to_json(), relation]
    )


def publish(cursor: duckdb.DuckDBPyConnection, registry: Registry, txn_id: int) -> None:
    """Apply the rows that were put aside for `txn_id`, inside the caller's transaction."""
    kept: Sequence[tuple[str, str, str, str]] = cursor.execute(
        "SELECT database, name, manner, relation FROM meta.waiting WHERE txn_id = ? ORDER BY place", [txn_id]
    ).fetchall()
    for database, name, manner, relation in kept:
        table = registry.find(database, name)
        if table is not None:
            apply_rows(cursor, table, Manner.from_json(manner), relation)
        cursor.execute(f"DROP TABLE {relation}")
    cursor.execute("DELETE FROM meta.waiting WHERE txn_id = ?", [txn_id])
