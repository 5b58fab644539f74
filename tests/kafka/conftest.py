"""One broker and one emulator for all tests of this folder; without Maven the tests skip with a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymysql.cursors import DictCursor

from starrocks_emulator.process import EmulatorProcess
from starrocks_emulator.settings import Settings
from tests.kafka.broker import Broker
from tests.kafka.jars import BROKER, SPARK, NoMaven, archives, fetched
from tests.spark.conftest import spark
from tests.support.query_port import query
from tests.support.quick_start import PASSWORD, USER, Warehouse
from tests.support.servers import ServerForTests, server_for_tests

__all__ = ["spark"]  # the session of tests/spark, the same one where both folders run


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real Kafka broker."""
    try:
        fetched(BROKER)
    except NoMaven as missing:
        pytest.skip(str(missing))
    with Broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="session")
def spark_kafka() -> str:
    """The archives of Spark's Kafka source."""
    try:
        return archives(SPARK)
    except NoMaven as missing:
        pytest.skip(str(missing))


@pytest.fixture
def starrocks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmulatorProcess | ServerForTests]:
    """An emulator in a process of its own, or databases on the StarRocks of `make test SERVER=…`."""
    urls = request.config.getoption("starrocks_server", default=None)
    with server_for_tests(urls) if urls else EmulatorProcess(tmp_path / "starrocks") as running:
        yield running


@pytest.fixture
def warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Warehouse]:
    """The same for a page that runs as printed.

    The nearest marker `emulator` has settings of the emulator: those are for speed alone, but for the `cores` of a
    backend, which bound the tables of a transaction.
    """
    urls = request.config.getoption("starrocks_server", default=None)
    mark = request.node.get_closest_marker("emulator") or pytest.mark.emulator.mark
    settings = Settings(user=USER, password=PASSWORD, **mark.kwargs)
    with server_for_tests(urls) if urls else EmulatorProcess(tmp_path / "starrocks", settings) as running:
        wanted = mark.kwargs.get("cores", 0)
        if wanted and urls and wanted > (there := fewest_cores(running)):
            pytest.skip(f"It needs backends with {wanted} cores, and the smallest has {there}.")
        yield Warehouse(running)


def fewest_cores(server: EmulatorProcess | ServerForTests) -> int:
    """The cores of the smallest backend."""
    rows: list[Any] = query(server, "SHOW BACKENDS", cursorclass=DictCursor)
    return min(int(row["CpuCores"]) for row in rows)
