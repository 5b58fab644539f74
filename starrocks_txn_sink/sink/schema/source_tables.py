"""The tables of a source on the server: planned from its messages, compared with what is there, and created."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import InputError, QueryRefused
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.table_rules import NO_RULES, RuleSet, RulesOfTable, Tableless, TableRules, check_rules
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.sink.assembly import Assembly, message_formats
from starrocks_txn_sink.sink.schema.changes import AlterWait, SqlTables, Told, carry_out
from starrocks_txn_sink.sink.schema.plan import SchemaChange, TableLayout
from starrocks_txn_sink.sink.schema.source_plan import Refusal, SourcePlan, plan_sources
from starrocks_txn_sink.sink.typed.tables import Columns, table_columns, table_models
from starrocks_txn_sink.sources.formats.connect_types import SourceTable
from starrocks_txn_sink.sources.formats.registered import Schemas, as_json
from starrocks_txn_sink.sources.formats.tables import OWN_NAME, TableMapping, TableRule
from starrocks_txn_sink.sql.connection import LeaderConnection, count_alive

_SHOWN: Final = 5  # columns in a line
_MOST_REPLICAS: Final = 3  # StarRocks' own default

KeyedMessage = tuple[bytes | None, bytes | None]
"""Key and value of a message; the value of a tombstone is None."""


@dataclass(slots=True)
class TablePlan:
    """The statements that give a database the tables of a source (`plan_tables`).

    `notes` say by table why a type is not the closest one, `left_out` names source tables that the rule does not know.
    With `refusals` nothing is applied. `tableless` are the rules that are for no table yet. With `further` tables the
    rules may be for tables of the database besides.
    Unless it `alters`, `apply` creates tables and leaves those that are there as they are.
    """

    options: SinkOptions
    sources: dict[str, list[SourceTable]]
    left_out: list[str] = field(default_factory=list)
    layout_of: Callable[[str], TableLayout] = lambda _: TableLayout()
    replication: int | None = None
    plan: SourcePlan = field(default_factory=SourcePlan)
    rules: RuleSet = NO_RULES
    further: bool = False
    alters: bool = True
    tableless: list[Tableless] = field(default_factory=list)

    @property
    def statements(self) -> list[str]:
        """The SQL of the plan's changes, in the order in which `apply` runs them."""
        return [change.statement(self.replication) for change in self.plan.changes]

    @property
    def notes(self) -> dict[str, list[str]]:
        """By table, why the types of columns are not the closest ones."""
        return self.plan.notes

    @property
    def limits(self) -> list[str]:
        """Which values of the source no column holds, with the columns, and what becomes of their rows."""
        lines = [f"{values}: {_few(columns)}" for values, columns in self.plan.limits.items()]
        if not lines:
            return []
        become = (
            "source transactions with such a value are set aside, as on_bad_rows says"
            if self.options.quarantines
            else 'a row with such a value stops the query; on_bad_rows = "quarantine" sets its source transaction aside'
        )
        return [*(f"no column holds {line}" for line in lines), become]

    @property
    def refusals(self) -> list[Refusal]:
        """What the plan cannot do; with any, `apply` raises InputError and runs nothing."""
        return self.plan.refusals

    def apply(self, printer: Callable[[str], None] = lambda _: None, seconds: float = 600.0) -> None:
        """Run the statements in their order, and call `printer` with each that was run. A repetition changes nothing.

        Each change is waited for, within `seconds` for all. Raises InputError for a plan with refusals, and the errors
        of the server.
        """

        def told(news: SchemaChange | AlterWait) -> None:
            if isinstance(news, SchemaChange):
                printer(news.statement(self.replication))

        self.carry_out(told, seconds)

    def carry_out(self, listener: Told, seconds: float) -> None:
        """As `apply`; `listener` hears the changes, and the waits for them."""
        if self.refusals:
            raise InputError(f"Nothing was run: {self.refusals[0]}", hint="plan lists all refusals.")
        options = replace(self.options, ledger_replication=self.replication)
        deadline = Deadline.after(seconds, SystemClock())
        with contextlib.closing(LeaderConnection(options)) as connection:
            models = table_models(connection, options, deadline)

            def plan(columns: Columns) -> Sequence[SchemaChange]:
                changes = self._plan(columns, models).changes
                return [change for change in changes if change.creates or self.alters]

            port = SqlTables(connection, options, self._tables, deadline)
            carry_out(plan, port, deadline, listener)

    def make(self, seconds: float) -> None:
        """Make the plan, against the server's tables if there is a `query_url`; raises the errors of the server."""
        if self.options.query_url is None:
            self.plan = self._plan({}, {})
            return
        deadline = Deadline.after(seconds, SystemClock())
        with contextlib.closing(LeaderConnection(self.options)) as connection:
            models = table_models(connection, self.options, deadline)
            columns = table_columns(connection, self.options.database, self._tables, deadline)
            self.replication = self.options.ledger_replication or _replication(connection, deadline)
        self.plan = self._plan(columns, models)

    @property
    def written(self) -> dict[str, list[SourceTable]]:
        """The tables that get rows, with those of the source."""
        tables: dict[str, list[SourceTable]] = {}
        for table, sources in self.sources.items():
            of_table = self.rules.of(table) or RulesOfTable(table)
            tables |= dict.fromkeys(of_table.targets, sources)
        return tables

    @property
    def _tables(self) -> list[str]:
        """The tables of the plan, and their histories."""
        return [*dict.fromkeys([*self.sources, *self.written])]

    def _plan(self, columns: Columns, models: dict[str, str]) -> SourcePlan:
        declared = {table: self.options.options_of(table) for table in self._tables}
        extra = models.keys() - self.sources.keys() if self.further else ()
        plan = plan_sources(
            self.options.database, self.sources, columns, models, declared, self.layout_of, self.rules, extra
        )
        self.tableless = [*self.rules.tableless({**self.sources, **models})]
        plan.refusals.extend(Refusal(rule.near, rule.reason, rule.ways) for rule in self.tableless if rule.near)
        return plan


def _few(columns: Sequence[str]) -> str:
    rest = len(columns) - _SHOWN
    return ", ".join(columns[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


@suggests_arguments
def plan_tables(
    options: SinkOptions,
    messages: Iterable[KeyedMessage],
    *,
    tables: TableRule = OWN_NAME,
    buckets: int | None = None,
    rules: Sequence[TableRules] = (),
    registry: Schemas | None = None,
    seconds: float = 60.0,
) -> TablePlan:
    """The statements for the tables that Debezium's messages describe with their schemas, or Canal's with `mysqlType`.

    Args:
        options: The server and the database; in `tables` keys and types that win over the source's. Without `query_url`
            nothing is compared, as if no table existed. `ledger_replication` is the number of replicas of new tables,
            by default as many as backends are alive, up to three.
        messages: Key and value of each message, as bytes. The first change of a source table counts; messages that are
            no changes of rows are passed over.
        tables: The StarRocks table of each source table, as in DebeziumAssembly.
        buckets: The number of each new table's buckets; None leaves it to StarRocks.
        rules: What becomes of columns, as in DebeziumAssembly.
        registry: The schema registry (SchemaRegistry) whose schemas values and keys have; None for JSON without it.
        seconds: The time for all questions to the server.

    Returns:
        A plan with `statements`, `notes` and `refusals`; its method `apply` runs the statements.

    Raises:
        InputError: A change has no schema, or no message is a change.
        StarRocksSinkError: The server does not answer, or refuses a question.
    """
    sources, left_out = sources_of(messages, tables, [*message_formats().values()], registry)
    layout = TableLayout(buckets)
    check_rules(rules)
    rule_set = RuleSet(tuple(rules))
    plan = TablePlan(options, sources, left_out, lambda _: layout, options.ledger_replication, rules=rule_set)
    plan.make(seconds)
    return plan


def sources_of(
    messages: Iterable[KeyedMessage],
    tables: TableRule,
    formats: Sequence[type[Assembly]],
    registry: Schemas | None = None,
    *,
    described: bool = False,
) -> tuple[dict[str, list[SourceTable]], list[str]]:
    """The source's tables of messages by the StarRocks table of the rule, and those that the rule leaves out.

    The first of the `formats` that knows a message says its table.

    Raises InputError as `plan_tables`; only those that are `described` by a message, perhaps none, never do.
    """
    source_tables: dict[tuple[str, str], SourceTable] = {}
    for key, value in messages:
        try:
            text = as_json(value, registry)
            source = _described(formats, as_json(key, registry), text) if text is not None else None
        except InputError:
            if not described:
                raise
            continue
        if source is not None:
            source_tables.setdefault((source.connector, source.collection), source)
    if not source_tables and not described:
        raise InputError(
            "None of the messages is a change of a row.",
            hint="Name the topics of tables, and plan once each has a message; a snapshot writes some.",
        )
    sources: dict[str, list[SourceTable]] = {}
    left_out: list[str] = []
    collections = pa.array([collection for _, collection in source_tables], pa.string())
    _, targets = TableMapping(tables, "skip").tables_of(collections)
    for source, table in zip(source_tables.values(), targets.to_pylist(), strict=True):
        if table is None:
            left_out += [] if source.collection in left_out else [source.collection]
        else:
            sources.setdefault(table, []).append(source)
    return sources, left_out


def _described(formats: Iterable[type[Assembly]], key: bytes | None, value: bytes) -> SourceTable | None:
    return next((table for kind in formats if (table := kind.described(key, value)) is not None), None)


def _replication(connection: LeaderConnection, deadline: Deadline) -> int | None:
    """As many replicas as backends are alive, up to three; None (the server's default) if the user may not ask."""
    try:
        alive = count_alive(connection.rows("SHOW BACKENDS", (), deadline))
    except QueryRefused:
        return None
    return min(_MOST_REPLICAS, alive) or None
