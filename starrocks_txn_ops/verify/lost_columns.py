"""Columns that StarRocks' tables have lost: a repair adds them, with the types that `plan` and `sync` give them.

The types come from the connector's newest messages. The statement adds columns, and changes none that is there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from starrocks_txn_ops.sync.command import newest
from starrocks_txn_ops.sync.settings import Sync
from starrocks_txn_ops.verify.mapping import Comparison
from starrocks_txn_ops.verify.progress import Progress
from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.errors import InputError, StarRocksSinkError
from starrocks_txn_sink.options import SchemaChanges
from starrocks_txn_sink.options.table_rules import DELETED
from starrocks_txn_sink.sink.schema.changes import AlterWait, Plan, SqlTables, carry_out
from starrocks_txn_sink.sink.schema.new_tables import plain_layout
from starrocks_txn_sink.sink.schema.plan import SchemaChange
from starrocks_txn_sink.sink.schema.source_plan import plan_sources
from starrocks_txn_sink.sink.schema.source_tables import sources_of
from starrocks_txn_sink.sink.typed.tables import Columns, table_models
from starrocks_txn_sink.sources.formats.connect_types import SourceTable
from starrocks_txn_sink.sql.connection import LeaderConnection

_ASK_SECONDS: Final = 60.0
_ALTER_SECONDS: Final = 600.0  # as long as `sync` waits at its start
_NO_MESSAGE: Final = (
    "no newest message of the connector has it, so its type is not known. If the connector leaves it out, leave it out "
    "in the file, too: drop in [[rules]]. Else the next change of a row brings it; repair then"
)


@dataclass(slots=True)
class LostColumns:
    """The columns that tables of a file of `sync` lack: `plan` finds their statements, `add` runs them.

    `changes` has the statement by table, `left` by table why columns stay away.
    """

    sync: Sync
    connection: LeaderConnection
    clock: Clock
    progress: Progress
    changes: dict[str, SchemaChange] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    _plans: dict[str, Plan] = field(default_factory=dict)

    def plan(self, lacks: Mapping[str, Collection[str]]) -> None:
        """Find the statements that add the columns that each of the tables `lacks`; asks Kafka and StarRocks."""
        if not lacks:
            return
        try:
            self._plan(lacks, Deadline.after(_ASK_SECONDS, self.clock))
        except StarRocksSinkError as error:
            self.left |= dict.fromkeys(lacks.keys() - self.changes.keys(), _text(error))

    def _plan(self, lacks: Mapping[str, Collection[str]], deadline: Deadline) -> None:
        options, assembly = self.sync.options, self.sync.describing
        models = table_models(self.connection, options, deadline)
        messages = newest(self.sync, deadline.remaining())
        sources, _ = sources_of(messages, self.sync.routes, [type(assembly)], assembly.registry, described=True)
        for table, names in lacks.items():
            plan = self._plan_of(table, sources.get(table, ()), models)
            try:
                changes = plan(SqlTables(self.connection, options, [table], deadline).read())
            except InputError as refused:
                self.left[table] = refused.message
                continue
            added = {name for change in changes for name in change.adds}
            if unknown := [name for name in dict.fromkeys(names) if name not in added]:
                self.left[table] = f"{', '.join(unknown)}: {_NO_MESSAGE}"
            for change in changes:  # one, or none
                if options.schema_changes is SchemaChanges.APPLY:
                    self.changes[table], self._plans[table] = change, plan
                else:
                    setting = SchemaChanges(options.schema_changes).value
                    self.left[table] = f'schema_changes is "{setting}". Run it by hand, and repair then: {change.sql}'

    def _plan_of(self, table: str, sources: Sequence[SourceTable], models: Mapping[str, str]) -> Plan:
        """The plan that adds a table's columns; it raises InputError with what is against it."""
        options = self.sync.options

        def plan(columns: Columns) -> Sequence[SchemaChange]:
            declared = options.options_of(table)
            as_they_are = {column.name: str(column.type) for column in columns.get(table, ())}
            declared = replace(declared, types={**declared.types, **as_they_are})  # so none of them is changed
            found = plan_sources(
                options.database,
                {table: sources} if sources else {},
                columns,
                {**models},
                {table: declared},
                plain_layout,
                self.sync.assembly.rule_set,
                models.keys() - {table},
            )
            for refusal in found.refusals:
                if refusal.table == table:
                    raise InputError(f"{refusal.reason}. {refusal.ways}")
            return [change for change in found.changes if change.table == table and change.adds]

        return plan

    def lines(self) -> Iterator[str]:
        """What a repair would do, or leave, in one line for each table."""
        for table, change in self.changes.items():
            yield f"{table}: {change.sql}; then all of its rows are compared again, and those that differ are written"

    def mends(self, its: Comparison) -> bool:
        """Whether rows of a comparison can be written: a table that marks deletes needs its column for that."""
        return DELETED not in its.lacks or its.table in self.changes

    def added(self, table: str) -> tuple[str, ...]:
        """The columns that a table has got."""
        return self.changes[table].adds if table in self.changes else ()

    def add(self) -> None:
        """Run the statements, and wait until the columns are there; `changes` keeps those that were."""
        for table in [*self.changes]:
            deadline = Deadline.after(_ALTER_SECONDS, self.clock)
            port = SqlTables(self.connection, self.sync.options, [table], deadline)
            try:
                carry_out(self._plans[table], port, deadline, self._told)
            except StarRocksSinkError as error:
                del self.changes[table]
                self.left[table] = _text(error)

    def _told(self, news: SchemaChange | AlterWait) -> None:
        if isinstance(news, SchemaChange):
            self.progress.says(f"{news.sql}")
        elif not news.ended:
            self.progress.says(f"StarRocks changes table {news.table}; waiting for it since {news.seconds:.0f} s.")


def _text(error: StarRocksSinkError) -> str:
    return f"{error.message} {error.advice}".strip()
