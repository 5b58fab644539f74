"""The model server's tables: commits wait here in order until they are published, all their tables at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE

Key = tuple[str, str, str]  # job, kind, name


@dataclass(slots=True)
class Change:
    """A committed transaction: a label's loads, or one row of the ledger (`row`), or some `removed`, over SQL."""

    label: str
    loads: list[tuple[str, bytes]] = field(default_factory=list)
    row: dict[str, Any] | None = None
    removed: tuple[Key, ...] = ()
    ready: bool = False

    @property
    def tables(self) -> set[str]:
        over_sql = self.row is not None or self.removed
        return {LEDGER_TABLE} if over_sql else {table for table, _ in self.loads}


class ModelStore:
    """What readers see. Versions of a table become visible in the order of their commits, as in StarRocks.

    `tables` keeps rows as they came, but those of a table in `keys` (its primary key's column): they replace each
    other, and `__op` 1 deletes. `ledger` is the ledger's rows by primary key. `visible` gets each label.
    """

    def __init__(self, visible: Callable[[str], None]) -> None:
        self.tables: dict[str, list[Any]] = {}
        self.keys: dict[str, str] = {}
        self.ledger: dict[Key, dict[str, Any]] = {}
        self.watch: Callable[[Change, dict[str, list[Any]]], None] | None = None
        self._visible = visible
        self._waiting: list[Change] = []

    def commit(self, change: Change) -> None:
        """`change` is durable; it becomes visible with `publish`."""
        self._waiting.append(change)

    def insert(self, row: dict[str, Any], name: str) -> None:
        """Commit one row of the ledger that came over SQL; `publish(name)` makes it visible."""
        self.commit(Change(name, row=row))

    def remove(self, keys: tuple[Key, ...], name: str) -> None:
        """Commit the removal of rows of the ledger over SQL; `publish(name)` makes it visible."""
        self.commit(Change(name, removed=keys))

    def publish(self, name: str) -> None:
        """`name` is ready to be seen; so is whatever waited for it. Unknown names are ignored."""
        for change in self._waiting:
            change.ready = change.ready or change.label == name
        blocked: set[str] = set()
        waiting: list[Change] = []
        for change in self._waiting:
            if change.ready and not blocked & change.tables:
                self._show(change)
            else:
                blocked |= change.tables
                waiting.append(change)
        self._waiting = waiting

    def pending(self) -> list[str]:
        """What is committed and not visible yet."""
        return [change.label for change in self._waiting]

    def _show(self, change: Change) -> None:
        if change.row is not None:
            self._upsert(change.row)
            return
        if change.removed:
            for key in change.removed:
                self.ledger.pop(key, None)
            return
        tables: dict[str, list[Any]] = {}
        for table, body in change.loads:
            tables.setdefault(table, []).extend(orjson.loads(body))
        for table, rows in tables.items():
            if table == LEDGER_TABLE:
                for row in rows:
                    self._upsert(row)
            else:
                self._append(table, rows)
        self._visible(change.label)
        if self.watch is not None:
            self.watch(change, tables)

    def _append(self, table: str, rows: list[Any]) -> None:
        stored, key = self.tables.setdefault(table, []), self.keys.get(table)
        if key is not None:
            new = {row[key]: row for row in rows}
            stored[:] = [row for row in stored if row[key] not in new]
            rows = [row for row in new.values() if row.get("__op") != 1]
        stored.extend(rows)

    def _upsert(self, row: dict[str, Any]) -> None:
        self.ledger[(row["job"], row["kind"], row["name"])] = row
