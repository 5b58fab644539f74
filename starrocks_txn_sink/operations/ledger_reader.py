"""Queries of the sink's own tables, on the leader, for commands; and the errors for a job that does not exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE, identifier
from starrocks_txn_sink.sql.connection import LeaderConnection


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
        found = self.rows(f"{sql}({', '.join(['%s'] * len(tables))})", self.database, *tables)
        return {str(row[0]) for row in found}

    def jobs(self) -> list[str]:
        return [str(row[0]) for row in self.rows("SELECT DISTINCT job FROM {} ORDER BY job")]


class JobLedgerMissing(StarRocksSinkError):
    """Raised by `where` when the ledger of the job cannot be read because it does not exist."""

    code = "no_ledger"
    summary = "The database has no ledger."
    hint = "Check --database; a job with at-least-once delivery has no ledger."


class UnknownJob(StarRocksSinkError):
    """Raised by `where` and `status`; the message lists the jobs."""

    code = "unknown_job"
    summary = "The ledger has no rows of the job."
    hint = "Check --job: it is the option `job`, by default query-<id of the query>."

    @classmethod
    def among(cls, job: str, database: str, jobs: Sequence[str]) -> UnknownJob:
        """The error for `job`; the ledger has only `jobs`."""
        known = f"Its jobs are: {', '.join(jobs)}." if jobs else "It has no jobs."
        return cls(f"The ledger of {database} has no rows of the job {job}. {known}")
