"""TableRules compared with the tables that are there, before the first row."""

from __future__ import annotations

import contextlib

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options import SchemaChanges, SinkOptions
from starrocks_txn_sink.options.table_rules import RuleSet
from starrocks_txn_sink.sink.typed.tables import Tables, table_columns
from starrocks_txn_sink.sql.connection import LeaderConnection
from starrocks_txn_sink.telemetry import get_logger

_log = get_logger("sink")


def check_tables(rules: RuleSet, tables: Tables, options: SinkOptions) -> None:
    """Compare rules with the keys and the columns of their tables.

    A column that no table has may still come with `schema_changes="apply"`, so only a warning names it, unless its name
    is almost that of another column. Raises OptionError, and the errors of the server.
    """
    keys = {table: options.options_of(table).keys for table in options.tables}
    keys |= {table: [column.name for column in columns if column.key] for table, columns in tables.required.items()}
    for table, key in keys.items():
        of_table = rules.of(table)
        if of_table is not None:
            of_table.check_key(key)
    named = [table for table in tables.models if (of_table := rules.of(table)) and of_table.named]
    if not named or options.query_url is None:
        return
    deadline = Deadline.after(options.batch_deadline, SystemClock())
    with contextlib.closing(LeaderConnection(options)) as connection:
        columns = table_columns(connection, options.database, named, deadline)
    names = {table: [column.name for column in of_table] for table, of_table in columns.items()}
    for unmatched in rules.unmatched(names, at_source=False):
        if unmatched.near or options.schema_changes is not SchemaChanges.APPLY:
            raise OptionError(f"{unmatched.reason[0].upper()}{unmatched.reason[1:]}.", hint=unmatched.ways)
        _log.warning("rules.unmatched", column=unmatched.column, tables=", ".join(unmatched.tables))
