"""Queries of ledger and log for one position, on the leader."""

from __future__ import annotations

from typing import Any

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import QueryRefused
from starrocks_txn_sink.ledger.access import LeaderConnection
from starrocks_txn_sink.ledger.ledger import LEDGER_TABLE
from starrocks_txn_sink.receipts_log.place import LedgerPosition, LoggedSpan
from starrocks_txn_sink.receipts_log.table import LOG_TABLE

_SPAN = (
    "SELECT first_position, last_position, label, lane, batch, row_count, tables, loaded_at FROM `{}`.`{}` "
    "WHERE job = %s AND source_partition = %s AND last_position {} %s ORDER BY last_position {} LIMIT 1"
)


class Lookup:
    """Queries for one source partition of a job. Raises the errors of `LeaderConnection.query`."""

    def __init__(self, connection: LeaderConnection, database: str, job: str, partition: str) -> None:
        self._connection = connection
        self._database = database
        self._job = job
        self._partition = partition

    def ledger_position(self, deadline: Deadline) -> LedgerPosition | None:
        """The partition's row in the ledger; None without one."""
        rows = self._connection.query(
            f"SELECT position, label, batch, updated_at FROM `{self._database}`.`{LEDGER_TABLE}` "
            "WHERE job = %s AND kind = 'position' AND name = %s",
            (self._job, self._partition),
            deadline,
        )
        return next((LedgerPosition(int(row[0]), str(row[1]), int(row[2]), str(row[3])) for row in rows), None)

    def spans_around(self, position: int, deadline: Deadline) -> list[LoggedSpan]:
        """Rows of the log next to `position`: the first that ends at or above it, the last that ends below."""
        found = []
        for sign, order in ((">=", "ASC"), ("<", "DESC")):
            sql = _SPAN.format(self._database, LOG_TABLE, sign, order)
            rows = self._connection.query(sql, (self._job, self._partition, position), deadline)
            found += [_span(row) for row in rows]
        return found

    def existing_tables(self, deadline: Deadline) -> set[str]:
        """Names of the existing tables among ledger and log."""
        rows = self._connection.query(
            "SELECT TABLE_NAME FROM information_schema.tables WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN (%s, %s)",
            (self._database, LEDGER_TABLE, LOG_TABLE),
            deadline,
        )
        return {str(row[0]) for row in rows}

    def known_partitions(self, deadline: Deadline) -> list[str]:
        """Up to 20 source partitions of the job, to help with a wrong name."""
        rows = self._connection.query(
            f"SELECT name FROM `{self._database}`.`{LEDGER_TABLE}` WHERE job = %s AND kind = 'position' "
            "ORDER BY name LIMIT 20",
            (self._job,),
            deadline,
        )
        return [str(row[0]) for row in rows]

    def finish_time(self, label: str, deadline: Deadline) -> str | None:
        """Time at which the server made `label` visible; None once it has forgotten the label (wire contract 6.1)."""
        try:
            rows = self._connection.query(
                "SELECT max(LOAD_FINISH_TIME) FROM information_schema.loads WHERE LABEL = %s", (label,), deadline
            )
        except QueryRefused:
            return None
        return str(rows[0][0]) if rows and rows[0][0] is not None else None


def _span(row: tuple[Any, ...]) -> LoggedSpan:
    first, last, label, lane, batch, rows, tables, since = row
    return LoggedSpan(
        int(first), int(last), str(label), int(lane), int(batch), int(rows or 0), str(tables or ""), str(since)
    )
