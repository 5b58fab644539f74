"""Carries out the changes of tables between two StarRocks transactions, and waits until each is visible.

The plan is made again from the server's lists of columns after each step. So it makes no difference who has made a
change: this driver, an earlier run that ended after its ALTER, or another driver. StarRocks adds columns at once, and
changes types in the background: two ticks of its scheduler, 20 s on 4.1.1, and a rewrite of the table (wire contract
10.15). It refuses others meanwhile: a change under way is waited for, also one that another client has asked for.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Protocol

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.coordinator.model import ColumnNeeds, MissingColumns
from starrocks_txn_sink.errors import DeadlineExceeded, QueryFailed, QueryRefused, StarRocksSinkError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.table_rules import NO_RULES, RuleSet
from starrocks_txn_sink.protocol.ledger import identifier
from starrocks_txn_sink.sink.failures import LOG_SECONDS
from starrocks_txn_sink.sink.schema.plan import SchemaChange, plan_missing
from starrocks_txn_sink.sink.session import Session, advising
from starrocks_txn_sink.sink.typed.tables import Columns, Tables, required_columns, table_columns, table_models
from starrocks_txn_sink.sql.connection import LeaderConnection
from starrocks_txn_sink.telemetry import Event, Listener

_POLL_SECONDS = 0.5  # a change without a rewrite of rows is there at once, another one takes 20 s to hours
_GRACE_SECONDS = 2.0  # for a change whose reply was lost
_UNFILLED = "Run `starrocks-txn-sink resync` for the table, take a snapshot of it, or UPDATE such rows at the source."
_LEAVE = ". Or declare the column's type, in `types` of the table's options: then the sink leaves the column as it is."
_ENDED = frozenset(("FINISHED", "CANCELLED"))

Plan = Callable[[Columns], Sequence[SchemaChange]]
"""The changes that tables with these columns still need."""


@dataclass(frozen=True, slots=True)
class AlterJob:
    """The latest change of a table's columns that StarRocks makes, or made, in the background."""

    number: str
    state: str
    message: str = ""

    @property
    def running(self) -> bool:
        """Whether StarRocks is still at it; meanwhile it refuses other changes of the table."""
        return self.state not in _ENDED


class TablesPort(Protocol):
    """The server's side of a change."""

    def read(self) -> Columns:
        """The columns of the tables in question; raises QueryFailed or QueryRefused."""

    def execute(self, change: SchemaChange) -> None:
        """Run the statement; raises QueryFailed or QueryRefused."""

    def latest_job(self, table: str) -> AlterJob | None:
        """The latest change of the table in the background; None if there was none."""


@dataclass(frozen=True, slots=True)
class AlterWait:
    """A change of a table that StarRocks makes in the background, waited for since `seconds`; `job` None: not listed.

    `ended`: it is visible.
    """

    table: str
    seconds: float
    job: AlterJob | None = None
    ended: bool = False

    def event(self, job: str) -> Event:
        """The event about the wait of the sink's `job`."""
        fields = {"job": job, "table": self.table, "seconds": self.seconds}
        if self.ended:
            return Event("schema.waited", fields)
        listed = {} if self.job is None else {"alter": self.job.number, "state": self.job.state}
        return Event("schema.waiting", {**fields, **listed})


Told = Callable[[SchemaChange | AlterWait], None]
"""Hears each statement that was accepted, and of each wait for a change in the background."""


def carry_out(plan: Plan, port: TablesPort, deadline: Deadline, listener: Told) -> Columns:
    """Make the planned changes, of all tables at the same time, until none is left; returns the columns afterwards.

    An error of a statement does not count if its change is visible within seconds: the reply may be lost, or another
    driver may have made the change. Raises that error otherwise, QueryRefused for a change that StarRocks has
    cancelled, DeadlineExceeded for one that does not become visible, and the errors of `plan`.
    """
    alterations: dict[str, _Alteration] = {}
    while True:
        for alteration in alterations.values():
            alteration.check_deadline()
        columns = port.read()
        changes = {change.table: change for change in plan(columns)}
        for table in alterations.keys() - changes.keys():
            alterations.pop(table).end()
        if not changes:
            return columns
        due = []
        for table, change in changes.items():
            alteration = alterations.setdefault(table, _Alteration(table, deadline, listener))
            if alteration.is_due(change, port.latest_job(table)):
                due.append(change)
        planned = plan(port.read()) if due else ()  # what was under way may have been the same change
        for change in due:
            if change in planned:
                alterations[change.table].begin(change, port)
        if not due:
            deadline.clock.sleep(min(_POLL_SECONDS, max(0.0, deadline.remaining())))


@dataclass(slots=True)
class _Alteration:
    """The change of one table: its statement, and the wait for its end, or for that of a change before it."""

    table: str
    deadline: Deadline
    listener: Told
    change: SchemaChange | None = None  # whose statement was run
    before: AlterJob | None = None  # the table's latest job before that statement
    job: AlterJob | None = None
    failure: StarRocksSinkError | None = None
    grace: Deadline = field(init=False)
    since: float = field(init=False)
    told: AlterJob | None = None
    told_at: float = -math.inf

    def __post_init__(self) -> None:
        self.grace, self.since = self.deadline, self.deadline.clock.monotonic()

    def check_deadline(self) -> None:
        if self.deadline.expired():
            job_text = "" if self.job is None else f" (job {self.job.number}, {self.job.state})"
            raise DeadlineExceeded(
                f"The batch's deadline passed before the ALTER of table {self.table}{job_text} was done.",
                hint="StarRocks goes on with it, and the next try waits for it: see SHOW ALTER TABLE COLUMN. For a "
                "large table raise batch_deadline.",
                table=self.table,
            )

    def is_due(self, change: SchemaChange, job: AlterJob | None) -> bool:
        """Whether the statement of `change` is to be run now; `job` is the table's latest. Raises as `carry_out`."""
        self.job = job
        if job is not None and job.running:
            self._tell()
            return False
        if self.change != change:
            return True
        if job is not None and job != self.before:
            if self.failure is not None:
                return True  # another change was under way, and was refused with this statement
            if job.state == "CANCELLED":
                raise QueryRefused(
                    f"StarRocks has cancelled the change of table {change.table}.",
                    hint=f"SHOW ALTER TABLE COLUMN says why. Run it by hand, or change it: {change.sql}",
                )
        if self.failure is None:
            self._tell()
        elif self.grace.expired():
            raise self.failure
        return False

    def begin(self, change: SchemaChange, port: TablesPort) -> None:
        """Run the statement of `change`."""
        self.change, self.before, self.failure = change, self.job, None
        self.grace = self.deadline.earlier(_GRACE_SECONDS)
        try:
            port.execute(change)
        except (QueryFailed, QueryRefused) as error:
            self.failure = error
        else:
            self.listener(change)

    def end(self) -> None:
        """The change is visible."""
        if self.told_at > -math.inf:
            self.listener(AlterWait(self.table, self._seconds, self.told, ended=True))

    @property
    def _seconds(self) -> float:
        return self.deadline.clock.monotonic() - self.since

    def _tell(self) -> None:
        """Tell the listener of the wait: when it begins, of each state of the job, and about every LOG_SECONDS."""
        now = self.deadline.clock.monotonic()
        if now - self.told_at >= LOG_SECONDS or self.job != self.told:
            self.listener(AlterWait(self.table, self._seconds, self.job))
            self.told, self.told_at = self.job, now


@dataclass(frozen=True, slots=True)
class SqlTables:
    """The `tables` of a database over SQL."""

    connection: LeaderConnection
    options: SinkOptions
    tables: Sequence[str]
    deadline: Deadline

    def read(self) -> Columns:
        """The columns of `tables` in their order; a missing table is left out. See TablesPort for errors."""
        return table_columns(self.connection, self.options.database, self.tables, self.deadline)

    def execute(self, change: SchemaChange) -> None:
        """Run the statement of `change`, which the advice of a QueryRefused then names."""
        with advising(f"Run it by hand, or change it: {change.sql}{_LEAVE if change.widens else ''}"):
            if change.creates:
                replication = self.options.ledger_replication
                self.connection.create_table(change.statement, replication, self.deadline)
            else:
                self.connection.query(change.sql, (), self.deadline)

    def latest_job(self, table: str) -> AlterJob | None:
        """The newest change, by SHOW ALTER TABLE COLUMN; None too if the user may not see it. Raises QueryFailed."""
        sql = f"SHOW ALTER TABLE COLUMN FROM {identifier(self.options.database)} WHERE TableName = %s"
        try:
            rows = self.connection.rows(f"{sql} ORDER BY CreateTime DESC LIMIT 1", (table,), self.deadline)
        except QueryRefused:  # without the privilege to see it, the columns alone show the end of a change
            return None
        jobs = [AlterJob(str(row.get("jobid")), str(row.get("state")).upper(), str(row.get("msg", ""))) for row in rows]
        return jobs[0] if jobs else None


def changed(job: str, news: SchemaChange | AlterWait) -> Event:
    """The event about a statement that was accepted, or about a wait."""
    if isinstance(news, AlterWait):
        return news.event(job)
    return Event("schema.changed", {"job": job, "table": news.table, "statement": news.sql})


CreateTables = Callable[[Sequence[str], Told, Deadline], None]
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

        def said(change: SchemaChange | AlterWait) -> None:
            listener(changed(session.job, change))
            # A table that is created adds none: it has no rows yet. Those of a history stay as they were written.
            if isinstance(change, AlterWait) or rules.main_of(change.table) != change.table:
                return
            needs = {name: needs for name, needs in missing.get(change.table, {}).items() if name in change.adds}
            if filled := _filled(needs, session.columns_before(change.table)):
                fields = {"job": session.job, "table": change.table, "columns": filled, "advice": _UNFILLED}
                listener(Event("columns.unfilled", fields))

        columns = port.read() if create is not None else {}
        absent = [table for table in missing if not columns.get(table)]
        if create is not None and absent:
            create(absent, said, deadline)
        carry_out(plan, port, deadline, said)
        session.know_tables(_known_again(session.tables, connection, options, deadline), missing)


def _filled(columns: Mapping[str, ColumnNeeds], earlier: Set[str]) -> str:
    """The names of the new columns that the source has filled in rows which it does not send again.

    Those that the table had `earlier` were dropped with their values.
    """
    return ", ".join(sorted(name for name, needs in columns.items() if needs.filled or name in earlier))


def _known_again(tables: Tables, connection: LeaderConnection, options: SinkOptions, deadline: Deadline) -> Tables:
    models: Mapping[str, str] = table_models(connection, options, deadline)
    required = required_columns(connection, options.database, models, deadline)
    return replace(tables, models=models, required=required)
