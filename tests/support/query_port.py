"""One statement on the stand-in's query port."""

from __future__ import annotations

from typing import Any

import pymysql

from starrocks_emulator.server import Emulator


def query(server: Emulator, sql: str, *values: Any, password: str = "") -> list[tuple[Any, ...]]:
    """The rows of a statement as root; `values` fill its placeholders."""
    connection = pymysql.connect(
        host="127.0.0.1", port=server.query_port, user="root", password=password, autocommit=True
    )
    with connection, connection.cursor() as cursor:
        cursor.execute(sql, values or None)
        return list(cursor.fetchall())
