"""The stand-in with the two tables of tests.crash.workload: how to reach it, and what its tables show."""

from __future__ import annotations

from typing import Any

import pymysql

from starrocks_emulator.process import EmulatorProcess
from tests.crash.workload import JUDGEMENT, ddl

DATABASE = "shop"


class Shop:
    """Creates the tables at once."""

    def __init__(self, starrocks: EmulatorProcess) -> None:
        self._starrocks = starrocks
        for sql in ddl(DATABASE):
            self.ask(sql)

    def options(self, job: str) -> dict[str, Any]:
        """Keywords of SinkOptions."""
        return {
            "load_url": self._starrocks.load_url,
            "query_url": self._starrocks.query_url,
            "database": DATABASE,
            "username": self._starrocks.settings.user,
            "password": self._starrocks.settings.password,
            "job": job,
        }

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        settings = self._starrocks.settings
        with pymysql.connect(
            host="127.0.0.1", port=self._starrocks.query_port, user=settings.user, password=settings.password,
            autocommit=True,
        ) as connection, connection.cursor() as cursor:  # fmt: skip
            cursor.execute(sql)
            return list(cursor.fetchall())

    def seen(self) -> list[tuple[Any, ...]]:
        """What `judge` judges."""
        return self.ask(JUDGEMENT.format(DATABASE))
