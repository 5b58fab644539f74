"""The servers that the contract suite runs against: here the stand-in, in both generations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from contract_client import Client, Server

from starrocks_txn_sink.emulator.server import Emulator
from starrocks_txn_sink.emulator.settings import Generation, Settings

USER, PASSWORD, DATABASE = "writer", "a:b secret", "contract_db"


@pytest.fixture(scope="package", params=["B", "C"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running server with an empty database `contract_db` and another one, `other_db`."""
    settings = Settings(Generation(request.param), user=USER, password=PASSWORD)
    with Emulator(tmp_path_factory.mktemp("stand-in"), settings) as emulator:
        found = Server(emulator.load_url, emulator.query_url, USER, PASSWORD, DATABASE, request.param)
        found.sql(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        found.sql("CREATE DATABASE IF NOT EXISTS other_db")
        yield found


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    client = Client(server)
    with client.session:
        yield client


@pytest.fixture
def generation_b(server: Server) -> None:
    if server.generation != "B":
        pytest.skip("a rule of generation B")


@pytest.fixture
def generation_c(server: Server) -> None:
    if server.generation != "C":
        pytest.skip("a rule of generation C")
