"""Schema changes that a route needs: plans the statements, and executes them between two micro-batches.

The sink makes only changes that lose nothing: a new column, a wider type for a column that is no key and has no
DEFAULT, and a new table for a route that names its keys. Any other difference stays an error of the route.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import DataFrame, types as T

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.ledger import identifier
from starrocks_txn_sink.rows.target import BITS, TEXT, TargetColumn, TargetType, parse_type
from starrocks_txn_sink.sink.schema.changes import SqlTables, carry_out, changed
from starrocks_txn_sink.sink.schema.plan import SchemaChange, alter_table, primary_key_table, type_of_key
from starrocks_txn_sink.sink.session import Session
from starrocks_txn_sink.sink.typed.fit import Fit, fit, natural
from starrocks_txn_sink.sink.typed.route import TableRoute
from starrocks_txn_sink.sink.typed.tables import Columns, table_columns, table_models
from starrocks_txn_sink.sql.connection import LeaderConnection
from starrocks_txn_sink.telemetry import Listener


def plan_changes(
    database: str, routes: Iterable[TableRoute], frame: T.StructType, columns: Columns
) -> list[SchemaChange]:
    """The changes that make `routes` fit, in the order of their execution."""
    changes: list[SchemaChange] = []
    for route in routes:
        target_columns = columns.get(route.table, ())
        changes += (
            _alterations(database, route, frame, target_columns)
            if target_columns
            else _creation(database, route, frame)
        )
    return changes


def type_of(source: T.DataType, text: str = TEXT) -> str:
    """The type of a new column for `source`, with texts as `text`, those of its parts as STRING.

    Raises InputError if StarRocks has no such type.
    """
    part = partial(type_of, text="STRING")
    if isinstance(source, T.StringType):
        return text
    if isinstance(source, T.ArrayType):
        return f"ARRAY<{part(source.elementType)}>"
    if isinstance(source, T.MapType):
        return f"MAP<{part(source.keyType)},{part(source.valueType)}>"
    if isinstance(source, T.StructType):
        return f"STRUCT<{', '.join(f'{identifier(field.name)} {part(field.dataType)}' for field in source.fields)}>"
    closest = natural(source)
    if closest.name == "OTHER" or isinstance(source, T.NullType):
        raise InputError(
            f"StarRocks has no type for {source.simpleString()}.",
            hint="Cast the column before the sink, or leave it out.",
        )
    return str(closest)


def _alterations(
    database: str, route: TableRoute, frame: T.StructType, target_columns: Sequence[TargetColumn]
) -> Iterator[SchemaChange]:
    by_name = {column.name.lower(): column for column in target_columns}
    added: dict[str, str] = {}
    modified: dict[TargetColumn, TargetType] = {}
    for name, source in route.sources.items():
        if source not in frame.names:
            continue
        kind, column = frame[source].dataType, by_name.get(name.lower())
        if column is None:
            added[name] = type_of(kind)
        elif _widens(kind, column):
            modified[column] = parse_type(type_of(kind))
    yield from alter_table(database, route.table, added, modified)


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


def _creation(database: str, route: TableRoute, frame: T.StructType) -> Iterator[SchemaChange]:
    if not route.keys:
        return
    kinds = {name: frame[source].dataType for name, source in route.sources.items() if source in frame.names}
    missing = [key for key in route.keys if key not in kinds]
    if missing:
        raise InputError(
            f"The TableRoute of {route.table} names the keys {', '.join(missing)}, which are none of its columns.",
            hint="Name key columns among its columns.",
        )
    types = {name: _key_type(route.table, name, kinds[name]) for name in route.keys}
    types |= {name: type_of(kind) for name, kind in kinds.items() if name not in route.keys}
    yield primary_key_table(database, route.table, types, route.keys)


def _key_type(table: str, name: str, source: T.DataType) -> str:
    type_ = type_of_key(type_of(source))
    if not type_:
        raise InputError(
            f"The key {name} of the TableRoute of {table} is {source.simpleString()}, and StarRocks takes no such key.",
            hint="Name another key, or cast the column before the sink.",
        )
    return type_


def read_planned_changes(options: SinkOptions, routes: Sequence[TableRoute], frame: DataFrame) -> list[str]:
    """The statements that rows of `frame` need, given the tables that the server has now."""
    deadline = Deadline.after(options.batch_deadline, SystemClock())
    with contextlib.closing(LeaderConnection(options)) as connection:
        columns = table_columns(connection, options.database, [route.table for route in routes], deadline)
    changes = plan_changes(options.database, routes, frame.schema, columns)
    return [change.statement(options.ledger_replication) for change in changes]


def apply_schema_changes(
    options: SinkOptions, routes: Sequence[TableRoute], frame: T.StructType, session: Session, listener: Listener
) -> None:
    """Make the changes that frames of the schema `frame` need, tell each to the listener, and update `session.tables`.

    Raises QueryRefused if the server refuses a change, DeadlineExceeded if a change does not become visible.
    """
    plan = partial(plan_changes, options.database, routes, frame)
    if not plan(session.tables.columns or {}):
        return
    deadline = Deadline.after(options.batch_deadline, SystemClock())
    with contextlib.closing(LeaderConnection(options)) as connection:
        port = SqlTables(connection, options, [route.table for route in routes], deadline)
        columns = carry_out(plan, port, deadline, lambda change: listener(changed(session.job, change)))
        models = table_models(connection, options, deadline)
        session.know_tables(replace(session.tables, models=models, columns=columns))
