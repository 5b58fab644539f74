"""Carries out the changes of tables between two StarRocks transactions, and waits until each is visible.

The plan is made again from the server's lists of columns after each step. So it makes no difference who has made a
change: this driver, an earlier run that ended after its ALTER, or another driver. StarRocks makes some changes in the
background and refuses others meanwhile: a change under way is waited for, also one that another client has asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.coordinator.model import FILLED, MissingColumns
from starrocks_txn_sink.errors import QueryFailed, QueryRefused, StarRocksSinkError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.table_rules import NO_RULES, RuleSet
from starrocks_txn_sink.protocol.ledger import identifier
from starrocks_txn_sink.sink.schema.plan import SchemaChange, plan_missing
from starrocks_txn_sink.sink.session import Session, advising
from starrocks_txn_sink.sink.typed.tables import Columns, Tables, required_columns, table_columns, table_models
from starrocks_txn_sink.sql.connection import LeaderConnection
from starrocks_txn_sink.telemetry import Event, Listener, get_logger

_POLL_SECONDS = 0.5  # a change without a rewrite of rows is there at once, another one takes seconds to hours
_GRACE_SECONDS = 2.0  # for a change whose reply was lost
_UNFILLED = "Take a snapshot of the table, or UPDATE such rows at the source."
_LEAVE = ". Or declare the column's type, in `types` of the table's options: then the sink leaves the column as it is."
_ENDED = frozenset(("FINISHED", "CANCELLED"))

Plan = Callable[[Columns], Sequence[SchemaChange]]
"""The changes that tables with these columns still need."""

_log = get_logger("sink")


@dataclass(frozen=True, slots=True)
class AlterJob:
    """The latest change of a table's columns that StarRocks makes, or made, in the background."""

    number: str
    state: str
    message: str = ""

    @property
    def running(self) -> bool:
        return self.state not in _ENDED


class TablesPort(Protocol):
    """The server's side of a change."""

    def read(self) -> Columns:
        """The columns of the tables in question; raises QueryFailed or QueryRefused."""

    def execute(self, change: SchemaChange) -> None:
        """Run the statement; raises QueryFailed or QueryRefused."""

    def latest_job(self, table: str) -> AlterJob | None:
        """The latest change of the table in the background; None if there was none."""


def carry_out(plan: Plan, port: TablesPort, deadline: Deadline, listener: Callable[[SchemaChange], None]) -> Columns:
    """Make the planned changes one after the other until none is left; returns the columns afterwards.

    An error of a statement does not count if its change is visible within seconds: the reply may be lost, or another
    driver may have made the change. Raises that error otherwise, QueryRefused for a change that StarRocks has
    cancelled, DeadlineExceeded for one that does not become visible, and the errors of `plan`.
    """
    while changes := plan(columns := port.read()):
        change = changes[0]
        before = _wait_for_job(change.table, port, deadline)
        if change not in plan(port.read()):
            continue
        failure: StarRocksSinkError | None = None
        try:
            port.execute(change)
        except (QueryFailed, QueryRefused) as error:
            failure = error
        else:
            listener(change)
        _wait_for(change, plan, port, deadline, before, failure)
    return columns


def _wait_for(
    change: SchemaChange,
    plan: Plan,
    port: TablesPort,
    deadline: Deadline,
    before: AlterJob | None,
    failure: StarRocksSinkError | None,
) -> None:
    """Wait until `change` is planned no more; `before` was the table's latest job before the statement."""
    grace = deadline.earlier(_GRACE_SECONDS)
    while True:
        job = _wait_for_job(change.table, port, deadline)
        if change not in plan(port.read()):
            return
        if job is not None and job != before and job.state == "CANCELLED" and failure is None:
            raise QueryRefused(
                f"StarRocks has cancelled the change of table {change.table}.",
                hint=f"SHOW ALTER TABLE COLUMN says why. Run it by hand, or change it: {change.sql}",
            )
        if job != before and failure is not None:
            return  # another change was under way: the plan is made again
        if failure is not None and grace.remaining() <= 0:
            raise failure
        deadline.clock.sleep(deadline.limit(_POLL_SECONDS, _waited_for(change.table)))


def _wait_for_job(table: str, port: TablesPort, deadline: Deadline) -> AlterJob | None:
    """The table's latest job, when it has ended."""
    is_reported = False
    while (job := port.latest_job(table)) is not None and job.running:
        if not is_reported:
            _log.warning("schema.waiting", table=table, job=job.number, state=job.state)
            is_reported = True
        deadline.clock.sleep(deadline.limit(_POLL_SECONDS, _waited_for(table)))
    return job


def _waited_for(table: str) -> str:
    return f"table {table} being altered"


@dataclass(frozen=True, slots=True)
class SqlTables:
    """The `tables` of a database over SQL."""

    connection: LeaderConnection
    options: SinkOptions
    tables: Sequence[str]
    deadline: Deadline

    def read(self) -> Columns:
        return table_columns(self.connection, self.options.database, self.tables, self.deadline)

    def execute(self, change: SchemaChange) -> None:
        with advising(f"Run it by hand, or change it: {change.sql}{_LEAVE if change.widens else ''}"):
            if change.creates:
                replication = self.options.ledger_replication
                self.connection.create_table(change.statement, replication, self.deadline)
            else:
                self.connection.query(change.sql, (), self.deadline)

    def latest_job(self, table: str) -> AlterJob | None:
        sql = f"SHOW ALTER TABLE COLUMN FROM {identifier(self.options.database)} WHERE TableName = %s"
        try:
            rows = self.connection.rows(f"{sql} ORDER BY CreateTime DESC LIMIT 1", (table,), self.deadline)
        except QueryRefused:  # without the privilege to see it, the columns alone show the end of a change
            return None
        jobs = [AlterJob(str(row.get("jobid")), str(row.get("state")).upper(), str(row.get("msg", ""))) for row in rows]
        return jobs[0] if jobs else None


def changed(job: str, change: SchemaChange) -> Event:
    """The event about a statement that was accepted."""
    return Event("schema.changed", {"job": job, "table": change.table, "statement": change.sql})


CreateTables = Callable[[Sequence[str], Callable[[SchemaChange], None], Deadline], None]
"""Creates those of the tables that it can; the function in the middle hears each statement."""


def add_missing(
    options: SinkOptions,
    session: Session,
    listener: Listener,
    missing: MissingColumns,
    deadline: Deadline,
    create: CreateTables | None = None,
    rules: RuleSet = NO_RULES,
) -> None:
    """Give the tables of a session the `missing` columns, and say which statements have done it.

    Tables that are not there are created by `create`, or from their rows and declared keys. The `rules` name histories.
    Raises the errors of `create`, `plan_missing` and `carry_out`.
    """
    for table in missing:
        rules.of(table)  # names its history
    declared = {table: rules.declared(table, options.options_of) for table in missing}
    with contextlib.closing(LeaderConnection(options)) as connection:
        port = SqlTables(connection, options, [*missing], deadline)

        def plan(columns: Columns) -> Sequence[SchemaChange]:
            return plan_missing(options.database, missing, columns, declared)

        unfilled = {table: filled for table in missing if (filled := _filled(missing[table]))}

        def said(change: SchemaChange) -> None:
            listener(changed(session.job, change))
            filled = unfilled.pop(change.table, "")
            # A table that is created has no rows yet, and those of a history stay as they were written.
            if filled and not change.creates and rules.main_of(change.table) == change.table:
                fields = {"job": session.job, "table": change.table, "columns": filled, "advice": _UNFILLED}
                listener(Event("columns.unfilled", fields))

        columns = port.read() if create is not None else {}
        absent = [table for table in missing if not columns.get(table)]
        if create is not None and absent:
            create(absent, said, deadline)
        carry_out(plan, port, deadline, said)
        session.tables = _known_again(session.tables, connection, options, deadline)


def _filled(columns: Mapping[str, Sequence[str]]) -> str:
    """The names of the new columns that the source has filled in rows which it does not send again."""
    return ", ".join(sorted(name for name, words in columns.items() if FILLED in words))


def _known_again(tables: Tables, connection: LeaderConnection, options: SinkOptions, deadline: Deadline) -> Tables:
    models: Mapping[str, str] = table_models(connection, options, deadline)
    required = required_columns(connection, options.database, models, deadline)
    return replace(tables, models=models, required=required)
