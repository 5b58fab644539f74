"""TableRules compared with the tables that are there, before the first row."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Final

from starrocks_txn_sink.assembler.rules.by_rules import MarkedTable, RowRules, no_history
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options import SchemaChanges
from starrocks_txn_sink.options.table_rules import DELETED, HISTORY, RuleSet, RulesOfTable
from starrocks_txn_sink.rows.unchanged import OPAQUE
from starrocks_txn_sink.sink.typed.tables import PRIMARY_KEYS, Columns, table_columns
from starrocks_txn_sink.sink.typed.terms import TableTerms
from starrocks_txn_sink.sql.connection import LeaderConnection
from starrocks_txn_sink.telemetry import get_logger

_KEEPS_ALL: Final = "DUP_KEYS"

_log = get_logger("sink")


def rules_for(rules: RuleSet, terms: TableTerms) -> RowRules:
    """Compare rules with the keys and the columns of their tables; returns what the lanes need of both.

    A column that is not there may still come, and a table with `schema_changes="apply"`: so only a warning names it,
    unless its name is almost that of another one. Raises OptionError, and the errors of the server.
    """
    _check_keys(rules, terms)
    models = terms.tables.models
    if models:
        _check_tables(rules, terms)
    tables = dict.fromkeys([*models, *rules.mains_without_table(models)])
    of_tables = [of_table for table in tables if (of_table := rules.of(table)) is not None]
    mains = [table for table in of_tables if rules.main_of(table.table) == table.table]
    for main in mains:
        _check_history(main, terms)
    columns = _columns(terms, [main.written for main in mains if main.named or main.marks])
    names = {main.table: [column.name for column in columns.get(main.written, ())] for main in mains if main.named}
    for mismatch in rules.unmatched(
        {table: column_names for table, column_names in names.items() if column_names}, at_source=False
    ):
        if mismatch.near:
            raise OptionError(f"{mismatch.reason[0].upper()}{mismatch.reason[1:]}.", hint=mismatch.ways)
        _log.warning("rules.unmatched", column=mismatch.column, tables=", ".join(mismatch.tables))
    marked = {main.table: _marked(main.table, main.own, terms, columns) for main in mains if main.marks}
    return RowRules(rules, marked, frozenset(table for table in models if _replaces(table, terms)))


def _check_tables(rules: RuleSet, terms: TableTerms) -> None:
    """Raise OptionError for a rule that is for no table, or warn of it where the table may still come."""
    models = terms.tables.models
    for rule in rules.tableless([*models, *rules.mains_without_table(models)]):
        if rule.near or terms.options.schema_changes is not SchemaChanges.APPLY:
            raise OptionError(f"{rule.reason[0].upper()}{rule.reason[1:]}.", hint=rule.ways, option="rules")
        _log.warning("rules.unmatched", tables=rule.tables)


def _check_keys(rules: RuleSet, terms: TableTerms) -> None:
    keys = {table: terms.options.options_of(table).keys for table in terms.options.tables}
    required = terms.tables.required.items()
    keys |= {table: [column.name for column in columns if column.key] for table, columns in required}
    for table, key in keys.items():
        of_table = rules.of(table)
        if of_table is not None:
            of_table.check_key(key)


def _check_history(rules: RulesOfTable, terms: TableTerms) -> None:
    """Raise OptionError for a history that would not keep all rows: another one's table, or one by a key of values."""
    if rules.history is not None and _replaces(rules.history, terms):
        raise no_history(rules, _key(rules.history, terms))


def _replaces(table: str, terms: TableTerms) -> bool:
    """Whether rows with the columns of a history would replace each other in a table."""
    model = terms.tables.models.get(table, _KEEPS_ALL)
    return model != _KEEPS_ALL and not (model == PRIMARY_KEYS and set(_key(table, terms)).issuperset(HISTORY[:3]))


def _key(table: str, terms: TableTerms) -> list[str]:
    return [column.name for column in terms.tables.required.get(table, ()) if column.key]


def _columns(terms: TableTerms, tables: list[str]) -> Columns:
    options = terms.options
    if not tables or options.query_url is None:
        return {}
    deadline = Deadline.after(options.batch_deadline, SystemClock())
    with contextlib.closing(LeaderConnection(options)) as connection:
        return table_columns(connection, options.database, tables, deadline)


def _marked(table: str, own: Collection[str], terms: TableTerms, columns: Columns) -> MarkedTable:
    """The table's columns, of which rows have their `own` ones by the rules.

    Raises OptionError for a table in which the sink cannot look rows up.
    """
    key = tuple(column.field for column in terms.keys.get(table, ()))
    if not key:
        raise OptionError(
            f'With deletes="mark" a deleted row of table {table} keeps its last values, and the sink cannot look them '
            "up: the table has no primary key, or the sink does not know it.",
            hint="Make it a PRIMARY KEY table, and set query_url; leave compact on, and load properties that rename "
            "columns out.",
            table=table,
        )
    columns_left = [
        column for column in columns.get(table, ()) if column.name not in (*key, DELETED) and not column.generated
    ]
    names_of_table = {*own, *terms.options.decoded(table)}
    opaque = [
        column for column in columns_left if column.name not in names_of_table and column.type.name.lower() in OPAQUE
    ]
    if opaque:
        raise OptionError(
            f'With deletes="mark" a deleted row of table {table} keeps its last values, and the sink cannot look up '
            f"those of {opaque[0].name}: it is {opaque[0].type}.",
            hint="Store it as VARCHAR, or take another way for the deletes of this table.",
            table=table,
        )
    return MarkedTable(key, tuple(column.name for column in columns_left))
