"""Statements on a query port of this machine."""

from __future__ import annotations

from typing import Any

import pymysql

from tests.support.servers import Server, ServerForTests


def connect(port: int, user: str = "root", password: str = "", **more: Any) -> pymysql.Connection[Any]:
    """A connection that commits each statement.

    Without TLS: to offer it, the client would read all certificates of the machine, 25 ms of CPU a connection.
    """
    values: dict[str, Any] = {"autocommit": True, "ssl_disabled": True, **more}
    return pymysql.connect(host="127.0.0.1", port=port, user=user, password=password, **values)


def query(server: Server, sql: str, *values: Any, **more: Any) -> list[tuple[Any, ...]]:
    """The rows of a statement of the server's user, on a connection of its own; `values` fill its placeholders."""
    if isinstance(server, ServerForTests):
        return server.query(sql, *values, **more)
    settings = {"user": server.settings.user, "password": server.settings.password, **more}
    with connect(server.query_port, **settings) as connection, connection.cursor() as cursor:
        cursor.execute(sql, values or None)
        return list(cursor.fetchall())
