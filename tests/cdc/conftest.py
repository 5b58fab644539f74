"""What the tests write and read: the server, an emulator or that of `make test SERVER=…`, and databases of a module."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from starrocks_txn_ops import cli
from starrocks_txn_sink.protocol.ledger import create_table
from tests.cdc.mariadb import MariaDB, NoMariaDB
from tests.cdc.postgres import NoPostgres, Postgres
from tests.cdc.verifying import AHEAD, Verify
from tests.kafka.conftest import starrocks, warehouse
from tests.support.query_port import query
from tests.support.servers import Server

__all__ = ["starrocks", "warehouse"]

Shown = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def postgres(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """PostgreSQL with what the module's POSTGRES creates."""
    try:
        server = Postgres()
    except NoPostgres as missing:
        pytest.skip(str(missing))
    with server:
        server.sql(request.module.POSTGRES)
        yield server


@pytest.fixture(scope="module")
def mariadb(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    """MariaDB with what the module's MARIADB creates."""
    try:
        server = MariaDB(tmp_path_factory.mktemp("mariadb") / "server")
    except NoMariaDB as missing:
        pytest.skip(str(missing))
    with server:
        server.sql(*request.module.MARIADB)
        yield server


@pytest.fixture
def verify(server: Server, tmp_path: Path, capsys: Shown) -> Verify:
    """Run a command by a file with these rules, routes and lines of [source]; the ledger is at `position`.

    Its report also has what it `said` on standard error.
    """
    query(server, create_table("shop"))

    def run(url: str, more: str, *words: str, position: int = AHEAD, command: str = "verify", source: str = "") -> Any:
        ledger = "shop._starrocks_txn_sink_ledger"
        query(server, f"DELETE FROM {ledger} WHERE id = 'x'")
        query(
            server,
            f"INSERT INTO {ledger} (id, job, kind, name, position) VALUES ('x', 'j', 'position', 'shop', {position})",
        )
        file = tmp_path / "shop.toml"
        file.write_text(
            f"""
[source]
brokers = "b:9092"
topics = 'shop\\.((public|shop)\\..*|transaction)'
database = "{url}"
{source}
[target]
load_url = "{server.load_url}"
query_url = "mysql://127.0.0.1:{server.query_port}"
database = "shop"
job = "j"
{more}
[query]
checkpoint = "c"
""",
            encoding="utf-8",
        )
        capsys.readouterr()
        code = cli.main([command, str(file), "--json", "--wait", "0.1", *words])
        printed = capsys.readouterr()
        if not printed.out:
            return code, {}, {"error": printed.err}
        report = {**json.loads(printed.out), "said": printed.err}
        return code, {table["sources"][0]: table for table in report["tables"]}, report

    return run
