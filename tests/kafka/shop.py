"""The emulator with the two tables of tests.crash.workload: how to reach it, and what its tables show."""

from __future__ import annotations

from typing import Any

from starrocks_emulator.process import EmulatorProcess
from tests.crash.workload import JUDGEMENT, ddl
from tests.support.query_port import query

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

    def ask(self, sql: str, **more: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement; `more` goes to the connection."""
        settings = self._starrocks.settings
        return query(self._starrocks, sql, user=settings.user, password=settings.password, **more)

    def seen(self) -> list[tuple[Any, ...]]:
        """What `judge` judges."""
        return self.ask(JUDGEMENT.format(DATABASE))
