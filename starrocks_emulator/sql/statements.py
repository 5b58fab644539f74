"""One request of the query port: its statements parsed, told apart and run; the last one's answer counts.

On the leader they run over the store. On a follower SELECT sees what was visible when the follower last caught up, and
everything else goes on to the leader, as followers forward it; SELECT too, once the session has asked for it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import duckdb
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError, TokenError

from starrocks_emulator.settings import SettingError
from starrocks_emulator.sql import changes, definitions
from starrocks_emulator.sql.ddl import Dialect
from starrocks_emulator.sql.information_schema import NO_LOG
from starrocks_emulator.sql.nested import writers
from starrocks_emulator.sql.partitions import about_partitions
from starrocks_emulator.sql.session import (
    DENIED,
    FORWARD_MODE,
    UNKNOWN_ERROR,
    Answer,
    QuerySession,
    SqlError,
    analyzing_error,
    no_backend,
    no_replica,
)
from starrocks_emulator.sql.show import is_show, show
from starrocks_emulator.sql.translate import INFORMATION_SCHEMA, duckdb_sql, types_of, with_names
from starrocks_emulator.tables.catalog import CatalogError
from starrocks_emulator.tables.sets import KEPT_AS
from starrocks_emulator.users import Denied, UserError, is_about_users

if TYPE_CHECKING:
    from starrocks_emulator.tables.store import Store


import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import cast

from starrocks_emulator.tables.engine import Engine
from starrocks_emulator.tables.store import Store

_REMEMBERED: Final = 4_096  # characters; a longer text is an INSERT of many rows, and comes once
_LABEL = re.compile(r"(INSERT\s+INTO\s+\S+\s+)WITH\s+LABEL\s+\S+\s", re.IGNORECASE)
_ENDLESS = re.compile(r"(\bPARTITION\s+\S+\s+VALUES\s+LESS\s+THAN\s+)MAXVALUE\b", re.IGNORECASE)
"""sqlglot reads the bound in brackets only."""
_USER_FAULTS = (
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.ParserException,
    duckdb.ConversionException,
    duckdb.InvalidInputException,
    duckdb.OutOfRangeException,
    duckdb.NotImplementedException,
)

_UNKNOWN_COLUMN = re.compile(r"(?i)\bcolumn \"([^\"]+)\" (?:not found|referenced that exists)")
_FIRST_WORD = re.compile(r"\s*([A-Za-z_]+)")
_STATEMENTS = frozenset(
    (
        *(
            "ALTER",
            "ANALYZE",
            "BEGIN",
            "COMMIT",
            "CREATE",
            "DELETE",
            "DROP",
            "EXPLAIN",
            "INSERT",
            "REFRESH",
            "ROLLBACK",
        ),
        *("SELECT", "SET", "START", "SUBMIT", "TRUNCATE", "UPDATE", "USE", "VALUES", "WITH"),
    )
)

# sqlglot reports forms it does not know as warnings; here they become errors for the client.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


def run(store: Store, session: QuerySession, sql: str) -> Answer:
    """Run all statements of `sql`; raises SqlError."""
    store.alterations.finish_due()
    try:
        if is_about_users(sql):
            session.users.run(sql)
            return Answer()
        if (answered := about_partitions(store, session, sql)) is not None:
            return answered
        if is_show(sql):
            return show(store, session, sql)
        answer = Answer()
        for tree in parse(sql):
            answer = _run_one(store, session, tree)
    except CatalogError as error:
        raise SqlError(analyzing_error(error.message), error.code) from error
    except Denied as error:
        raise SqlError(str(error), DENIED) from error
    except UserError as error:
        raise SqlError(analyzing_error(str(error))) from error
    except _USER_FAULTS as error:
        message = str(error).splitlines()[0]
        unknown = _UNKNOWN_COLUMN.search(message)
        raise SqlError(analyzing_error(f"Column '{unknown[1]}' cannot be resolved" if unknown else message)) from error
    except duckdb.Error as error:
        raise SqlError(str(error).splitlines()[0], UNKNOWN_ERROR) from error
    return answer


def parse(sql: str) -> tuple[exp.Expr, ...]:
    """The statements of `sql`, to be copied before they are changed: who asks again gets the same. Raises SqlError."""
    return _parse(sql) if len(sql) <= _REMEMBERED else _parse.__wrapped__(sql)


@lru_cache(maxsize=128)  # a driver asks the same of its tables and of the ledger again and again
def _parse(sql: str) -> tuple[exp.Expr, ...]:
    _check_words(sql)
    try:
        trees = sqlglot.parse(_ENDLESS.sub(r"\1(MAXVALUE)", _LABEL.sub(r"\1", sql)), read=Dialect)
    except TokenError as error:  # a quotation without an end
        raise _unexpected("<EOF>", len(sql)) from error
    except SqlglotError as error:
        place = getattr(error, "errors", None)
        where = f" at line {place[0]['line']}, column {place[0]['col']}" if place and place[0].get("line") else ""
        raise SqlError(f"Getting syntax error{where}. Detail message: the statement cannot be parsed.") from error
    statements = [tree for tree in trees if tree is not None and not isinstance(tree, exp.Semicolon)]
    for tree in statements:
        _refuse_reserved(tree)
    return tuple(with_names(tree) if isinstance(tree, exp.Query) else tree for tree in statements)


def _check_words(sql: str) -> None:
    """Refuse what begins with no word of a statement, and an empty text; raises SqlError."""
    word = _FIRST_WORD.match(sql)
    if not sql.strip(" \t\r\n;"):
        raise _unexpected("<EOF>", 0)
    if word is not None and word[1].upper() not in _STATEMENTS:
        raise _unexpected(word[1], word.start(1))


def _unexpected(text: str, column: int) -> SqlError:
    return SqlError(
        f"Getting syntax error at line 1, column {column}. Detail message: Unexpected input '{text}', the most similar "
        "input is {'SELECT'}."
    )


_RESERVED_WORDS: Final = """
ADD ALL ALTER ANALYZE AND ARRAY AS ASC BETWEEN BIGINT BITMAP BOTH BY CASE CHAR CHARACTER CHECK COLLATE
COLUMN COMPACTION CONVERT CREATE CROSS CUBE CUME_DIST DATABASE DATABASES DECIMAL DECIMALV2 DECIMAL32
DECIMAL64 DECIMAL128 DEFAULT DEFERRED DELETE DENSE_RANK DESC DESCRIBE DISTINCT DOUBLE DROP DUAL ELSE EXCEPT
EXISTS EXPLAIN FALSE FILES FIRST_VALUE FLOAT FOR FORCE FROM FULL FUNCTION GRANT GROUP GROUPING GROUPING_ID
GROUPS HAVING HLL HOST IF IGNORE IMMEDIATE IN INDEX INFILE INNER INSERT INT INTEGER INTERSECT INTO IS JOIN
JSON KEY KEYS KILL LAG LARGEINT LAST_VALUE LATERAL LEAD LEFT LIKE LIMIT LOAD MAXVALUE MINUS MOD NOT NTILE
NULL ON OR ORDER OUTER OUTFILE OVER PARTITION PERCENTILE PRIMARY PROCEDURE QUALIFY RANGE RANK READ REGEXP
RELEASE RENAME REPLACE REVOKE RIGHT RLIKE ROW ROWS ROW_NUMBER SCHEMA SCHEMAS SELECT SET SET_VAR SHOW
SMALLINT SYSTEM TABLE TERMINATED TEXT THEN TINYINT TO TRUE UNION UNIQUE UNSIGNED UPDATE USE USING VALUES
VARCHAR WHEN WHERE WITH
"""
_WINDOW_FUNCTIONS = frozenset(
    (
        *("CUME_DIST", "DENSE_RANK", "FIRST_VALUE", "LAG", "LAST_VALUE", "LEAD", "NTILE", "PERCENT_RANK", "RANK"),
        "ROW_NUMBER",
    )
)
_RESERVED = _WINDOW_FUNCTIONS | frozenset(_RESERVED_WORDS.split())
"""Words that StarRocks reserves (wire contract 10.13) [D]; `TEXT` and `FILES` were seen [R]."""


def _refuse_reserved(tree: exp.Expr) -> None:
    """Refuse a reserved word that is used as a name without back-quotes; raises SqlError."""
    for name in tree.find_all(exp.Identifier):
        if not name.quoted and name.name.upper() in _RESERVED:
            raise SqlError(
                f"Getting syntax error. Detail message: Unexpected input '{name.name}', the most similar input is "
                + ("{'('}." if name.name.upper() in _WINDOW_FUNCTIONS else "{a legal identifier}.")
            )


def _run_one(store: Store, session: QuerySession, tree: exp.Expr) -> Answer:
    if isinstance(tree, exp.Query):
        return _select(store, session, tree)
    for kind, change in _CHANGES:
        if isinstance(tree, kind):
            if not session.frontend.backends_alive:
                raise SqlError(no_replica(session.frontend))
            with store.engine.cursor() as cursor:
                return Answer(affected=change(store, session, cursor, tree))
    for kind, define in _DEFINITIONS:
        if isinstance(tree, kind):
            define(store, session, tree)
            return Answer()
    if isinstance(tree, exp.Use):
        use(store, session, tree.this.name)
        return Answer()
    if isinstance(tree, exp.Set):
        _set(session, tree)
        return Answer()
    if isinstance(tree, (exp.Transaction, exp.Commit, exp.Rollback)):
        return Answer()
    raise SqlError(analyzing_error("this statement cannot be served by the emulator."))


def _update(store: Store, session: QuerySession, cursor: duckdb.DuckDBPyConnection, tree: exp.Update) -> int:
    """UPDATE of a table, or of the backends' settings."""
    if tree.this.db.lower() != INFORMATION_SCHEMA:
        return changes.update(store, session, cursor, tree)
    _configure_backends(session, tree)
    return 0


def _configure_backends(session: QuerySession, tree: exp.Update) -> None:
    """UPDATE information_schema.be_configs SET value = … WHERE name = …: a setting of all backends, from now on."""
    session.rights.require_system("OPERATE")
    where = tree.args.get("where")
    condition = where.this if where is not None else None
    assigned = {part.this.name.lower(): part.expression.name for part in tree.expressions}
    is_served = tree.this.name.lower() == "be_configs" and set(assigned) == {"value"}
    if not (is_served and isinstance(condition, exp.EQ) and condition.this.name.lower() == "name"):
        raise SqlError(analyzing_error("only SET value = … WHERE name = … of be_configs can be served"))
    try:
        session.frontend.config.change_backends(condition.expression.name, assigned["value"])
    except SettingError as error:
        raise SqlError(str(error)) from error


def _select(store: Store, session: QuerySession, tree: exp.Query) -> Answer:
    if not session.frontend.backends_alive and _needs_backend(tree):
        raise SqlError(no_backend(session.frontend))
    if not session.frontend.backends_alive and _needs_backend(tree):
        raise SqlError(no_backend(session.frontend))
    lock = store.engine.writing if session.locks_database else nullcontext()
    relations = {
        node.name.lower()
        for node in tree.find_all(exp.Table)
        if (node.db or session.database).lower() == INFORMATION_SCHEMA
    }
    with session.limited(), session.scans.of(relations, session.query_seconds), lock, store.engine.cursor() as cursor:
        if "load_tracking_logs" in relations:
            session.scans.look_for_logs(_missing_logs(store, tree), session.query_seconds)
        cursor.execute(duckdb_sql(store, session, cursor, tree))
        columns = [(str(column[0]), str(column[1])) for column in cursor.description or []]
        rows = cursor.fetchall()
        if hidden_places := [
            place for place, (_, kind) in enumerate(columns) if kind == KEPT_AS
        ]:  # as the server shows them
            rows = [tuple(None if place in hidden_places else value for place, value in enumerate(row)) for row in rows]
        types = {name: column_type for name, (_, column_type) in types_of(store, session, tree).items()}
        written = writers(tree, types, [name for name, _ in columns])
        if any(written):
            columns = [
                (name, "VARCHAR" if write else kind) for (name, kind), write in zip(columns, written, strict=True)
            ]
            rows = [
                tuple(
                    write(value) if write and value is not None else value
                    for write, value in zip(written, row, strict=True)
                )
                for row in rows
            ]
        if moments := [place for place, (_, kind) in enumerate(columns) if kind in ("DATE", "TIMESTAMP")]:
            rows = [_with_year_zero(row, moments) for row in rows]
        return Answer(columns, rows)


def _missing_logs(store: Store, tree: exp.Query) -> int:
    """How many rows of load_tracking_logs a query by label reads that have no log of their own."""
    labels = {
        node.expression.name
        for node in tree.find_all(exp.EQ)
        if node.this.name.lower() == "label" and isinstance(node.expression, exp.Literal)
    }
    rows = store.virtual_tables.get((INFORMATION_SCHEMA, "load_tracking_logs"), tuple)() if labels else ()
    return sum(row["LABEL"] in labels and str(row["TRACKING_LOG"]).endswith(NO_LOG) for row in rows)


def _needs_backend(tree: exp.Query) -> bool:
    """Whether a query reads a relation, or calls the function that a backend computes (wire contract 10.14)."""
    return tree.find(exp.Table, exp.CurrentVersion) is not None


def _with_year_zero(row: tuple[Any, ...], places: Sequence[int]) -> tuple[Any, ...]:
    """The row with the year 0 as the server has it; DuckDB gives a moment before the year 1 as a text."""
    if not any(isinstance(row[place], str) for place in places):
        return row
    return tuple(
        value.replace("0001-", "0000-", 1).replace(" (BC)", "") if place in places and isinstance(value, str) else value
        for place, value in enumerate(row)
    )


def use(store: Store, session: QuerySession, database: str) -> None:
    """Make `database` the session's; raises CatalogError."""
    if database.lower() != INFORMATION_SCHEMA:
        store.registry.check_database(database)
    session.database = database


def _set(session: QuerySession, tree: exp.Set) -> None:
    for item in tree.expressions:
        assignment = item.this
        if isinstance(assignment, exp.EQ):
            value = assignment.expression
            text = str(value.this).lower() if isinstance(value, exp.Boolean) else value.name
            session.variables[assignment.this.name.lower()] = text


_Change = Callable[["Store", QuerySession, duckdb.DuckDBPyConnection, Any], int]
_Definition = Callable[["Store", QuerySession, Any], None]

_CHANGES: tuple[tuple[type[exp.Expr], _Change], ...] = (
    (exp.Insert, changes.insert),
    (exp.Update, _update),
    (exp.Delete, changes.delete),
)
_DEFINITIONS: tuple[tuple[type[exp.Expr], _Definition], ...] = (
    (exp.Create, definitions.create),
    (exp.Drop, definitions.drop),
    (exp.TruncateTable, definitions.truncate),
    (exp.Alter, definitions.alter),
)


class LaggingStore:
    """Reads as of the last `catch_up` (at first, of the start); it lags as long as nobody calls that."""

    def __init__(self, leader: Store) -> None:
        self._leader = leader
        self.engine = _OldEngine(leader.engine)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._leader, name)

    def query(self, sql: str, session: QuerySession) -> Answer:
        """As `statements.run` on the leader's store; SELECT sees the old state."""
        forwarded = session.variables[FORWARD_MODE].lower() == "leader"
        own = is_show(sql) or is_about_users(sql)
        reading = not forwarded and not own and all(isinstance(tree, exp.Query) for tree in parse(sql))
        return run(cast(Store, self), session, sql) if reading else run(self._leader, session, sql)

    def catch_up(self) -> None:
        """See what is visible now."""
        self.engine.renew()

    def close(self) -> None:
        """Let go of the old state; the leader's store stays open."""
        self.engine.close()


class _OldEngine:
    """Gives everybody the same session, inside a transaction that began at the last `renew`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.writing = engine.writing
        self._guard = threading.RLock()
        self._stack = ExitStack()
        self._session: duckdb.DuckDBPyConnection | None = None
        self.renew()

    @contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with self._guard:
            if self._session is None:
                raise RuntimeError("the follower has been closed")
            yield self._session

    def renew(self) -> None:
        with self._guard, self._engine.writing:
            self._stack.close()
            self._session = self._stack.enter_context(self._engine.cursor())
            self._session.execute("BEGIN")
            self._session.execute("SELECT count(*) FROM duckdb_tables()").fetchall()  # a snapshot is taken at first use

    def close(self) -> None:
        with self._guard:
            self._stack.close()
            self._session = None
