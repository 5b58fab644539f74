"""What the tests write and read: the server, an emulator or that of `make test SERVER=…`, and databases of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cdc.mariadb import MariaDB, NoMariaDB
from tests.cdc.postgres import NoPostgres, Postgres
from tests.kafka.conftest import starrocks, warehouse

__all__ = ["starrocks", "warehouse"]


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
