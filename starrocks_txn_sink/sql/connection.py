"""SQL queries of the tools: any frontend, rows with column names, errors with the server's text.

Queries that decide about commits use `sql.leader` instead: an older server's follower may return old rows.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.cursors import SSCursor
from pymysql.err import MySQLError

from starrocks_txn_sink.errors import QueryFailed, QueryRefused
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import Address

Row = dict[str, Any]
# MySQL client errors: cannot connect, unknown host, server gone, connection lost, commands out of sync.
_CONNECTION_ERRORS = frozenset({2003, 2005, 2006, 2013, 2014})
_FETCH_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The first rows of a result, and its total number of rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    total: int


class SqlConnection:
    """One connection to one query port.

    Raises QueryFailed if the port does not answer, QueryRefused with the server's text if the server refuses. The text
    may repeat the statement, so show it to its author only and keep it out of logs.
    """

    def __init__(self, options: SinkOptions, address: Address) -> None:
        self.address = address
        settings = connect_arguments(options, address, options.connect_timeout, options.read_timeout)
        try:
            self._connection = pymysql.connect(**settings)
        except (MySQLError, OSError) as error:
            raise _translate_error(error) from None
        with contextlib.suppress(MySQLError, OSError):  # an older server, whose frontend answers for itself
            forward_queries(self._connection)

    @classmethod
    def connect_any(cls, options: SinkOptions) -> SqlConnection:
        """Connect to the first address of `query_url` that accepts the login; raises the last address's error."""
        error: QueryFailed | QueryRefused = QueryFailed("query_url names no address.")
        for address in options.query_addresses:
            try:
                return cls(options, address)
            except (QueryFailed, QueryRefused) as failed:
                error = failed
        raise error

    def rows(self, sql: str, parameters: tuple[object, ...] = ()) -> list[Row]:
        """All rows as dicts. Column names are in lower case, because versions of StarRocks differ in their case."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql, parameters or None)
                names = [str(column[0]).lower() for column in cursor.description or ()]
                return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        except (MySQLError, OSError) as error:
            raise _translate_error(error) from None

    def value(self, sql: str, parameters: tuple[object, ...] = ()) -> Any:
        """The first column of the first row; None without rows."""
        return next((next(iter(row.values())) for row in self.rows(sql, parameters)), None)

    def excerpt(self, sql: str, limit: int) -> Excerpt:
        """The first `limit` rows. Counts the remaining rows without keeping them, so memory stays bounded."""
        try:
            with self._connection.cursor(SSCursor) as cursor:
                cursor.execute(sql)
                names = tuple(str(column[0]) for column in cursor.description or ())
                first = tuple(cursor.fetchmany(limit)) if names else ()
                total = len(first)
                while rest := (cursor.fetchmany(_FETCH_ROWS) if total else ()):
                    total += len(rest)
                return Excerpt(names, first, total)
        except (MySQLError, OSError) as error:
            raise _translate_error(error) from None

    def close(self) -> None:
        """Close the connection; never raises."""
        with contextlib.suppress(MySQLError, OSError):
            self._connection.close()


def connect_arguments(
    options: SinkOptions, address: Address, connect_seconds: float, answer_seconds: float
) -> dict[str, Any]:
    """Arguments of `pymysql.connect` for `address`. Reads the password anew; raises OptionError if it cannot."""
    return {
        "host": address.host,
        "port": address.port,
        "user": options.username,
        "password": options.read_password(),
        "connect_timeout": max(1, round(connect_seconds)),
        "read_timeout": answer_seconds,
        "write_timeout": answer_seconds,
        "autocommit": True,
    }


def forward_queries(connection: Any) -> None:
    """Ask a frontend that does not lead, or will not any more, to pass queries on (wire contract 10.11)."""
    with connection.cursor() as cursor:
        cursor.execute("SET follower_query_forward_mode = 'leader'")


def _translate_error(error: Exception) -> QueryFailed | QueryRefused:
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    said = str(error.args[1] if len(error.args) > 1 else error)[:200]
    if isinstance(error, OSError) or number in _CONNECTION_ERRORS or number == 0:
        return QueryFailed(f"The query port did not answer ({number or type(error).__name__}).")
    return QueryRefused(f"{said} ({number})")
