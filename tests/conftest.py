"""For all tests: how deep they dig, how long one may take; and JVMs live for seconds."""

from __future__ import annotations

import contextlib
import gc
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Settings
from starrocks_txn_sink.compiled import library
from starrocks_txn_sink.sink import archive_writer
from starrocks_txn_sink.sink.failures import FAILURES
from starrocks_txn_sink.telemetry import REPEATS
from tests import jvm
from tests.support import depth
from tests.support.query_port import query
from tests.support.servers import Server, server_for_tests

SPARK = Path(__file__).parent / "spark"
UNIT = Path(__file__).parent / "unit"
UNIT_SECONDS = 60

os.environ.setdefault("JDK_JAVA_OPTIONS", jvm.options())
os.environ[archive_writer.SWITCH] = "off"  # hundreds of drivers
gc.disable()  # while tests are collected: nearly all objects stay, and to look for others takes a third of the time


def pytest_configure() -> None:
    """Without the loops their tests would be skipped, and all others take longer."""
    if library.LIBRARY.exists() and library.library() is None:
        pytest.exit(
            "_compiled.so cannot be used, or was built from other C files: make setup", pytest.ExitCode.USAGE_ERROR
        )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else DuckDB reports what nobody frees as leaked


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadscope":
        return None
    from tests.support.scheduling import FewSparkSessions  # where xdist is not installed nobody asks

    return FewSparkSessions(config, log)


@pytest.fixture(autouse=True)
def _log_as_if_for_the_first_time() -> None:
    """A warning that another test has caused is no repetition."""
    REPEATS.clear()


@pytest.fixture(autouse=True)
def _without_failures_of_other_tests() -> None:
    """What a query of another test has met is not the failure of this test's query, nor printed into its output."""
    with contextlib.redirect_stderr(io.StringIO()):
        FAILURES.print_waiting()
    FAILURES.last.clear()


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """An emulator with a database `shop`, or one on the StarRocks of `make test SERVER=…`.

    The nearest marker `emulator` has more DDL, and the emulator's settings by name.
    """
    mark = request.node.get_closest_marker("emulator") or pytest.mark.emulator.mark
    urls = request.config.getoption("starrocks_server", default=None)
    if urls is not None and mark.kwargs:
        pytest.skip(f"Only an emulator has the setting {', '.join(mark.kwargs)}.")
    settings = Settings(**mark.kwargs)
    with server_for_tests(urls) if urls else Emulator(tmp_path / "emulator", settings) as running:
        for sql in ("CREATE DATABASE IF NOT EXISTS shop", *mark.args):
            query(running, sql)
        yield running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests that take longest come first, lest a worker waits for one at the end.

    A unit test that hangs ends after a minute, so that a broken rule does not stall the suite.
    """
    items.sort(key=lambda item: SPARK not in item.path.parents)
    if depth.is_deep():
        return
    for item in items:
        if UNIT in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(UNIT_SECONDS))
