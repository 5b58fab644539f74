"""One statement on the stand-in's query port."""

from __future__ import annotations

from typing import Any

import pymysql

from starrocks_emulator.server import Emulator


def query(server: Emulator, sql: str) -> list[tuple[Any, ...]]:
    connection = pymysql.connect(host="127.0.0.1", port=server.query_port, user="root", autocommit=True)
    with connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())
