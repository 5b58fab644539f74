"""The progress of a source's first snapshot, as marks in the ledger: a row for each table of the source.

The rows that the source has read for its snapshot say which is a table's first and last, and which is the last of all.
A mark is loaded under the label of the rows that it is about, so both become visible together.

A mark's name is `connector:collection`, and `connector:` alone for the whole snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from starrocks_txn_sink.protocol.label import LedgerRequest, Rows, Sql
from starrocks_txn_sink.protocol.ledger import table_of, token_row

SNAPSHOT: Final = "snapshot"
"""Kind of the rows; the token is the mark."""

ONE: Final = "one"
"""The first row of the table, and no other one: of the first table Debezium does not mark an only row as its last."""
READING: Final = "reading"
MORE: Final = "more"
"""Rows that are neither first nor last. They do not reopen a table: another partition of its topic may lag."""
OVER: Final = "over"
SPREAD: Final = "spread"
"""Rows of several partitions of a topic: that of the last row may be ahead of the others, so no row shows the end."""

Marks = Mapping[str, str]


def whole(connector: str) -> str:
    """The name of the mark for all tables of `connector`."""
    return f"{connector}:"


def then(earlier: Marks, later: Marks) -> dict[str, str]:
    """The marks after `later` ones."""
    return {**earlier, **{name: _then(earlier.get(name), mark) for name, mark in later.items()}}


def beside(earlier: Marks, later: Marks) -> dict[str, str]:
    """The marks after `later` ones of the same micro-batch: topics have no order, so the first row may follow the last.

    So an end of the whole snapshot stays one.
    """
    ends = {name: OVER for name, mark in earlier.items() if name == whole(name.partition(":")[0]) and mark == OVER}
    return then(earlier, later) | ends


def _then(earlier: str | None, later: str) -> str:
    if earlier == SPREAD and later in (MORE, OVER):
        return SPREAD
    if later != MORE or earlier is None:
        return later
    return earlier if earlier in (OVER, MORE) else READING


def joined(marks: Iterable[Marks]) -> dict[str, str]:
    """The marks of lanes that have read at the same time."""
    order = (ONE, READING, MORE, OVER, SPREAD)
    pairs = sorted((order.index(mark), name) for of_lane in marks for name, mark in of_lane.items())
    result: dict[str, str] = {}
    for rank, name in pairs:
        result = then(result, {name: order[rank]})
    return result


def mark_row(job: str, name: str, mark: str, updated_at: str) -> memoryview:
    """A mark as a piece of a load body of the ledger."""
    return token_row(job, SNAPSHOT, name, mark, updated_at)


@dataclass(frozen=True, slots=True)
class ReadMarks(LedgerRequest):
    """Read the marks of a job. Result: Marks."""

    job: str

    def statement(self, database: str) -> Sql:
        return f"SELECT name, token FROM {table_of(database)} WHERE job = %s AND kind = %s", (self.job, SNAPSHOT)

    def result(self, rows: Rows) -> dict[str, str]:
        return {str(name): str(mark) for name, mark in rows}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a snapshot is: of `tables` that have begun `over` are visible whole, and of `unknown` ones nobody knows.

    `ended`: the last row of all is visible, too.
    """

    tables: int = 0
    over: int = 0
    ended: bool = False
    unknown: int = 0

    @classmethod
    def of(cls, marks: Marks) -> Progress:
        """The progress of all connectors of a job. Without a mark there was no snapshot."""
        ends = {name: mark == OVER for name, mark in marks.items() if name == whole(name.partition(":")[0])}
        tables = {name: mark for name, mark in marks.items() if name not in ends}
        over = sum(
            mark == OVER or (mark == ONE and ends.get(whole(name.partition(":")[0]), False))
            for name, mark in tables.items()
        )
        unknown = sum(mark == SPREAD for mark in tables.values())
        return cls(len(tables), over, bool(ends) and all(ends.values()) and over == len(tables), unknown)

    @property
    def text(self) -> str:
        """As `status` says it; "" without a snapshot."""
        if not self.tables:
            return ""
        if self.ended:
            return f"over, {self.tables} tables"
        tables = self.tables - self.unknown
        note = "; its last row is not visible yet" if self.over == self.tables else ""
        whose = "whose topics have several partitions"
        if not tables:
            return f"not known of {self.unknown} tables, {whose}"
        if self.unknown:
            note = f"; not known of {self.unknown}, {whose}"
        return f"{self.over} of {tables} tables{note}"
