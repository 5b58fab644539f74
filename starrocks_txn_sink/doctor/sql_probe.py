"""Statements to one query port, with the names of their columns, and the server's own words when it refuses."""

from __future__ import annotations

from typing import Any

import pymysql
import pymysql.cursors
from pymysql.err import MySQLError

from starrocks_txn_sink.errors import QueryFailed, QueryRefused
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import Address

Row = dict[str, Any]
_CONNECTION_ERRORS = frozenset({2003, 2005, 2006, 2013, 2014})


class SqlProbe:
    """One connection. Column names come in lower case, because versions of StarRocks write them differently.

    Raises QueryFailed when the port does not answer, QueryRefused when the server says no; our statements hold nothing
    secret, so the server's text is shown.
    """

    def __init__(self, options: SinkOptions, address: Address) -> None:
        self.address = address
        timeout = max(1, round(options.connect_timeout))
        try:
            self._connection = pymysql.connect(
                host=address.host,
                port=address.port,
                user=options.username,
                password=options.read_password(),
                connect_timeout=timeout,
                read_timeout=options.read_timeout,
                write_timeout=options.read_timeout,
                autocommit=True,
            )
        except (MySQLError, OSError) as error:
            raise _error(error) from None

    def rows(self, sql: str, parameters: tuple[object, ...] = ()) -> list[Row]:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql, parameters or None)
                names = [str(column[0]).lower() for column in cursor.description or ()]
                return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        except (MySQLError, OSError) as error:
            raise _error(error) from None

    def value(self, sql: str, parameters: tuple[object, ...] = ()) -> Any:
        """The first column of the first row; None without rows."""
        return next((next(iter(row.values())) for row in self.rows(sql, parameters)), None)

    def close(self) -> None:
        self._connection.close()


def _error(error: Exception) -> QueryFailed | QueryRefused:
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    said = str(error.args[1] if len(error.args) > 1 else error)[:200]
    if isinstance(error, OSError) or number in _CONNECTION_ERRORS or number == 0:
        return QueryFailed(f"The query port did not answer ({number or type(error).__name__}).")
    return QueryRefused(f"{said} ({number})")
