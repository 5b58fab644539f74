"""Tables of a source that appear while a query runs: created from the newest messages of their topics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sink.assembly import DebeziumAssembly
from starrocks_txn_sink.sink.schema.plan import SchemaChange, TableLayout
from starrocks_txn_sink.sink.schema.source_tables import TablePlan, sources_of

_KAFKA_SECONDS: Final = 60.0  # for a few messages of each partition; a lane's round waits meanwhile

LayoutOf = Callable[[str], TableLayout]
"""What a new table for a table of the source gets beside its columns."""


def plain_layout(_collection: str) -> TableLayout:
    return TableLayout()


@dataclass(frozen=True, slots=True)
class NewTables:
    """Creates tables for the rows of `topics`; `config` is that of a Kafka client."""

    options: SinkOptions
    assembly: DebeziumAssembly
    topics: Collection[str]
    config: Mapping[str, Any] = field(repr=False)
    layout_of: LayoutOf = plain_layout

    def create(self, tables: Collection[str], said: Callable[[SchemaChange], None], deadline: Deadline) -> None:
        """Create those of the `tables` that a message describes, and their histories; `said` hears each statement.

        Raises InputError for a table that cannot be created from its messages, and the errors of Kafka and the server.
        """
        from starrocks_txn_sink.sources.kafka.newest import newest_messages  # the extra kafka

        config = {**self.config, "group.id": "starrocks-txn-sink"}  # required; no offset is committed
        seconds = deadline.limit(_KAFKA_SECONDS, "the newest messages of new tables")
        messages = newest_messages(config, seconds, topics=self.topics)
        sources, _ = sources_of(messages, self.assembly.tables, self.assembly.registry, described=True)
        rules = self.assembly.rule_set
        for table in sources:
            rules.of(table)
        mains = {rules.main_of(table) for table in tables}
        wanted = {table: of_source for table, of_source in sources.items() if table in mains}
        if not wanted:
            return  # what is said of other rows without a table holds
        layouts = {table: self.layout_of(of_source[0].collection) for table, of_source in wanted.items()}
        plan = TablePlan(self.options, wanted, layout_of=layouts.__getitem__, rules=rules, further=True)
        plan.make(deadline.remaining())
        if plan.refusals:
            text = f"A new table of the source cannot be created. {plan.refusals[0]}"
            raise InputError(text, hint="Then start the query again.")
        plan.carry_out(said, deadline.remaining())
