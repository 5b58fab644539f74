"""A MySQL client for the query port."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import pymysql


class SqlClient:
    """One connection, opened at the first query and again after an error. For one thread at a time."""

    def __init__(self, query_url: str, *, user: str = "root", password: str = "", timeout: float = 60.0) -> None:
        address = urlsplit(query_url)
        self._host, self._port = address.hostname or "127.0.0.1", address.port or 9030
        self._user, self._password, self._timeout = user, password, timeout
        self._connection: pymysql.connections.Connection[Any] | None = None

    def __call__(self, sql: str) -> Sequence[Sequence[Any]]:
        """Run one statement and return its rows; any error closes the connection."""
        try:
            with self._connected().cursor() as cursor:
                cursor.execute(sql)
                rows: Sequence[Sequence[Any]] = cursor.fetchall()
                return rows
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(pymysql.Error, OSError):
                connection.close()

    def _connected(self) -> pymysql.connections.Connection[Any]:
        if self._connection is None:
            self._connection = pymysql.connect(
                host=self._host,
                port=self._port,
                user=self._user,
                password=self._password,
                autocommit=True,
                connect_timeout=10,
                read_timeout=self._timeout,
                write_timeout=self._timeout,
            )
        return self._connection
