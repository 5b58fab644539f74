"""The targets of the end-to-end tests: the emulator, and a real StarRocks where Docker is."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import SinkOptions
from starrocks_txn_sink.options.addresses import parse_query_url
from tests.spark.conftest import spark
from tests.support.servers import PREFIX, login

__all__ = ["spark"]


@dataclass(frozen=True, slots=True)
class Target:
    """Where an end-to-end test writes: a server, and a database of its own."""

    load_url: str
    query_url: str
    database: str
    rewrites: dict[str, str]

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        (where,) = parse_query_url(self.query_url)
        user, password = login().user, login().password
        connection = pymysql.connect(host=where.host, port=where.port, user=user, password=password, autocommit=True)
        with contextlib.closing(connection), connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def table(self, name: str, columns: str, key: str = "PRIMARY KEY(id)") -> None:
        self.sql(
            f"CREATE TABLE {self.database}.{name} ({columns}) {key} DISTRIBUTED BY HASH(id) BUCKETS 1"
            " PROPERTIES ('replication_num' = '1')"
        )

    def options(self, **changes: Any) -> SinkOptions:
        values = {
            "load_url": self.load_url,
            "query_url": self.query_url,
            "database": self.database,
            "job": "integration",
            "redirect_map": self.rewrites,
            "ledger_replication": 1,
            "username": login().user,
            "password": login().password,
        }
        return SinkOptions(**{**values, **changes})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" in metafunc.fixturenames:
        choice = str(metafunc.config.getoption("starrocks", default="emulator"))
        names = {"emulator": ["emulator"], "real": ["real"], "both": ["emulator", "real"]}[choice]
        metafunc.parametrize("target", names, indirect=True)


@pytest.fixture
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    """A server with a fresh database."""
    database = f"{PREFIX}{secrets.token_hex(4)}_e2e"
    with contextlib.ExitStack() as stack:
        if request.param == "real":
            real = request.getfixturevalue("real_starrocks")
            server = Target(real.load_url, real.query_url, database, dict(real.rewrites))
        else:
            emulator = stack.enter_context(Emulator(tmp_path / "emulator"))
            server = Target(emulator.load_url, emulator.query_url, database, {})
        server.sql(f"CREATE DATABASE {database}")
        stack.callback(server.sql, f"DROP DATABASE {database}")
        yield server
