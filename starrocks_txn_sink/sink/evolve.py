"""Schema changes of typed routes, over SQL: planned from what the server has, carried out, and seen to be visible."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from pyspark.sql import DataFrame

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import OptionError, QueryRefused
from starrocks_txn_sink.ledger.access import LeaderConnection
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sink.preflight import table_columns, table_models
from starrocks_txn_sink.sink.session import Session
from starrocks_txn_sink.sink.table_route import TableRoute
from starrocks_txn_sink.sink.typed.evolution import Change, apply, plan


def planned(options: SinkOptions, routes: Sequence[TableRoute], frame: DataFrame) -> list[Change]:
    """The changes that rows of `frame` need, by what the server has now."""
    if not options.query_addresses:
        raise OptionError("Schema changes are planned over SQL.", hint="Set query_url.", option="query_url")
    deadline = Deadline.after(options.batch_deadline, SystemClock())
    with contextlib.closing(LeaderConnection(options)) as connection:
        columns = table_columns(connection, options.database, [route.table for route in routes], deadline)
    return plan(options.database, routes, frame.schema, columns, options.ledger_replication)


def evolve(options: SinkOptions, routes: Sequence[TableRoute], frame: DataFrame, session: Session) -> list[str]:
    """Carry out what `frame` needs beyond the session's tables, and tell the session; the statements that were run.

    Raises QueryRefused when the server does not want a change, DeadlineExceeded when it does not become visible.
    """
    columns = session.columns or {}
    changes = plan(options.database, routes, frame.schema, columns, options.ledger_replication)
    if not changes:
        return []
    clock = SystemClock()
    deadline = Deadline.after(options.batch_deadline, clock)
    tables = [route.table for route in routes]
    with contextlib.closing(LeaderConnection(options)) as connection:

        def execute(sql: str) -> None:
            try:
                connection.query(sql, (), deadline)
            except QueryRefused as refused:
                refused.advice = f"Run it by hand, or change it: {sql}"
                raise

        made = apply(
            changes, execute, lambda: table_columns(connection, options.database, tables, deadline), clock, deadline
        )
        session.columns = {table: tuple(found) for table, found in made.items()}
        session.models = table_models(connection, options.database, deadline)
    return [change.sql for change in changes]
