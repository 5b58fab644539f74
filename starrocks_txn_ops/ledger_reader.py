"""Queries of the sink's own tables, on the leader, for commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import TransportError, UnknownJob
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE, identifier
from starrocks_txn_sink.sql.connection import LeaderConnection

Found = TypeVar("Found")

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5
"""Seconds: a commit takes a quarter of one or more to become visible, and a look is a question to the leader."""


def look_until(look: Callable[[], Found | None], deadline: Deadline) -> Found | None:
    """Look until there is something, at least once; None at the deadline.

    A look that StarRocks does not answer is repeated, since the leader may change; the last one's error is raised.
    """
    pause = _FIRST_PAUSE
    while True:
        failure: TransportError | None = None
        try:
            finding = look()
        except TransportError as error:
            failure = error
        else:
            if finding is not None:
                return finding
        if deadline.expired():
            if failure is not None:
                raise failure
            return None
        deadline.clock.sleep(min(pause, deadline.remaining()))
        pause = min(pause * 1.5, _LONGEST_PAUSE)


@dataclass(frozen=True, slots=True)
class LedgerReader:
    """Queries of one database until `deadline`. Its methods raise the errors of `LeaderConnection.query`."""

    connection: LeaderConnection
    database: str
    deadline: Deadline

    def rows(self, sql: str, *parameters: object, table: str = LEDGER_TABLE) -> list[tuple[Any, ...]]:
        """The rows that `sql` returns; `{}` in it stands for `table`."""
        return self.connection.query(sql.format(identifier(self.database, table)), parameters, self.deadline)

    def existing(self, *tables: str) -> set[str]:
        """The names of those `tables` that exist."""
        sql = "SELECT TABLE_NAME FROM information_schema.tables WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN "
        rows = self.rows(f"{sql}({', '.join(['%s'] * len(tables))})", self.database, *tables)
        return {str(row[0]) for row in rows}

    def require_job(self, job: str) -> bool:
        """Raise UnknownJob if the ledger has no row of `job`: probably a slip of the pen. False without a ledger."""
        if not self.existing(LEDGER_TABLE):
            return False
        if job not in (jobs := self.jobs()):
            raise UnknownJob.among(job, self.database, jobs)
        return True

    def jobs(self) -> list[str]:
        """The jobs that have a row in the ledger, sorted."""
        return [str(row[0]) for row in self.rows("SELECT DISTINCT job FROM {} ORDER BY job")]
