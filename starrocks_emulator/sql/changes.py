"""INSERT, UPDATE and DELETE by SQL: each its own transaction, judged as strictly as a load, visible in commit order."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import duckdb
from sqlglot import exp

from starrocks_emulator.sql.nested import constructed
from starrocks_emulator.sql.session import LOCK_TIMEOUT, QuerySession, SqlError, analyzing_error
from starrocks_emulator.sql.translate import duckdb_sql, target_of
from starrocks_emulator.tables.apply import Manner, MissingDefault, apply_rows
from starrocks_emulator.tables.catalog import Column, Table
from starrocks_emulator.tables.committed import Inserted
from starrocks_emulator.tables.engine import WaitedTooLong
from starrocks_emulator.tables.judge import judged_sql, verdict, written_columns
from starrocks_emulator.tables.mapping import ColumnMapping
from starrocks_emulator.tables.partitions import needed
from starrocks_emulator.tables.plan import CsvLayout, Plan

if TYPE_CHECKING:
    from starrocks_emulator.tables.store import Store

_PATIENCE_SECONDS = 300.0


@contextmanager
def changing(store: Store, tables: Sequence[tuple[str, str]], patience: float = _PATIENCE_SECONDS) -> Iterator[None]:
    """Hold the writer's lock, once no invisible commit is before us on any of the tables; raises SqlError."""
    with store.engine.writing:
        try:
            store.engine.wait_until(lambda: not store.waits(tables), patience)
        except WaitedTooLong as error:
            raise SqlError("Lock wait timeout: an earlier commit is not visible yet", LOCK_TIMEOUT) from error
        yield


def insert(store: Store, session: QuerySession, cursor: duckdb.DuckDBPyConnection, tree: exp.Insert) -> int:
    """INSERT … VALUES or … SELECT; the number of rows. PRIMARY KEY tables take it as upsert."""
    if tree.args.get("overwrite"):
        raise SqlError("INSERT OVERWRITE cannot be served by the emulator.")
    target = tree.this
    column_list = target.expressions if isinstance(target, exp.Schema) else []
    table = target_of(store, session, target.this if column_list else target, "INSERT")
    columns = _columns(table, [part.name for part in column_list])
    source = _inserted_fields(
        store, session, cursor, tree, [column for name in columns if (column := table.column(name))]
    )
    plan = Plan(table, CsvLayout(), ColumnMapping(columns), strict=True)
    for column in table.columns:
        if column.name not in columns and not column.nullable and column.default is None:
            raise SqlError(f"'{column.name}' must be explicitly mentioned in column permutation")
    began = time.time()
    with changing(store, [(table.database, table.name)]), store.engine.transaction(cursor):
        rows = _apply(store, cursor, plan, source)
    store.inserted.append(Inserted(f"insert_{uuid.uuid4()}", store.next_txn_id(), rows, began, time.time()))
    return rows


def update(store: Store, session: QuerySession, cursor: duckdb.DuckDBPyConnection, tree: exp.Update) -> int:
    """UPDATE of a PRIMARY KEY table, as a partial update of the rows that the condition finds."""
    table = target_of(store, session, tree.this, "UPDATE")
    if not table.model.takes_operations:
        raise SqlError("Only primary key table support update.")
    names = [_known(table, part.this.name) for part in tree.expressions]
    types = {column.name: column.type.text for column in table.columns}
    assigned = {
        name: constructed(part.expression, types[name]) for name, part in zip(names, tree.expressions, strict=True)
    }
    for name in assigned:
        if name in table.keys:
            raise SqlError(f"primary key column cannot be updated: {name}")
    if tree.args.get("where") is None:
        raise SqlError("must specify where clause to prevent full table update")
    alias = tree.this.alias or table.name
    values = [exp.column(key, table=alias) for key in table.keys] + list(assigned.values())
    query = exp.select(exp.Array(expressions=[exp.cast(value.copy(), "varchar") for value in values]))
    query = query.from_(tree.this.copy())
    more = tree.args.get("from_")
    if more is not None:
        query = query.join(more.this.copy(), join_type="cross")
    query = query.where(tree.args["where"].this.copy())
    source = _as_source(duckdb_sql(store, session, cursor, query))
    plan = Plan(table, CsvLayout(), ColumnMapping((*table.keys, *assigned)), strict=True, partial=True)
    with changing(store, [(table.database, table.name)]), store.engine.transaction(cursor):
        return _apply(store, cursor, plan, source)


def delete(store: Store, session: QuerySession, cursor: duckdb.DuckDBPyConnection, tree: exp.Delete) -> int:
    """DELETE … WHERE; the number of rows."""
    table = target_of(store, session, tree.this, "DELETE")
    if tree.args.get("where") is None:
        raise SqlError("Delete without a where clause is not allowed; use TRUNCATE TABLE.")
    sql = duckdb_sql(store, session, cursor, tree)
    with changing(store, [(table.database, table.name)]), store.engine.transaction(cursor):
        row = cursor.execute(sql).fetchone()
    return int(row[0]) if row else 0


def _known(table: Table, name: str) -> str:
    column = table.column(name)
    if column is None:
        raise SqlError(f"Getting analyzing error. Detail message: Unknown column '{name}' in '{table.name}'.", 1054)
    return column.name


def _columns(table: Table, names: Sequence[str]) -> tuple[str, ...]:
    columns = tuple(_known(table, name) for name in names) or tuple(column.name for column in table.columns)
    if len(set(columns)) != len(columns):
        raise SqlError("Getting analyzing error. Detail message: a column is specified twice.", 1110)
    return columns


def _as_source(sql: str) -> str:
    return f"SELECT fields, CAST(NULL AS VARCHAR) AS raw, CAST(NULL AS VARCHAR) AS fault FROM ({sql}) AS listed(fields)"


def _inserted_fields(
    store: Store,
    session: QuerySession,
    cursor: duckdb.DuckDBPyConnection,
    tree: exp.Insert,
    columns: Sequence[Column],
) -> str:
    """The inserted rows in the shape that the judge reads."""
    query = tree.expression
    if isinstance(query, exp.Values):
        for row in query.expressions:
            _check_width(len(row.expressions), len(columns))
        lists = [
            exp.Tuple(
                expressions=[
                    exp.Array(
                        expressions=[
                            exp.cast(constructed(value, column.type.text), "varchar")
                            for value, column in zip(row.expressions, columns, strict=True)
                        ]
                    )
                ]
            )
            for row in query.expressions
        ]
        return _as_source(duckdb_sql(store, session, cursor, exp.Values(expressions=lists)))
    sql = duckdb_sql(store, session, cursor, query)
    description = cursor.execute(f"SELECT * FROM ({sql}) LIMIT 0").description or []
    _check_width(len(description), len(columns))
    names = ", ".join(f"c{place}" for place in range(len(columns)))
    casts = ", ".join(f"CAST(c{place} AS VARCHAR)" for place in range(len(columns)))
    return _as_source(f"SELECT [{casts}] FROM ({sql}) AS inserted({names})")


def _check_width(width: int, expected: int) -> None:
    if width != expected:
        message = f"Inserted target column count: {expected} doesn't match select/value column count: {width}"
        raise SqlError(analyzing_error(message), 5604)


def _apply(store: Store, cursor: duckdb.DuckDBPyConnection, plan: Plan, source: str) -> int:
    cursor.execute(f"CREATE OR REPLACE TEMP TABLE changed AS {judged_sql(plan, source)}")
    judgement = verdict(cursor, "changed")
    if judgement.filtered:
        number = store.next_txn_id()
        log = f"select tracking_log from information_schema.load_tracking_logs where job_id={number}"
        raise SqlError(f"Insert has filtered data, txn_id = {number}, tracking sql = {log}")
    manner = Manner(tuple(column.name for column in written_columns(plan)), partial=plan.partial)
    if not plan.partial and (values := needed(cursor, plan.table, "changed")):
        store.add_partitions(plan.table, values)
    try:
        apply_rows(cursor, plan.table, manner, "(SELECT rowid AS __arrival, * FROM changed)")
    except MissingDefault as error:
        raise SqlError(str(error)) from error
    return judgement.loaded
