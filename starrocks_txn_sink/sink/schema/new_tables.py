"""Tables of a source that appear while a query runs: created from the newest messages of their topics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.errors import InputError, ServerRefused, StarRocksSinkError, advise
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.refusals import NO_TABLE
from starrocks_txn_sink.sink.assembly import Assembly
from starrocks_txn_sink.sink.schema.changes import Told
from starrocks_txn_sink.sink.schema.plan import TableLayout
from starrocks_txn_sink.sink.schema.source_tables import TablePlan, sources_of
from starrocks_txn_sink.writer.messages import attached_report

_KAFKA_SECONDS: Final = 60.0  # for a few messages of each partition; a lane's round waits meanwhile

LayoutOf = Callable[[str], TableLayout]
"""What a new table for a table of the source gets beside its columns."""


def plain_layout(_collection: str) -> TableLayout:
    """`LayoutOf` that leaves everything to StarRocks."""
    return TableLayout()


@dataclass(frozen=True, slots=True)
class NewTables:
    """Creates tables for the rows of `topics`; `config` is that of a Kafka client."""

    options: SinkOptions
    assembly: Assembly
    topics: Collection[str]
    config: Mapping[str, Any] = field(repr=False)
    layout_of: LayoutOf = plain_layout

    def create(self, tables: Collection[str], listener: Told, deadline: Deadline) -> None:
        """Create those of the `tables` that a message describes, and their histories; `listener` hears each statement.

        Raises InputError for a table that cannot be created from its messages, and the errors of Kafka and the server.
        """
        plan = self._plan(tables, deadline)
        if plan is None:
            return  # what is said of other rows without a table holds
        if plan.refusals:
            text = f"A new table of the source cannot be created. {plan.refusals[0]}"
            raise InputError(text, hint="Then start the query again.")
        plan.carry_out(listener, deadline.remaining())

    def advice(self, table: str, deadline: Deadline) -> str:
        """What creates `table`; "" if no message describes it."""
        plan = self._plan([table], deadline)
        if plan is None:
            return ""
        if plan.refusals:
            return f"No statement creates it. {plan.refusals[0]}"
        if not plan.statements:
            return ""  # it has come meanwhile
        return f"Run {'; '.join(plan.statements)}; or set schema_changes='apply', which does it."

    def _plan(self, tables: Collection[str], deadline: Deadline) -> TablePlan | None:
        """The plan of those of the `tables` that a message describes; None if there is none.

        Raises the errors of Kafka and the server.
        """
        from starrocks_txn_sink.sources.kafka.newest import newest_messages  # the extra kafka

        config = {**self.config, "group.id": "starrocks-txn-sink"}  # required; no offset is committed
        seconds = deadline.limit(_KAFKA_SECONDS, "the newest messages of new tables")
        messages = newest_messages(config, seconds, topics=self.topics, shared=self.assembly.shares_topics)
        assembly = self.assembly
        sources, _ = sources_of(messages, assembly.tables, [type(assembly)], assembly.registry, described=True)
        rules = self.assembly.rule_set
        for table in sources:
            rules.of(table)
        mains = {rules.main_of(table) for table in tables}
        sources_of_tables = {table: of_source for table, of_source in sources.items() if table in mains}
        if not sources_of_tables:
            return None
        layouts = {table: self.layout_of(of_source[0].collection) for table, of_source in sources_of_tables.items()}
        plan = TablePlan(self.options, sources_of_tables, layout_of=layouts.__getitem__, rules=rules, further=True)
        plan.make(deadline.remaining())
        return plan


@contextlib.contextmanager
def advising_tables(new: NewTables | None, clock: Clock) -> Iterator[None]:
    """Let the error about a load into a table that is not there say what creates it, or which columns its rows name."""
    try:
        yield
    except ServerRefused as refused:
        if NO_TABLE in refused.message and (table := refused.context.get("table")) is not None:
            report, advice = attached_report(refused), ""
            if new is not None:
                with contextlib.suppress(StarRocksSinkError):  # the first error counts
                    advice = new.advice(str(table), Deadline.after(_KAFKA_SECONDS, clock))
            if not advice and report is not None and (names := report.work.members.get(str(table))):
                advice = f"Its rows name the columns {', '.join(sorted(names))}. {refused.advice}"
            advise(refused, advice or refused.advice)
        raise
