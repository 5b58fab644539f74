"""The emulator with the two tables of tests.crash.workload: how to reach it, and what its tables show."""

from __future__ import annotations

from typing import Any

from starrocks_emulator.process import EmulatorProcess
from tests.crash.workload import JUDGEMENT, ddl
from tests.support.query_port import query
from tests.support.servers import ServerForTests, place_of

DATABASE = "shop"


class Shop:
    """Creates the tables at once."""

    def __init__(self, starrocks: EmulatorProcess | ServerForTests) -> None:
        self._starrocks = starrocks
        for sql in ddl(DATABASE):
            self.ask(sql)

    def options(self, job: str) -> dict[str, Any]:
        """Keywords of SinkOptions."""
        settings = self._starrocks.settings
        return {**place_of(self._starrocks), "username": settings.user, "password": settings.password, "job": job}

    def ask(self, sql: str, **more: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement; `more` goes to the connection."""
        return query(self._starrocks, sql, **more)

    def seen(self) -> list[tuple[Any, ...]]:
        """What `judge` judges."""
        return self.ask(JUDGEMENT.format(DATABASE))
