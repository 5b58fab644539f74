"""The database's tables as a session knows them, from information_schema, and names in rows that are no columns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import QueryRefused, StarRocksSinkError
from starrocks_txn_sink.options import SchemaChanges, SinkOptions
from starrocks_txn_sink.options.addresses import require_supported
from starrocks_txn_sink.protocol.ledger import identifier
from starrocks_txn_sink.rows.target import (
    PLACES_SQL,
    TargetColumn,
    may_count,
    target_columns,
    with_counters,
    with_places,
)
from starrocks_txn_sink.sql.connection import VERSION_SQL, LeaderConnection, read_version
from starrocks_txn_sink.telemetry import Event
from starrocks_txn_sink.writer.messages import LaneReport

_SELECT = (
    "SELECT TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLUMN_DEFAULT, COLUMN_KEY,"
    " GENERATION_EXPRESSION FROM information_schema.columns WHERE TABLE_SCHEMA = %s AND {} "
    "ORDER BY TABLE_NAME, ORDINAL_POSITION"
)
COLUMNS_SQL = _SELECT.format("TABLE_NAME IN ({})")
"""Parameters: the database and the tables' names; replace `{}` by as many `%s`."""
BYTES_SQL = _SELECT.format("LOWER(LEFT(COLUMN_TYPE, 9)) = 'varbinary'")
"""The VARBINARY columns of all tables. Parameter: the database."""
NOT_NULL_SQL = _SELECT.format("IS_NULLABLE = 'NO'")
"""The NOT NULL columns of all tables, including the columns of primary keys. Parameter: the database."""

PRIMARY_KEYS = "PRIMARY_KEYS"
"""Table model that supports deletes, as information_schema.tables_config names it."""

_COMPARE_SECONDS = 5.0
_SHOWN_NAMES, _SHOWN_LETTERS = 5, 32  # a line of the log has at most 200 letters a field
_UNKNOWN = (
    "The server drops these values without a word. Correct the names in the rows (case counts), or add the columns to "
    "the table."
)


_GONE = "They are NULL in such rows. Did the source lose them, or rename them?"

Names = Mapping[str, frozenset[str]]
"""Names of members in JSON rows, by table."""
_NOTHING: Names = {}

Columns = Mapping[str, tuple[TargetColumn, ...]]
"""Columns of tables, by table in their order."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The database's tables, as far as a session knows them.

    `models` has their models. `columns` has the columns of the tables that typed routes write; None without
    `query_url`. `required` has the NOT NULL columns of PRIMARY KEY tables, including the columns of the key.
    """

    models: Mapping[str, str] = field(default_factory=dict)
    columns: Columns | None = None
    required: Columns = field(default_factory=dict)

    @classmethod
    def read(
        cls, connection: LeaderConnection, options: SinkOptions, typed_tables: Iterable[str], deadline: Deadline
    ) -> Tables:
        """Check the server's version, and query models and columns. Raises as `table_models`."""
        models = table_models(connection, options, deadline)
        columns = table_columns(connection, options.database, typed_tables, deadline)
        return cls(models, columns, required_columns(connection, options.database, models, deadline))


def table_models(connection: LeaderConnection, options: SinkOptions, deadline: Deadline) -> dict[str, str]:
    """Check the server's version and return the database's tables with their models (PRIMARY_KEYS, DUP_KEYS, …).

    Raises OptionError for a server that is too old, QueryFailed or QueryRefused when the query fails.
    """
    version = read_version(connection.rows(VERSION_SQL, (), deadline))
    require_supported(version, unreleased=options.allow_unreleased_server)
    rows = connection.query(
        "SELECT TABLE_NAME, TABLE_MODEL FROM information_schema.tables_config WHERE TABLE_SCHEMA = %s",
        (options.database,),
        deadline,
    )
    return {str(name): str(model) for name, model in rows}


def table_columns(
    connection: LeaderConnection, database: str, tables: Iterable[str], deadline: Deadline
) -> dict[str, tuple[TargetColumn, ...]]:
    """The columns of `tables`, by table in their order; a missing table is left out.

    Raises QueryFailed or QueryRefused when the query fails.
    """
    names = tuple(tables)
    if not names:
        return {}
    marks = ", ".join(["%s"] * len(names))
    target_columns_found = target_columns(connection.query(COLUMNS_SQL.format(marks), (database, *names), deadline))
    with contextlib.suppress(QueryRefused):  # StarRocks then says itself which columns it does not change
        target_columns_found = with_places(
            target_columns_found, connection.query(PLACES_SQL.format(marks), (database, *names), deadline)
        )
    for table, columns in target_columns_found.items():
        if may_count(columns):
            with contextlib.suppress(QueryRefused):  # without the DDL the column counts as required
                ddl = connection.query(f"SHOW CREATE TABLE {identifier(database, table)}", (), deadline)
                target_columns_found[table] = with_counters(columns, str(ddl[0][1]) if ddl else "")
    return target_columns_found


def required_columns(
    connection: LeaderConnection, database: str, models: Mapping[str, str], deadline: Deadline
) -> dict[str, tuple[TargetColumn, ...]]:
    """The NOT NULL columns of the PRIMARY KEY tables among `models`, including the columns of the keys; by table.

    Raises QueryFailed or QueryRefused when the query fails.
    """
    if PRIMARY_KEYS not in models.values():
        return {}
    required = target_columns(connection.query(NOT_NULL_SQL, (database,), deadline))
    return {
        table: tuple(column for column in columns if not column.nullable and not column.generated)
        for table, columns in required.items()
        if models.get(table) == PRIMARY_KEYS
    }


def byte_columns(options: SinkOptions) -> dict[str, list[str]]:
    """The VARBINARY columns of the database's tables, by table; none without `query_url`.

    Raises QueryFailed or QueryRefused when the query fails.
    """
    if options.query_url is None:
        return {}
    deadline = Deadline.after(options.batch_deadline, SystemClock())
    with contextlib.closing(LeaderConnection(options)) as connection:
        tables = target_columns(connection.query(BYTES_SQL, (options.database,), deadline))
    return {table: [column.name for column in columns if not column.generated] for table, columns in tables.items()}


def named_by_rows(reports: Iterable[LaneReport], compared: Names) -> dict[str, frozenset[str]]:
    """The names in the JSON rows of a micro-batch by table; `compared` has the names that the lanes knew."""
    names_by_table: dict[str, frozenset[str]] = {}
    for report in reports:
        for table, names in report.work.members.items():
            names_by_table[table] = names_by_table.get(table, frozenset()) | (
                frozenset(names) or compared.get(table, frozenset())
            )
    return names_by_table


def compare_columns(
    options: SinkOptions,
    names_by_table: Names,
    earlier: Names = _NOTHING,
    names_gone: Names = _NOTHING,
    told: dict[str, frozenset[str]] | None = None,
    *,
    again: bool = False,
) -> list[Event] | None:
    """Compare the names in the JSON rows of a micro-batch with the tables' columns; None if the server does not answer.

    Only names count that are new, or missing for the first time: `earlier`: those of earlier rows, `names_gone` those
    that were missing before. With `again` all names count, but those without a column that were `told` before: a column
    may have been dropped. What is unknown is added to `told`.

    `columns.unknown` reports a table without a column that rows name: the server drops such values silently (wire
    contract 5.4). `columns.unnamed` reports a table whose only fault is that its first rows do not name all columns,
    which become NULL; `columns.gone` one with columns that rows do not name any more. The case of names counts, as on
    the server. Without `query_url` there are no events.
    """
    nothing: frozenset[str] = frozenset()
    new = {table: names - earlier.get(table, nothing) for table, names in names_by_table.items()}
    names_lost = {
        table: earlier.get(table, nothing) - names - names_gone.get(table, nothing)
        for table, names in names_by_table.items()
    }
    tables_to_compare = sorted(
        table for table in names_by_table if again or table not in earlier or new[table] or names_lost[table]
    )
    if not tables_to_compare or options.query_url is None:
        return []
    deadline = Deadline.after(_COMPARE_SECONDS, SystemClock())
    try:
        with contextlib.closing(LeaderConnection(options)) as connection:
            tables = table_columns(connection, options.database, tables_to_compare, deadline)
    except StarRocksSinkError:
        return None
    events: list[Event | None] = []
    waiting = options.schema_changes is SchemaChanges.APPLY
    for table, columns in sorted(tables.items()):
        told_names = frozenset() if told is None else told.get(table, frozenset())
        unknown = (names_by_table[table] if again else new[table]) - {column.name for column in columns} - told_names
        if told is not None:
            told[table] = told_names | unknown
        unnamed = _unnamed(names_by_table[table], columns) if table not in earlier else []
        events.append(_unmatched(table, sorted(unknown), unnamed, waiting=waiting))
        vanished = [column.name for column in columns if column.name in names_lost[table]]
        partial_rows = options.load_headers(table).get("partial_update", "").lower() == "true"
        if vanished and not partial_rows:
            events.append(Event("columns.gone", {"table": table, "gone": _list(vanished), "advice": _GONE}))
    return [event for event in events if event is not None]


def _unnamed(names: Set[str], columns: Sequence[TargetColumn]) -> list[str]:
    """The columns that rows leave out.

    Those with a DEFAULT do not count. A missing key makes them NULL, too, but AUTO_INCREMENT columns look the same.
    """
    return [
        column.name
        for column in columns
        if column.name not in names and not (column.key or column.generated or column.defaulted)
    ]


def _unmatched(table: str, unknown: Sequence[str], unnamed: Sequence[str], *, waiting: bool) -> Event | None:
    fields = {"table": table, "count": len(unknown), "unknown": _list(unknown), "unnamed": _list(unnamed) or None}
    if unknown and waiting:  # a column with a value would have been added
        return Event("columns.waiting", {"table": table, "unknown": _list(unknown)})
    if unknown:
        return Event("columns.unknown", {**fields, "advice": _UNKNOWN})
    return Event("columns.unnamed", {"table": table, "unnamed": _list(unnamed)}) if unnamed else None


def _list(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    names_text = ", ".join(name[:_SHOWN_LETTERS] for name in names[:_SHOWN_NAMES])
    return f"{names_text}, and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else names_text
