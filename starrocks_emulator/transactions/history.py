"""What the frontend knows of registered transactions, per database (contract sections 3.3, 4.13, 6).

A label enters here when its transaction is registered: at commit in generation B, at the first load in C. Not
thread-safe; the frontend's lock guards it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from starrocks_emulator.transactions.labels import LabelState

_FINAL = frozenset({LabelState.VISIBLE, LabelState.ABORTED})


@dataclass(slots=True)
class Registered:
    """One transaction of the history; `finished_at` is in seconds of the stand-in's clock."""

    txn_id: int
    label: str
    database: str
    state: LabelState = LabelState.PREPARE
    reason: str = ""
    finished_at: float = 0.0


class TransactionHistory:
    """Registered transactions by id, with the newest one of each (database, label) at hand."""

    def __init__(self) -> None:
        self._by_id: dict[int, Registered] = {}
        self._newest: dict[tuple[str, str], int] = {}

    def register(self, txn_id: int, label: str, database: str, state: LabelState = LabelState.PREPARE) -> Registered:
        entry = Registered(txn_id, label, database, state)
        self._by_id[txn_id] = entry
        key = database, label
        self._newest[key] = max(txn_id, self._newest.get(key, txn_id))
        return entry

    def get(self, txn_id: int) -> Registered | None:
        return self._by_id.get(txn_id)

    def of_label(self, database: str, label: str) -> Registered | None:
        """The transaction with the largest id for that label in that database."""
        txn_id = self._newest.get((database, label))
        return None if txn_id is None else self._by_id.get(txn_id)

    def blocking(self, database: str, label: str) -> Registered | None:
        """A transaction that forbids to begin with the label again: any that is not aborted."""
        for entry in self._by_id.values():
            if (entry.database, entry.label) == (database, label) and entry.state is not LabelState.ABORTED:
                return entry
        return None

    def running(self, database: str) -> int:
        return sum(
            1 for entry in self._by_id.values() if entry.database == database and entry.state is LabelState.PREPARE
        )

    def committed(self) -> list[Registered]:
        """Transactions that are durable and not visible yet."""
        return [entry for entry in self._by_id.values() if entry.state is LabelState.COMMITTED]

    def overdue(self, now: float, max_age: float, max_count: int) -> list[Registered]:
        """Finished transactions that retention does not keep: too old, or too many in their database."""
        doomed = []
        finished: dict[str, list[Registered]] = {}
        for entry in sorted(self._by_id.values(), key=lambda entry: entry.txn_id):
            if entry.state in _FINAL:
                finished.setdefault(entry.database, []).append(entry)
        for entries in finished.values():
            surplus = len(entries) - max_count
            doomed += [
                entry for place, entry in enumerate(entries) if place < surplus or now - entry.finished_at > max_age
            ]
        return doomed

    def drop(self, entries: Iterable[Registered]) -> None:
        for entry in entries:
            self._by_id.pop(entry.txn_id, None)
            if self._newest.get((entry.database, entry.label)) == entry.txn_id:
                del self._newest[entry.database, entry.label]

    def finished(self) -> list[Registered]:
        return [entry for entry in self._by_id.values() if entry.state in _FINAL]
