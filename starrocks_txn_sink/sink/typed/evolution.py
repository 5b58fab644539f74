"""Schema changes that a route needs: plans the statements, and executes them between two micro-batches.

The sink makes only changes that lose nothing: a new column, a wider type for a column that is no key and has no
DEFAULT, and a new table for a route that names its keys. Any other difference stays an error of the route.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import DataFrame, types as T

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import InputError, QueryFailed, QueryRefused, StarRocksSinkError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.ledger import identifier
from starrocks_txn_sink.sink.session import Session, advising
from starrocks_txn_sink.sink.typed.fit import BITS, Fit, fit, natural
from starrocks_txn_sink.sink.typed.route import TableRoute
from starrocks_txn_sink.sink.typed.tables import Columns, table_columns, table_models
from starrocks_txn_sink.sink.typed.target import TargetColumn, parse_type
from starrocks_txn_sink.sql.connection import LeaderConnection

_POLL_SECONDS = 0.5
_GRACE_SECONDS = 2.0
_KEY_TEXT, _TEXT = "VARCHAR(255)", "VARCHAR(65533)"


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One statement, and the columns that the table has afterwards (`expected`: name → type)."""

    table: str
    sql: str
    expected: Mapping[str, str]

    def done(self, columns: Columns) -> bool:
        """Whether `columns`, as the server lists them, show the change."""
        there = {column.name.lower(): str(column.type) for column in columns.get(self.table, ())}
        return all(there.get(name.lower()) == kind for name, kind in self.expected.items())


def plan_changes(
    database: str, routes: Iterable[TableRoute], frame: T.StructType, columns: Columns, replication: int | None = None
) -> list[SchemaChange]:
    """The changes that make `routes` fit, in the order of their execution."""
    changes: list[SchemaChange] = []
    for route in routes:
        known = columns.get(route.table, ())
        changes += (
            _alterations(database, route, frame, known) if known else _creation(database, route, frame, replication)
        )
    return changes


def apply_changes(
    changes: Sequence[SchemaChange], execute: Callable[[str], object], read: Callable[[], Columns], deadline: Deadline
) -> Columns:
    """Make the changes one after the other, and wait until each is visible; returns the columns afterwards.

    An error of `execute` does not count if the change is visible within seconds: the reply may be lost, or the server
    refuses because the same change of an earlier run is still under way. Otherwise this raises the error. Raises
    DeadlineExceeded if a change that the server accepted does not become visible in time.
    """
    columns = read()
    for change in changes:
        failure: StarRocksSinkError | None = None
        try:
            execute(change.sql)
        except (QueryFailed, QueryRefused) as error:
            failure = error
        limit = deadline if failure is None else deadline.earlier(_GRACE_SECONDS)
        while not change.done(columns := read()):
            if failure is not None and limit.remaining() <= 0:
                raise failure
            deadline.clock.sleep(limit.limit(_POLL_SECONDS, f"table {change.table} being altered"))
    return columns


def type_of(source: T.DataType, *, key: bool = False) -> str:
    """The type of a new column for `source`; raises InputError if StarRocks has no such type."""
    if isinstance(source, T.StringType):
        return _KEY_TEXT if key else _TEXT
    if isinstance(source, T.ArrayType):
        return f"ARRAY<{type_of(source.elementType)}>"
    if isinstance(source, T.MapType):
        return f"MAP<{type_of(source.keyType, key=True)},{type_of(source.valueType)}>"
    if isinstance(source, T.StructType):
        return f"STRUCT<{', '.join(f'{identifier(field.name)} {type_of(field.dataType)}' for field in source.fields)}>"
    closest = natural(source)
    if closest.name == "OTHER" or isinstance(source, T.NullType):
        raise InputError(
            f"StarRocks has no type for {source.simpleString()}.",
            hint="Cast the column before the sink, or leave it out.",
        )
    return str(closest)


def _alterations(
    database: str, route: TableRoute, frame: T.StructType, known: Sequence[TargetColumn]
) -> Iterator[SchemaChange]:
    by_name = {column.name.lower(): column for column in known}
    for name, source in route.sources.items():
        if source not in frame.names:
            continue
        kind, column = frame[source].dataType, by_name.get(name.lower())
        if column is None:
            action = f"ADD COLUMN {identifier(name)} {type_of(kind)} NULL"
        elif _widens(kind, column):
            null = "NULL" if column.nullable else "NOT NULL"
            action = f"MODIFY COLUMN {identifier(column.name)} {type_of(kind)} {null}"
        else:
            continue
        sql = f"ALTER TABLE {identifier(database, route.table)} {action}"
        yield SchemaChange(route.table, sql, {name: str(parse_type(type_of(kind)))})


def _widens(source: T.DataType, column: TargetColumn) -> bool:
    """Whether the column is too narrow for `source`, and the type for `source` has room for all the column's values."""
    if column.key or column.defaulted or column.generated or isinstance(fit(source, column.type), Fit):
        return False
    wider = parse_type(type_of(source)) if not isinstance(source, T.NullType) else column.type
    if column.type.name in BITS and wider.name in BITS:
        return BITS[wider.name] > BITS[column.type.name]
    if wider.name == column.type.name == "DECIMAL":
        whole = wider.precision - wider.scale >= column.type.precision - column.type.scale
        return whole and wider.scale >= column.type.scale
    return (column.type.name, wider.name) == ("FLOAT", "DOUBLE")


def _creation(database: str, route: TableRoute, frame: T.StructType, replication: int | None) -> Iterator[SchemaChange]:
    if not route.keys:
        return
    kinds = {name: frame[source].dataType for name, source in route.sources.items() if source in frame.names}
    missing = [key for key in route.keys if key not in kinds]
    if missing:
        raise InputError(
            f"The TableRoute of {route.table} names the keys {', '.join(missing)}, which are none of its columns.",
            hint="Name key columns among its columns.",
        )
    names = [*route.keys, *(name for name in kinds if name not in route.keys)]
    types = {name: type_of(kinds[name], key=name in route.keys) for name in names}
    columns = ", ".join(
        f"{identifier(name)} {types[name]} {'NOT NULL' if name in route.keys else 'NULL'}" for name in names
    )
    keys = ", ".join(identifier(key) for key in route.keys)
    properties = f' PROPERTIES ("replication_num" = "{replication}")' if replication else ""
    sql = (
        f"CREATE TABLE IF NOT EXISTS {identifier(database, route.table)} ({columns}) PRIMARY KEY ({keys}) "
        f"DISTRIBUTED BY HASH ({keys}){properties}"
    )
    yield SchemaChange(route.table, sql, {name: str(parse_type(kind)) for name, kind in types.items()})


def read_planned_changes(options: SinkOptions, routes: Sequence[TableRoute], frame: DataFrame) -> list[SchemaChange]:
    """The changes that rows of `frame` need, given the tables that the server has now."""
    deadline = Deadline.after(options.batch_deadline, SystemClock())
    with contextlib.closing(LeaderConnection(options)) as connection:
        columns = table_columns(connection, options.database, [route.table for route in routes], deadline)
    return plan_changes(options.database, routes, frame.schema, columns, options.ledger_replication)


def apply_schema_changes(
    options: SinkOptions, routes: Sequence[TableRoute], frame: DataFrame, session: Session
) -> list[str]:
    """Make the changes that `frame` needs, and update `session.tables`; returns the statements.

    Raises QueryRefused if the server refuses a change, DeadlineExceeded if a change does not become visible.
    """
    columns = session.tables.columns or {}
    changes = plan_changes(options.database, routes, frame.schema, columns, options.ledger_replication)
    if not changes:
        return []
    deadline = Deadline.after(options.batch_deadline, SystemClock())
    tables = [route.table for route in routes]
    with contextlib.closing(LeaderConnection(options)) as connection:

        def execute(sql: str) -> None:
            with advising(f"Run it by hand, or change it: {sql}"):
                connection.query(sql, (), deadline)

        read = partial(table_columns, connection, options.database, tables, deadline)
        made = apply_changes(changes, execute, read, deadline)
        session.tables = replace(session.tables, models=table_models(connection, options, deadline), columns=made)
    return [change.sql for change in changes]
