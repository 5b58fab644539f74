"""CREATE, DROP, TRUNCATE and ALTER: one transaction each, over the catalog and the stored rows together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import duckdb
from sqlglot import exp

from starrocks_emulator.sql.changes import changing
from starrocks_emulator.sql.ddl import check_aggregate, column_definition, table_definition
from starrocks_emulator.sql.session import QuerySession, SqlError, analyzing_error
from starrocks_emulator.sql.show import column_clause
from starrocks_emulator.sql.translate import database_of, table_of, target_of
from starrocks_emulator.tables.catalog import (
    TABLE_EXISTS,
    CatalogError,
    Column,
    Model,
    Table,
    quote,
    schema_of,
    stored_name,
)

if TYPE_CHECKING:
    from starrocks_emulator.tables.store import Store

Step = Callable[[duckdb.DuckDBPyConnection], None]


def create(store: Store, session: QuerySession, tree: exp.Create) -> None:
    """CREATE DATABASE or CREATE TABLE."""
    with store.engine.writing:  # between the look and the creation nobody else creates it
        _create(store, session, tree)


def _create(store: Store, session: QuerySession, tree: exp.Create) -> None:
    exists_is_fine = bool(tree.args.get("exists"))
    if tree.kind in ("DATABASE", "SCHEMA"):
        name = tree.this.name
        session.rights.require_catalog("CREATE DATABASE")
        if not (exists_is_fine and store.has_database(name)):
            try:
                _define(store, [], lambda cursor: store.registry.create_database(cursor, name))
            except CatalogError as error:
                raise SqlError(error.message, error.code) from error
    elif tree.kind == "TABLE":
        target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
        table = _with_properties(session, table_definition(tree, database_of(session, target)))
        if not exists_is_fine and store.registry.find(table.database, table.name):
            raise CatalogError(f"Table '{table.name}' already exists", TABLE_EXISTS)
        session.rights.require_database("CREATE TABLE", table.database)
        if not (exists_is_fine and store.registry.find(table.database, table.name)):
            _check_replication(session, table)
            _define(store, [], lambda cursor: store.registry.create_table(cursor, table))
    else:
        raise SqlError(f"CREATE {tree.kind} cannot be served by the emulator.")


def _with_properties(session: QuerySession, table: Table) -> Table:
    """The table with the properties that the server adds to those of the statement."""
    properties = {"compression": "LZ4", "fast_schema_evolution": "true", "replicated_storage": "true"}
    if table.model is Model.PRIMARY_KEY:
        properties["enable_persistent_index"] = "true"
    if "RANDOM" in table.distributed_by.upper():
        properties["bucket_size"] = "1073741824"
    properties["replication_num"] = session.frontend.config.default_replicas
    return replace(table, properties={**properties, **table.properties})


def _check_replication(session: QuerySession, table: Table) -> None:
    """Refuse more replicas than there are backends (wire contract 10.8, 10.14)."""
    copies = table.properties["replication_num"]
    if not session.frontend.backends_alive:
        raise SqlError(
            "Table replication num should be less than or equal to the number of available backends. You can change "
            "this default by setting the replication_num table properties. Current available backends: [], "
            f"table={table.name}, replication_num={copies}, "
            f"default_replication_num={session.frontend.config.default_replicas}"
        )
    alive = [str(10001 + place) for place in range(len(session.frontend.be_http_ports))]
    if copies.isdecimal() and int(copies) > max(1, len(alive)):
        raise SqlError(
            analyzing_error(
                "Table replication num should be less than of equal to the number of available BE nodes. You can "
                "change this default by setting the replication_num table properties. Current alive backend is "
                f"[{','.join(alive)}].."
            )
        )


def drop(store: Store, session: QuerySession, tree: exp.Drop) -> None:
    """DROP DATABASE or DROP TABLE."""
    missing_is_fine = bool(tree.args.get("exists"))
    for table in tree.args["tables"]:
        if tree.args["kind"] in ("DATABASE", "SCHEMA"):
            if not (missing_is_fine and not store.has_database(table.name)):
                _drop_database(store, table.name)
        elif tree.args["kind"] == "TABLE":
            if not (missing_is_fine and not store.registry.find(database_of(session, table), table.name)):
                _drop_table(store, _to_drop(store, session, table))
        else:
            raise SqlError(f"DROP {tree.args['kind']} cannot be served by the emulator.")


def _drop_database(store: Store, name: str) -> None:
    tables = [(table.database, table.name) for table in store.registry.tables(name)]
    _define(store, tables, lambda cursor: store.registry.drop_database(cursor, name))


def _to_drop(store: Store, session: QuerySession, tree: exp.Table) -> Table:
    try:
        table = table_of(store, session, tree)
    except CatalogError as error:
        if not error.table:
            raise
        raise CatalogError(f"Unknown table '{error.table}'", error.code) from error
    session.rights.require_table("DROP", table.database, table.name)
    return table


def _drop_table(store: Store, table: Table) -> None:
    _define(store, [(table.database, table.name)], lambda cursor: store.registry.drop_table(cursor, table))


def truncate(store: Store, session: QuerySession, tree: exp.TruncateTable) -> None:
    """TRUNCATE TABLE."""
    for target in tree.expressions:
        table = target_of(store, session, target, "DELETE")

        def empty(cursor: duckdb.DuckDBPyConnection, relation: str = table.relation) -> None:
            cursor.execute(f"DELETE FROM {relation}")

        _define(store, [(table.database, table.name)], empty)


def _define(store: Store, tables: Sequence[tuple[str, str]], step: Step) -> None:
    with changing(store, tables), store.engine.cursor() as cursor:
        with store.engine.transaction(cursor):
            step(cursor)
        store.registry.reload(cursor)


@dataclass(slots=True)
class _Altered:
    """A table's columns while ALTER's actions are worked in; `sources` maps each to the SQL of its stored value."""

    table: Table
    columns: list[Column]
    sources: dict[str, str]

    def take(self, action: exp.Expr) -> None:
        """Work one action in; raises CatalogError."""
        if isinstance(action, exp.ColumnDef):
            self._add(action)
        elif isinstance(action, exp.Drop) and action.args.get("kind") == "COLUMN":
            for column in action.args["tables"]:
                self.columns.remove(self._changeable(column.name))
        elif isinstance(action, exp.ModifyColumn):
            self._modify(action.this)
        elif isinstance(action, exp.RenameColumn):
            self._rename(action)
        else:
            raise CatalogError(f"ALTER TABLE {action.sql('starrocks')} cannot be served by the emulator.")

    def _changeable(self, name: str) -> Column:
        column = next((column for column in self.columns if column.name.lower() == name.lower()), None)
        if column is None:
            raise CatalogError(f"Column does not exist: {name}", 1054)
        if self.table.is_key(column):
            raise CatalogError(f"Key column {name} cannot be changed by the emulator.")
        return column

    def _add(self, action: exp.ColumnDef) -> None:
        column = column_definition(action)
        check_aggregate(column, self.table.model, key=False)
        existing = next((existing for existing in self.columns if existing.name.lower() == column.name.lower()), None)
        if existing is not None:
            raise SqlError(
                f"Can not add column which already exists in column id: {column.name}, you can remove "
                f"{column_clause(existing)} and try again."
            )
        if not column.nullable and column.default is None:
            raise CatalogError(f"Field '{column.name}' is not null but doesnt have a default value.")
        place = len(self.columns)
        position = action.args.get("position")
        if position is not None and position.args.get("position") == "AFTER":
            names = [existing.name.lower() for existing in self.columns]
            place = names.index(position.this.name.lower()) + 1 if position.this.name.lower() in names else place
        self.columns.insert(max(place, len(self.table.keys)), column)
        text = column.default.sql if column.default else "CAST(NULL AS VARCHAR)"
        self.sources[column.name] = column.type.value_of(f"({text})")

    def _modify(self, action: exp.ColumnDef) -> None:
        if self.table.model is Model.PRIMARY_KEY and action.name in self.table.keys:
            raise SqlError(f"Can not modify key column: {action.name} for primary key table")
        old, new = self._changeable(action.name), column_definition(action)
        if old.type != new.type and old.name in self.table.spread:
            raise SqlError(f"Can not modify distribution column[{old.name}]. index[{self.table.name}]")
        if old.type.narrows_to(new.type):
            raise SqlError(f"Can not change {old.type.name} to {new.type.name}")
        self.columns[self.columns.index(old)] = new
        self.sources[new.name] = new.type.value_of(f"CAST({quote(old.name)} AS VARCHAR)")

    def _rename(self, action: exp.RenameColumn) -> None:
        old = self._changeable(action.this.name)
        new = replace(old, name=action.args["to"].name)
        self.columns[self.columns.index(old)] = new
        self.sources[new.name] = self.sources.pop(old.name)


def alter(store: Store, session: QuerySession, tree: exp.Alter) -> None:
    """ALTER TABLE ADD, DROP, RENAME COLUMN at once, and MODIFY COLUMN in the background (wire contract 10.15)."""
    table = target_of(store, session, tree.this, "ALTER")
    if store.alterations.is_running(table):
        raise SqlError(f"Table[{table.name}]'s state is not NORMAL: the table is in SCHEMA_CHANGE.")
    _work_in(table, tree)
    rewrites = any(isinstance(action, exp.ModifyColumn) for action in tree.args["actions"])

    def change() -> None:
        _rewrite(store, store.registry.table(table.database, table.name), tree)

    store.alterations.make(table, change, rewrites=rewrites)


def _work_in(table: Table, tree: exp.Alter) -> _Altered:
    """The table after the actions of a statement; raises CatalogError or SqlError for one that is refused."""
    altered = _Altered(table, list(table.columns), {column.name: quote(column.name) for column in table.columns})
    for action in tree.args["actions"]:
        altered.take(action)
    return altered


def _rewrite(store: Store, table: Table, tree: exp.Alter) -> None:
    altered = _work_in(table, tree)
    target = table.with_columns(tuple(altered.columns))

    def rewrite(cursor: duckdb.DuckDBPyConnection) -> None:
        _check_modified(cursor, altered)
        values = ", ".join(
            f"CAST({altered.sources[column.name]} AS {column.type.duckdb}) AS {quote(column.name)}"
            for column in target.columns
        )
        rebuilt = f"{schema_of(table.database)}.{quote('altered ' + stored_name(table.name))}"
        cursor.execute(f"CREATE TABLE {rebuilt} AS SELECT {values} FROM {table.relation} ORDER BY rowid")
        cursor.execute(f"DROP TABLE {table.relation}")
        cursor.execute(f"ALTER TABLE {rebuilt} RENAME TO {quote(stored_name(table.name))}")
        store.registry.redefine(cursor, target)

    _define(store, [(table.database, table.name)], rewrite)


def _check_modified(cursor: duckdb.DuckDBPyConnection, altered: _Altered) -> None:
    """Refuse a change of type that a stored value does not survive."""
    for column in altered.columns:
        old = altered.table.column(column.name)
        if old is None or old.type == column.type:
            continue
        row = cursor.execute(
            f"SELECT count(*) FROM {altered.table.relation}"
            f" WHERE {quote(old.name)} IS NOT NULL AND ({altered.sources[column.name]}) IS NULL"
        ).fetchone()
        if row and row[0]:
            raise CatalogError(f"Can not change {old.type.text} to {column.type.text}: stored values do not fit.")
