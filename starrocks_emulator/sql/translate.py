"""Queries of StarRocks' dialect as DuckDB queries over the stored tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import duckdb
from sqlglot import exp

from starrocks_emulator.sql import information_schema
from starrocks_emulator.sql.nested import NestedColumns
from starrocks_emulator.sql.session import NO_DATABASE, SYNTAX, QuerySession, SqlError, analyzing_error
from starrocks_emulator.tables.catalog import UNKNOWN_TABLE, CatalogError, Table, stored_name
from starrocks_emulator.tables.sets import COUNTED_BY
from starrocks_emulator.tables.types import ColumnType

if TYPE_CHECKING:
    from starrocks_emulator.tables.store import Store

INFORMATION_SCHEMA = "information_schema"


def table_of(store: Store, session: QuerySession, node: exp.Expr | None) -> Table:
    """The stored table that a parsed name means; raises SqlError or CatalogError."""
    if not isinstance(node, exp.Table):
        raise SqlError(analyzing_error("a table name is expected"))
    return store.registry.table(database_of(session, node), node.name)


def target_of(store: Store, session: QuerySession, node: exp.Expr | None, privilege: str) -> Table:
    """The table that a statement changes; raises SqlError, Denied or CatalogError."""
    try:
        table = table_of(store, session, node)
    except CatalogError as error:
        raise SqlError(analyzing_error(error.as_target), SYNTAX if error.table else error.code) from error
    session.rights.require_table(privilege, table.database, table.name)
    return table


def database_of(session: QuerySession, node: exp.Table) -> str:
    """The database of a table's name, by default the current one; raises SqlError if there is none."""
    database = node.db or session.database
    if not database:
        raise SqlError("No database selected", NO_DATABASE)
    return database


def duckdb_sql(store: Store, session: QuerySession, cursor: duckdb.DuckDBPyConnection, tree: exp.Expr) -> str:
    """The DuckDB statement for a parsed one; relations of information_schema that it reads are laid out on `cursor`."""
    names = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    functions = _functions(session)
    counting, nested = _counting(store, session, tree), NestedColumns(types_of(store, session, tree))

    def rewrite(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            return node if not node.db and node.name.lower() in names else _located(store, session, cursor, node)
        if isinstance(node, exp.Column) and node.args.get("db"):
            return exp.column(node.this.copy(), table=node.args["table"].copy())
        if isinstance(node, exp.SessionParameter):
            value = session.variables.get(node.name.lower(), "")
            return exp.Literal.number(value) if value.isdecimal() else exp.Literal.string(value)
        if isinstance(node, exp.Count) and isinstance(node.this, exp.Distinct) and len(node.this.expressions) == 1:
            (argument,) = node.this.expressions
            function_name = counting.get(argument.name.lower()) if isinstance(argument, exp.Column) else None
            return exp.Anonymous(this=function_name, expressions=[argument]) if function_name else node
        if isinstance(node, exp.CurrentTimestamp):
            return _now()
        if (as_json := nested.rewritten(node)) is not None:
            return as_json
        function = functions.get(node.sql_name() if isinstance(node, exp.Func) else "")
        if isinstance(node, exp.Anonymous):
            function = functions.get(node.name.upper())
        return function() if function else node

    rewritten = tree.copy().transform(rewrite, copy=False)
    return _with_texts(_with_escapes(rewritten)).sql(dialect="duckdb", copy=False)


def types_of(store: Store, session: QuerySession, tree: exp.Expr) -> Mapping[str, tuple[Table, ColumnType]]:
    """The columns of the tables that `tree` reads, by their names in lower case, with table and type."""
    tables = [store.registry.find(node.db or session.database, node.name) for node in tree.find_all(exp.Table)]
    return {column.name.lower(): (table, column.type) for table in tables if table for column in table.columns}


def _counting(store: Store, session: QuerySession, tree: exp.Expr) -> dict[str, str]:
    """Names of BITMAP and HLL columns in the tables of `tree` → the function that counts their values."""
    functions = {}
    for node in tree.find_all(exp.Table):
        table = store.registry.find(node.db or session.database, node.name)
        for column in table.columns if table else ():
            if column.type.is_set:
                functions[column.name.lower()] = COUNTED_BY[column.type.name]
    return functions


def _with_escapes(tree: exp.Expr) -> exp.Expr:
    """Give each LIKE the escape character that it has in StarRocks unless it names one: the backslash."""
    for like in list(tree.find_all(exp.Like)):
        if not isinstance(like.parent, exp.Escape):
            escape = exp.Escape(this=like.copy(), expression=exp.Literal.string("\\"))
            like.replace(escape)
    return tree


def _with_texts(tree: exp.Expr) -> exp.Expr:
    """Have each cast to a text write numbers as the server does."""
    for cast in reversed(list(tree.find_all(exp.Cast))):
        if cast.to.this in exp.DataType.TEXT_TYPES and not isinstance(cast, exp.TryCast):
            cast.replace(exp.Anonymous(this="text_of", expressions=[cast.this]))
    return tree


def with_names(tree: exp.Query) -> exp.Query:
    """The query with an alias for every result column that has none: the text it was written as, as in StarRocks."""
    renamed = tree.copy()
    first = renamed
    while isinstance(first, exp.SetOperation):
        first = first.left
    if isinstance(first, exp.Select):
        first.set("expressions", [_named(part) for part in first.expressions])
    return renamed


def _named(part: exp.Expr) -> exp.Expr:
    if isinstance(part, exp.Alias) or part.is_star:
        return part
    text = part.name if isinstance(part, exp.Column) else part.sql(dialect="starrocks", normalize_functions="lower")
    return exp.alias_(part, text, quoted=True)


def _located(store: Store, session: QuerySession, cursor: duckdb.DuckDBPyConnection, node: exp.Table) -> exp.Expr:
    database = database_of(session, node)
    located: exp.Expr = node.copy()
    located.set("catalog", None)
    if database.lower() == INFORMATION_SCHEMA:
        name = node.name.lower()
        rows = information_schema.relation(store, name, session.rights)
        if rows is None:
            raise SqlError(analyzing_error(f"Unknown table '{INFORMATION_SCHEMA}.{name}'"), UNKNOWN_TABLE)
        cursor.register(f"{INFORMATION_SCHEMA}_{name}", rows)
        located.set("db", None)
        located.set("this", exp.to_identifier(f"{INFORMATION_SCHEMA}_{name}", quoted=True))
    else:
        table = store.registry.table(database, node.name)
        session.rights.require_table("SELECT", table.database, table.name)
        located.set("db", exp.to_identifier(stored_name(f"db_{table.database}"), quoted=True))
        located.set("this", exp.to_identifier(stored_name(table.name), quoted=True))
    if not node.alias:
        located = exp.alias_(located, node.name, table=True, quoted=True)
    return located


def _now() -> exp.Expr:
    """A DATETIME, which has no zone, in whole seconds."""
    return _seconds(exp.cast(exp.CurrentTimestamp(), "timestamp"))


def _now_in_utc() -> exp.Expr:
    return _seconds(exp.AtTimeZone(this=exp.CurrentTimestamp(), zone=exp.Literal.string("UTC")))


def _seconds(moment: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this="date_trunc", expressions=[exp.Literal.string("second"), moment])


def _functions(session: QuerySession) -> dict[str, Callable[[], exp.Expr]]:
    def text(value: str) -> Callable[[], exp.Expr]:
        return lambda: exp.Literal.string(value)

    user = f"'{session.user}'@'%'"
    return {
        "CURRENT_VERSION": text(session.version),
        "VERSION": text(session.variables["version"]),
        "DATABASE": text(session.database),
        "SCHEMA": text(session.database),
        "CURRENT_SCHEMA": text(session.database),
        "CURRENT_DATABASE": text(session.database),
        "USER": text(user),
        "CURRENT_USER": text(user),
        "SESSION_USER": text(user),
        "NOW": _now,
        "UTC_TIMESTAMP": _now_in_utc,
        "LOCALTIMESTAMP": _now,
        "CONNECTION_ID": lambda: exp.Literal.number(session.connection_id),
    }
