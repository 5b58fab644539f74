"""TableTerms: how rows of one schema are written into the tables, with their keys and placeholders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pyspark.sql import types as T

from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.options import SinkOptions, load_properties
from starrocks_txn_sink.options.decoding import Encoding, decoding
from starrocks_txn_sink.options.sink_options import is_own_table
from starrocks_txn_sink.rows.columns import Placeholders
from starrocks_txn_sink.rows.keys import KeyColumn, TableKey
from starrocks_txn_sink.rows.target import TargetColumn
from starrocks_txn_sink.sink.typed.route import TableRoute, TypedRoute
from starrocks_txn_sink.sink.typed.tables import PRIMARY_KEYS, Columns, Tables, byte_columns
from starrocks_txn_sink.telemetry import get_logger

_log = get_logger("sink")


@dataclass(frozen=True)
class TableTerms:
    """How rows of one schema are written into the tables: their `routes`, and `options` with the header `columns`.

    A delete gets one of `placeholders` in each NOT NULL column that it lacks.
    """

    options: SinkOptions
    placeholders: Placeholders
    tables: Tables = Tables()  # noqa: RUF009 - frozen
    routes: Sequence[TypedRoute] = ()

    @classmethod
    def of(
        cls, routes: Sequence[TableRoute], schema: T.StructType, zone: str, options: SinkOptions, tables: Tables
    ) -> TableTerms:
        """The terms for frames of this `schema`; `zone` is the session's time zone, which only `routes` need.

        Raises InputError that names each column which does not fit.
        """
        fitted = [TypedRoute.of(route, schema, zone, options, tables) for route in routes]
        placeholders = _delete_placeholders(tables.required, options, fitted)
        return cls(with_columns(options, fitted), placeholders, tables, fitted)

    @property
    def encoder(self) -> PayloadEncoder:
        """Makes payloads of JSON texts over Arrow."""
        return PayloadEncoder(self.options.database, self.keyless, self.placeholders)

    @cached_property
    def keyless(self) -> tuple[str, ...]:
        """Tables that refuse deletes, because they have no primary key."""
        return tuple(sorted(name for name, model in self.tables.models.items() if model != PRIMARY_KEYS))

    @cached_property
    def keys(self) -> dict[str, TableKey]:
        """The primary key of each table whose rows are compacted; names and types as in the rows.

        A table is left out, so that all of its rows are sent, if `compact` is off, if a later row of a key must not
        replace an earlier row (`why_not_compacted`), or if the sink cannot read the key from the rows.
        """
        if not self.options.compact:
            return {}
        routed = {route.table: route for route in self.routes}
        keys_by_table: dict[str, TableKey] = {}
        for table, columns in self.tables.required.items():
            key = [column for column in columns if column.key]
            if not key or is_own_table(table):
                continue
            properties = self.options.properties_of(table)
            why = load_properties.why_not_compacted(properties, [column.name for column in key])
            key_written = _as_written(key, routed.get(table))
            if why or key_written is None:
                _log.info("compact.skipped", table=table, why=why or "the rows lack the key")
            else:
                keys_by_table[table] = key_written
        return keys_by_table


def with_columns(options: SinkOptions, routes: Sequence[TypedRoute]) -> SinkOptions:
    """`options` with the header `columns` for each route's table; the user's own properties win.

    Without routes this returns `options` itself, because making new options validates all of them.
    """
    if not routes:
        return options
    tables = dict(options.tables)
    for route in routes:
        table_options = options.options_of(route.table)
        properties = {"columns": route.columns, **options.properties, **table_options.properties}
        tables[route.table] = replace(table_options, properties=properties)
    return replace(options, tables=tables)


def with_decoding(options: SinkOptions, encoding: Encoding | None) -> SinkOptions:
    """`options` with which the server decodes texts in VARBINARY columns, but where load properties rename columns.

    With None texts stand for themselves. Columns that are decoded already stay so. Asks the server for its tables;
    raises the errors of `byte_columns`.
    """
    if encoding is None:
        return options
    tables = dict(options.tables)
    for table, columns in byte_columns(options).items():
        properties, table_options = options.properties_of(table), options.options_of(table)
        if columns and not load_properties.renames(properties) and not is_own_table(table):
            decoded = {name: options.decoded(table).get(name, encoding) for name in columns}
            header = {"columns": decoding(decoded)}
            tables[table] = replace(table_options, properties={**table_options.properties, **header})
    return options if tables == options.tables else replace(options, tables=tables)


def _delete_placeholders(required: Columns, options: SinkOptions, routes: Sequence[TypedRoute]) -> Placeholders:
    """Placeholders for the `required` columns of tables; `options` are the user's, without the sink's headers.

    A table is left out if its load properties give the keys of a JSON row another meaning.
    """
    routed = {route.table: {field.name.lower(): field.key for field in route.fields} for route in routes}
    fields_by_table: dict[str, dict[str, str]] = {}
    for table, columns in required.items():
        if load_properties.renames(options.properties_of(table)):
            continue
        values = {column.name: column.type.placeholder for column in columns if not column.key}
        keys = routed.get(table, {name.lower(): name for name in values})
        fields = {keys[name.lower()]: value for name, value in values.items() if value and name.lower() in keys}
        if fields:
            fields_by_table[table] = fields
    return fields_by_table


def _as_written(key: Sequence[TargetColumn], route: TypedRoute | None) -> TableKey | None:
    """The columns of `key` as rows of `route` (None: JSON texts) have them; None if the rows lack one."""
    columns = [KeyColumn.of(column.name, column.type.name, column.type.scale) for column in key]
    if route is None:
        return columns
    fields = {field.name.lower(): field.key for field in route.fields if not field.fit.function}
    if any(column.name.lower() not in fields for column in columns):
        return None
    return [replace(column, field=fields[column.name.lower()]) for column in columns]
