"""How a job ends: a stop, an exception elsewhere, a failed task, a killed process. Nothing is left, nothing is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from starrocks_txn_sink import StarRocksSink
from starrocks_txn_sink.errors import InputError
from tests.crash import workload
from tests.crash.driver_process import DriverProcess
from tests.crash.matrix import Matrix
from tests.crash.sites import all_sites
from tests.crash.workload import Verdict
from tests.support.exactly_once_shop import Shop, rows_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

_SOON = 60.0  # seconds within which a label that was left open is rolled back; by itself it would stay for 120


class Drivers:
    """One driver's process for several tests, as it takes long to start; another one when it was ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._driver: DriverProcess | None = None

    def living(self) -> DriverProcess:
        if self._driver is None:
            self._number += 1
            self._driver = DriverProcess(self._folder / str(self._number))
        self._driver.ready()
        return self._driver

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.stop()
            self._driver = None

    def kill(self) -> None:
        if self._driver is not None:
            self._driver.kill()
            self._driver = None


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    all_drivers = Drivers(tmp_path_factory.mktemp("drivers"))
    yield all_drivers
    all_drivers.stop()


@pytest.mark.deep
def test_a_stop_leaves_no_label_open_and_publishes_nothing_unfinished(shop: Shop) -> None:
    shop.feed(rows_of("p-0", [1, 2]))
    shop.fault({"operation": "load", "table": "items", "action": "delay", "when": "after", "seconds": 120, "times": 1})
    query, _ = shop.start()
    wait_until(lambda: shop.server.faults.report()["applied"])
    assert len(shop.open_labels()) == 1
    began = time.monotonic()
    query.stop()
    wait_until(lambda: not shop.open_labels(), _SOON)
    assert time.monotonic() - began < _SOON
    assert query.exception() is None
    assert not (shop.checkpoint() / "commits" / "0").exists()
    assert shop.written() == (0, 0)
    assert [receipt.rows for receipt in shop.run()] == [4]
    assert shop.written() == (4, 4)


@pytest.mark.deep
def test_an_exception_in_one_lane_leaves_no_label_of_the_others_open(shop: Shop) -> None:
    """Also none that another lane's task begins after the failure: Spark lets it run on for up to 4 s."""
    of_the_other = {"action": "delay", "times": 1}
    shop.fault(
        {**of_the_other, "operation": "begin", "when": "before", "seconds": 1.5},
        {**of_the_other, "operation": "load", "table": "items", "when": "after", "seconds": 120},
    )
    half = rows_of("p-1", [1])[:1]
    with pytest.raises(InputError, match="end inside a source transaction"):
        StarRocksSink(shop.options(lanes=2, shuffle=True)).write(shop.frame(rows_of("p-0", [1, 2]) + half))
    wait_until(lambda: not any(thread.name == "starrocks-clean-up" for thread in threading.enumerate()))
    assert shop.open_labels() == []
    assert shop.written() == (0, 0)


@pytest.mark.deep
def test_after_a_failed_load_the_lanes_read_again(drivers: Drivers, bare_shop: Shop) -> None:
    shop = bare_shop
    task = site(shop, job="retried")
    shop.fault({"operation": "load", "table": "debits", "nth": 2, "action": "drop", "when": "after"})
    driver = drivers.living()
    driver.run(task)
    answer = driver.answer(120)
    assert answer["error"] is None, answer["error"]
    assert [receipt["batch"] for receipt in answer["receipts"]] == [0, 1, 2]
    verdict = workload.judge(shop.ask(workload.JUDGEMENT.format("site")), workload.expected())
    assert verdict == Verdict()


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_a_backlog_of_many_rounds_is_written_once_whatever_kills_its_drivers(drivers: Drivers, bare_shop: Shop) -> None:
    """One micro-batch of sixteen rounds; each driver is killed at its third one, at another step each time."""
    shop, partitions = bare_shop, [f"p-{number:02}" for number in range(16)]
    task = site(shop, 1, partitions, job="backlog", lanes=1, shuffle=True, commit_interval=0.01, timeout=60)
    kills: tuple[dict[str, Any], ...] = (
        {"operation": "commit", "action": "delay", "when": "after"},
        {"operation": "load", "table": "debits", "action": "delay", "when": "after"},
        {"operation": "commit", "action": "hang", "when": "before"},
        {"operation": "begin", "action": "delay", "when": "after"},
    )
    judgement = workload.JUDGEMENT.format("site")
    try:
        for kill in kills:
            shop.fault({**kill, "nth": 3, "seconds": 120})
            driver = drivers.living()
            driver.run(task)
            wait_until(lambda: shop.server.faults.report()["applied"], 120)
            drivers.kill()
            assert workload.judge(shop.ask(judgement)) == Verdict()
        shop.fault()
        driver = drivers.living()
        driver.run(task)
        answer = driver.answer(120)
    finally:
        drivers.stop()
    assert answer["error"] is None, answer["error"]
    assert {receipt["batch"] for receipt in answer["receipts"]} == {0}
    assert workload.judge(shop.ask(judgement), workload.expected(1, partitions)) == Verdict()
    assert shop.ask(_ROUNDS) == [(len(partitions), len(partitions))]


_ROUNDS = "SELECT count(DISTINCT label), count(*) FROM site._starrocks_txn_sink_ledger WHERE kind = 'position'"


def site(
    shop: Shop, batches: int = workload.BATCHES, partitions: Sequence[str] = workload.PARTITIONS, **options: Any
) -> dict[str, Any]:
    """Tables and events of the crash tests, and what a driver is to do with them."""
    for sql in workload.ddl("site"):
        shop.ask(sql)
    workload.write_source(shop.folder / "events", batches, partitions=partitions)
    place = {"load_url": shop.server.load_url, "query_url": shop.server.query_url, "database": "site"}
    return {
        "source": str(shop.folder / "events"),
        "checkpoint": str(shop.folder / "checkpoint"),
        "options": {**place, **options},
    }


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_killed_drivers_and_a_killed_server_lose_and_double_nothing(tmp_path: Path) -> None:
    """A sample of the matrix that `make crash` runs in full."""
    names = ("kill driver, after commit", "kill server, after ledger load", "pause driver, after check")
    sites = [site for site in all_sites() if site.name in names]
    messages: list[str] = []
    with Matrix(tmp_path, messages.append) as matrix:
        cases = matrix.run(sites)
    assert len(cases) == len(names)
    for case in cases:
        assert (case.site.name, case.seen, case.recovered) == (case.site.name, Verdict(), True), case.messages
        assert case.samples > 10
