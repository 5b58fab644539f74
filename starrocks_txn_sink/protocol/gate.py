"""The gate of a job: a row of the ledger that says whether the job takes rows under this name.

Of the moves that close and open it, see `starrocks_txn_ops.moving`.
"""

from __future__ import annotations

from dataclasses import dataclass

from starrocks_txn_sink.errors import JobMoved
from starrocks_txn_sink.protocol.label import LedgerRequest, Rows, Sql
from starrocks_txn_sink.protocol.ledger import MARKER, table_of, token_row

GATE = "gate"
"""Name of the marker row; its token holds the gate."""
_OPENED = "opened:"
"""Begins the names of marker rows that stay: a move opens a job once, whatever its gate becomes later."""
_CLOSED, _OPEN = "closed", "open"


@dataclass(frozen=True, slots=True)
class Gate:
    """`closed`: the job was moved away, to the job `to` if that is known. `move` is the name of the move."""

    closed: bool
    move: str
    to: str = ""

    @property
    def token(self) -> str:
        """The gate as the marker row has it: `closed` or `open`, the move and the job, between colons."""
        return ":".join((_CLOSED if self.closed else _OPEN, self.move, self.to))

    @classmethod
    def of_token(cls, token: str) -> Gate:
        """The gate that `token` wrote; ValueError for a text of another form."""
        state, move, to = token.split(":")
        return cls(state == _CLOSED, move, to)

    def refusal(self, job: str) -> JobMoved:
        """The error for a writer of `job`, whose gate this is."""
        to = f" to the job {self.to}" if self.to else ""
        back = f"starrocks-txn-sink ledger rename --job {self.to} --to {job}" if self.to else "import its file into it"
        return JobMoved(
            f"The job {job} was moved away{to} (move {self.move}), so nothing is written under its name any more.",
            hint="Start the query with the `job` that it was moved to; if the move has broken off, run its command "
            f"again. To move it back: {back}.",
        )


def gate_row(job: str, gate: Gate, updated_at: str) -> memoryview:
    """The row as a piece of a load body."""
    return token_row(job, MARKER, GATE, gate.token, updated_at)


def opened_row(job: str, move: str, updated_at: str) -> memoryview:
    """The row that says that `move` has opened the job, as a piece of a load body."""
    return token_row(job, MARKER, f"{_OPENED}{move}", move, updated_at)


@dataclass(frozen=True, slots=True)
class ReadGate(LedgerRequest):
    """Read the gate of a job. Result: Gate, or None for a job that was never moved."""

    job: str

    def statement(self, database: str) -> Sql:
        sql = f"SELECT token FROM {table_of(database)} WHERE job = %s AND kind = %s AND name = %s"
        return sql, (self.job, MARKER, GATE)

    def result(self, rows: Rows) -> Gate | None:
        return Gate.of_token(str(rows[0][0])) if rows else None


@dataclass(frozen=True, slots=True)
class ReadOpened(LedgerRequest):
    """Read which jobs of the database a move has opened, also such as went on or were moved since. Result: tuple."""

    move: str

    def statement(self, database: str) -> Sql:
        sql = f"SELECT job FROM {table_of(database)} WHERE kind = %s AND name = %s ORDER BY job"
        return sql, (MARKER, f"{_OPENED}{self.move}")

    def result(self, rows: Rows) -> tuple[str, ...]:
        return tuple(str(row[0]) for row in rows)
