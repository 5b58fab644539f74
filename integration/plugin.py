"""pytest plugin: `--starrocks emulator|real|both`, which real server that is, `--record`, and the server's fixtures.

`make integration`, `make record` and `make test SERVER=…` load it. Without a Docker engine everything that needs a real
server is skipped with one sentence; a run that is to be recorded ends with it.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pymysql
import pytest

from integration.engine import NO_ENGINE, DockerEngine, NotStarted
from integration.parcel import LEFT_OUT
from integration.starrocks import TAG, NotReady, StarRocks, ask_mysql, running
from starrocks_txn_sink.options.addresses import parse_query_url
from tests.support.servers import login, refusal


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("starrocks")
    group.addoption("--starrocks", choices=("emulator", "real", "both"), default="both", help="what to run against")
    group.addoption("--starrocks-tag", default=TAG, help=f"tag of the image (default {TAG})")

    group.addoption("--starrocks-server", metavar="'LOAD QUERY'", help="two URLs: a server for tests that runs already")
    group.addoption("--record", type=Path, metavar="FOLDER", help="write the real server's answers into FOLDER")


def pytest_sessionstart(session: pytest.Session) -> None:
    option = session.config.getoption
    if option("record") is not None and option("starrocks_server") is None and not DockerEngine.answers():
        raise pytest.UsageError(
            f"{NO_ENGINE} Start Docker (`docker version` must name a server), or name a StarRocks for tests that runs"
            ' already: make test SERVER="http://127.0.0.1:8030 mysql://127.0.0.1:9030".'
        )
    if (urls := option("starrocks_server")) is not None and (reason := refusal(str(urls))) is not None:
        raise pytest.UsageError(reason)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With a server for tests, leave out what asks for no server that can be another one, and say what and why."""
    if config.getoption("starrocks_server") is None:
        return
    fits = [bool(_ON_A_SERVER & set(getattr(item, "fixturenames", ()))) for item in items]
    left_out = [item for item, fit in zip(items, fits, strict=True) if not fit]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item, fit in zip(items, fits, strict=True) if fit]
    if (folder := config.getoption("record")) is not None:
        (Path(str(folder)) / LEFT_OUT).write_text(_by_reason(left_out), encoding="utf-8")


def _by_reason(items: Sequence[pytest.Item]) -> str:
    """A line for each reason, with its number of tests, and below it their names, which are indented."""
    names = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("own_emulator")
        names[f"Only an emulator: {mark.args[0]}." if mark else "No StarRocks is needed."].append(item.nodeid)
    return "".join(
        f"Left out, {len(tests)}: {reason}\n" + "".join(f"  {test}\n" for test in tests)
        for reason, tests in sorted(names.items(), key=lambda entry: -len(entry[1]))
    )


_ON_A_SERVER = {"server", "starrocks", "target", "path", "warehouse"}
"""Fixtures that lead to the server; `path` is a recording's."""


@pytest.fixture(scope="session")
def real_starrocks(request: pytest.FixtureRequest) -> Iterator[StarRocks]:
    """A real StarRocks, one for the whole run; skips where no Docker engine answers."""
    if (addresses := request.config.getoption("starrocks_server")) is not None:
        yield _running_already(*str(addresses).split())
        return
    if not DockerEngine.answers():
        pytest.skip(NO_ENGINE)
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(running(DockerEngine(), str(request.config.getoption("starrocks_tag"))))
        except (NotStarted, NotReady) as error:
            pytest.fail(str(error), pytrace=False)
        yield server


def _running_already(load_url: str, query_url: str) -> StarRocks:
    (where,) = parse_query_url(query_url)
    try:
        frontends = ask_mysql(where.host, where.port, "SHOW FRONTENDS")
    except (pymysql.MySQLError, OSError) as error:
        pytest.fail(f"{query_url} does not answer {login().user}: {error}", pytrace=False)
    version = next((row["version"] for row in frontends if row["role"] == "LEADER"), None)
    if version is None:
        pytest.fail(f"SHOW FRONTENDS at {query_url} names no leader: wait until the server has one.", pytrace=False)
    return StarRocks(load_url, query_url, version, user=login().user, password=login().password)


@pytest.fixture(scope="session")
def real_contract_server(real_starrocks: StarRocks) -> Callable[[type[Any], str], Any]:
    """Makes the contract suite's own Server of the real one; its generation is found out by asking."""

    def make(server: type[Any], database: str) -> Any:
        from tests.support.contract_client import Client

        fields = (real_starrocks.load_url, real_starrocks.query_url, real_starrocks.user, real_starrocks.password)
        target_server = server(*fields, database, "B", real_starrocks.rewrites)
        target_server.sql(f"CREATE DATABASE IF NOT EXISTS {database}")
        client = Client(target_server)
        with client.session:
            label = client.begin()
            client.loaded(label, client.table(), b'{"id": 1}')
            generation = "C" if client.state(label) == "PREPARE" else "B"  # C registers at the first load
            client.rollback(label)
        return server(*fields, database, generation, real_starrocks.rewrites)

    return make
