"""The servers that the contract suite runs against: the emulator in both generations, and a real one on request.

`make integration` adds the real one (`integration/plugin.py`); without it there is only the emulator.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import pytest

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Generation, Settings
from tests.support.contract_client import Client, Server
from tests.support.recorded_cases import objection
from tests.support.servers import PREFIX

USER, PASSWORD, DATABASE = "writer", "a:b secret", "contract_db"
EMULATED = {"emulator": ("B", "C"), "real": (), "both": ("B", "C")}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One run a server: B and C are the emulator's generations, `real` what the plugin provides."""
    if "server" in metafunc.fixturenames:
        choice = str(metafunc.config.getoption("starrocks", default="emulator"))
        names = [*EMULATED[choice], *([] if choice == "emulator" else ["real"])]
        metafunc.parametrize("server", names, indirect=True, scope="package")


@pytest.fixture(scope="package")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running server with two empty databases."""
    if request.param == "real":
        start: Callable[[type[Server], str], Server] = request.getfixturevalue("real_contract_server")
        real = start(Server, f"{PREFIX}{secrets.token_hex(4)}_contract")
        try:
            yield _with_databases(real)
        finally:
            for name in (real.database, real.other):
                real.sql(f"DROP DATABASE IF EXISTS {name} FORCE")
        return
    settings = Settings(Generation(request.param), user=USER, password=PASSWORD)
    with Emulator(tmp_path_factory.mktemp("emulator"), settings) as emulator:
        yield _with_databases(Server(emulator.load_url, emulator.query_url, USER, PASSWORD, DATABASE, request.param))


def _with_databases(server: Server) -> Server:
    for name in (server.database, server.other):
        server.sql(f"CREATE DATABASE IF NOT EXISTS {name}")
    return server


@pytest.fixture
def client(server: Server, request: pytest.FixtureRequest) -> Iterator[Client]:
    client = Client(server)
    with client.session:
        try:
            yield client
            seen = list(client.seen)
        finally:
            client.roll_back_all()
    # Generation B is that of the recorded server; a rule with parameters need not meet its scenes in each of them.
    if server.generation == "B" and set(request.node.callspec.params) == {"server"}:
        wrong = objection(request.function.__doc__ or "", seen)
        assert wrong is None, wrong


@pytest.fixture
def real(request: pytest.FixtureRequest) -> bool:
    """Whether the server is a real one."""
    return bool(request.node.callspec.params["server"] == "real")


@pytest.fixture
def generation_b(server: Server) -> None:
    if server.generation != "B":
        pytest.skip("a rule of generation B")


@pytest.fixture
def generation_c(server: Server) -> None:
    if server.generation != "C":
        pytest.skip("a rule of generation C")
